"""Tests marked `timed` compare times of real processes, which other tests disturb: with
`--repeat-alone FILE` those that failed are written to FILE and fail the run only if another test
failed. Repeated without the option, and with nothing beside them, they pass or fail for good.
"""

from pathlib import Path

import pytest


class Disturbed:
    """The failed tests of a whole run, in the process that all workers report to."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.timed: list[str] = []
        self.others_failed = False
        file.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        if "timed" not in report.keywords:
            self.others_failed = True
        elif report.nodeid not in self.timed:
            self.timed.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        failed_alone_count = session.exitstatus == pytest.ExitCode.TESTS_FAILED
        if failed_alone_count and self.timed and not self.others_failed:
            self.file.write_text("\n".join(self.timed) + "\n")
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.file.read_text():
            terminalreporter.write_line(f"To be repeated alone: {', '.join(self.timed)}")
