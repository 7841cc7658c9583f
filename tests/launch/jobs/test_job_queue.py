"""A queue of jobs that are plain programs: results kept, failures recorded, jobs skipped and
stopped, lines printed.
"""

import io
import re
import signal
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.job_queue import JobFailedError, JobQueue, Outcome
from dpscope.launch.jobs.torchrun import Job
from dpscope.profiling.records.run import Cell, CellResult
from dpscope.profiling.store.files import read_json, write_json
from dpscope.profiling.store.folders import JobFolder
from tests.helpers.programs import Program

pytestmark = pytest.mark.process


CELL = Cell("single", 1, 1)


@dataclass(frozen=True, kw_only=True)
class Stored(Program):
    """A program whose results are those of a cell."""

    hopeless: bool = False

    @property
    def finished(self) -> bool:
        return self.done or self.folder.status() == "ok"

    def store_failure(self, outcome: JobOutcome, took_s: float) -> str:
        result = CellResult(CELL, 0, outcome.status, took_s, outcome.message)
        write_json(self.folder.result_path, result)
        return outcome.message

    def fails_like(self, failed: Job, outcome: JobOutcome) -> str | None:
        return "no hope" if self.hopeless else None


def queue_of(
    out: Path, console: Console | None = None, **codes: str
) -> tuple[JobQueue[Stored], io.StringIO]:
    printed = io.StringIO()
    jobs = [
        Stored(
            name=name,
            program=("-c", code),
            folder=JobFolder(out / "cells" / name),
            threads=1,
            timeout_s=20,
            done=name == "earlier",
            hopeless=name == "hopeless",
        )
        for name, code in codes.items()
    ]
    return JobQueue(jobs, console or Console(file=printed, width=200)), printed


def statuses(queue: JobQueue[Stored]) -> list[str]:
    """The status of each job that is reached; ok of one that was done."""
    return [job.folder.status() or "ok" for job in queue.work_off()]


def writes_result(out: Path, name: str) -> str:
    return (
        f"open({str(out / 'cells' / name / 'result.json')!r}, 'w').write('{{\"status\": \"ok\"}}')"
    )


def test_results_are_kept_and_failures_do_not_stop_the_others(tmp_path: Path) -> None:
    works = writes_result(tmp_path, "works")
    queue, printed = queue_of(
        tmp_path, earlier="raise", fails="raise SystemExit(3)", hopeless="raise", works=works
    )
    assert statuses(queue) == ["ok", "crashed", "skipped", "ok"]
    result = read_json(tmp_path / "cells" / "fails" / "result.json", CellResult)
    assert (
        result.message == "torchrun ended with exit status 3 and no result (before its first pass)"
    )
    assert "[1/4]" not in printed.getvalue()  # was done: is not started
    assert f"its log: {tmp_path}/cells/fails/log.txt" in printed.getvalue().replace("\n", "")
    outcome = Outcome((result,), queue.stop)
    assert (outcome.ok, outcome.exit_status, outcome.interrupted) == (False, 1, False)


def test_a_failure_ends_a_command_that_needs_all_its_jobs(tmp_path: Path) -> None:
    queue, printed = queue_of(tmp_path, fails="print('why'); raise SystemExit(3)", after="raise")
    needed = JobQueue(queue.jobs, queue.console, all_or_nothing="nothing is compared")
    with pytest.raises(JobFailedError, match="fails failed, nothing is compared: torchrun ended"):
        needed.run_all()
    assert "why" in printed.getvalue()
    assert not (tmp_path / "cells" / "after").exists()


def test_the_time_left_without_estimates_is_the_mean_of_those_that_ran(tmp_path: Path) -> None:
    queue, _ = queue_of(tmp_path, first="", second="", third="", fourth="")
    assert queue.time_left_s(0) is None
    queue.jobs = [replace(job, alike=job.name) for job in queue.jobs]
    queue.took_s = [(queue.jobs[0], 10.0), (queue.jobs[1], 20.0)]
    assert queue.time_left_s(2) == 30.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_running_job_and_those_after_it_are_not_begun(
    tmp_path: Path, number: signal.Signals
) -> None:
    queue, printed = queue_of(tmp_path, hangs="import time; time.sleep(60)", after="raise")
    threading.Timer(0.5, signal.raise_signal, [number]).start()
    began_s = time.monotonic()
    assert statuses(queue) == ["interrupted"]
    assert time.monotonic() - began_s < 15  # 3 s of grace and 5 s for SIGKILL, at most
    outcome = Outcome[CellResult]((), queue.stop)
    assert (outcome.ok, outcome.exit_status) == (False, 128 + number)
    assert "its log" not in printed.getvalue(), "what the user stopped needs no explanation"


def printed_of(terminal: bool, tmp_path: Path) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=terminal, no_color=True)
    works = writes_result(tmp_path, "works")
    queue, _ = queue_of(tmp_path, console, fails="raise SystemExit(3)", hopeless="", works=works)
    assert len(list(queue.work_off())) == 3
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_terminal_keeps_failures_and_a_log_every_job(tmp_path: Path) -> None:
    on_terminal = printed_of(True, tmp_path / "a")
    assert re.search(
        r"\[1/3\] fails: crashed in \d+ s: torchrun ended with exit status 3", on_terminal
    )
    assert "[2/3] hopeless: skipped in 0 s: no hope" in on_terminal
    assert not any(line in on_terminal for line in ("started", "works: ok"))
    lines = printed_of(False, tmp_path / "b").splitlines()
    assert [line.partition(":")[2].partition(" in ")[0].strip() for line in lines if line.startswith("[")] == [
        "started", "crashed", "started", "skipped", "started", "ok",
    ]  # fmt: skip
