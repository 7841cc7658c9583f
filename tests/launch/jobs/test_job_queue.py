"""A queue of jobs that are plain programs: results kept, failures recorded, jobs skipped and
stopped, lines printed.
"""

import io
import re
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.job_queue import JobQueue, Outcome
from dpscope.launch.jobs.torchrun import Job
from dpscope.profiling.records.run import Cell, CellResult
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import JobFolder
from tests.helpers.programs import Program

pytestmark = pytest.mark.process


CELL = Cell("single", 1, 1)


class Programs(JobQueue[Job, CellResult]):
    hopeless: Sequence[str] = ()

    def finished(self, job: Job) -> CellResult | None:
        return (
            CellResult(CELL, 0, "ok", 1.0) if job.done or job.folder.result_path.exists() else None
        )

    def prepare(self, job: Job) -> None: ...

    def failed(self, job: Job, outcome: JobOutcome, took_s: float) -> CellResult:
        return CellResult(CELL, 0, outcome.status, took_s, outcome.message)

    def reason_to_skip(self, job: Job) -> str | None:
        return "no hope" if job.name in self.hopeless else None

    def time_left_s(self, index: int) -> float | None:
        return None


def queue_of(out: Path, **codes: str) -> tuple[Programs, io.StringIO]:
    printed = io.StringIO()
    jobs = [
        Program(
            name=name,
            program=("-c", code),
            folder=JobFolder(out / "cells" / name),
            threads=1,
            done=name == "earlier",
        )
        for name, code in codes.items()
    ]
    return Programs(jobs, timeout_s=20, console=Console(file=printed, width=200)), printed


def writes_result(out: Path, name: str) -> str:
    return (
        f"open({str(out / 'cells' / name / 'result.json')!r}, 'w').write('{{\"status\": \"ok\"}}')"
    )


def test_results_are_kept_and_failures_do_not_stop_the_others(tmp_path: Path) -> None:
    works = writes_result(tmp_path, "works")
    queue, printed = queue_of(
        tmp_path, earlier="raise", fails="raise SystemExit(3)", hopeless="raise", works=works
    )
    queue.hopeless = ["hopeless"]
    results = tuple(queue.work_off())
    assert [result.status for result in results] == ["ok", "crashed", "skipped", "ok"]
    assert (
        results[1].message
        == "torchrun ended with exit status 3 and no result (before its first pass)"
    )
    assert read_json(tmp_path / "cells" / "fails" / "result.json", CellResult) == results[1]
    assert "[1/4]" not in printed.getvalue()  # was done: is not started
    assert f"its log: {tmp_path}/cells/fails/log.txt" in printed.getvalue().replace("\n", "")
    outcome = Outcome(results, queue.stop)
    assert (outcome.ok, outcome.exit_status, outcome.interrupted) == (False, 1, False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_running_job_and_those_after_it_are_not_begun(
    tmp_path: Path, number: signal.Signals
) -> None:
    queue, _ = queue_of(tmp_path, hangs="import time; time.sleep(60)", after="raise")
    threading.Timer(0.5, signal.raise_signal, [number]).start()
    began_s = time.monotonic()
    results = tuple(queue.work_off())
    assert time.monotonic() - began_s < 15  # 3 s of grace and 5 s for SIGKILL, at most
    assert [result.status for result in results] == ["interrupted"]
    outcome = Outcome(results, queue.stop)
    assert (outcome.ok, outcome.exit_status) == (False, 128 + number)


def printed_of(terminal: bool, tmp_path: Path) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=terminal, no_color=True)
    queue, _ = queue_of(
        tmp_path, fails="raise SystemExit(3)", hopeless="", works=writes_result(tmp_path, "works")
    )
    queue.hopeless, queue.console = ["hopeless"], console
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
