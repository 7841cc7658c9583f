"""Many ranks at once: the same tables as one after another, in rank order, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.traces.ranks import process_pool
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis, analyze_traces
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import ddp_trace, dp_trace, write_trace

pytestmark = pytest.mark.process

RANKS = 4


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """File names in another order than the ranks'."""
    for rank in range(RANKS):
        write_trace(ddp_trace(rank, RANKS).trace, tmp_path / f"{'dcba'[rank]}.json.gz")
    return tmp_path


def assert_same(one: TraceAnalysis, other: TraceAnalysis) -> None:
    for name in ("steps", "collectives", "dp_phases"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name))
    assert one.findings == other.findings
    for first, second in zip(one.summaries, other.summaries, strict=True):
        pd.testing.assert_frame_equal(first.copy_bytes, second.copy_bytes)
        names = [field.name for field in fields(first) if field.name != "copy_bytes"]
        assert [getattr(first, name) for name in names] == [getattr(second, name) for name in names]


def force_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "SIZEABLE_BYTES", 1)
    monkeypatch.setattr(process_pool, "_usable_cores", lambda: 2)


def test_own_processes_give_the_serial_tables_in_rank_order(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serial = analyze_traces([job])
    assert [summary.rank for summary in serial.summaries] == [0, 1, 2, 3]
    assert serial.steps["rank"].is_monotonic_increasing
    force_processes(monkeypatch)
    before = os.getpid()
    seen: list[tuple[int, int]] = []
    parallel = analyze_traces([job], progress=lambda done, total: seen.append((done, total)))
    assert_same(parallel, serial)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert os.getpid() == before


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_will_do(job: Path, pool: type[Executor]) -> None:
    with pool(2) as executor:  # type: ignore[call-arg]
        assert_same(analyze_traces([job], executor=executor), analyze_traces([job]))


def test_data_parallel_tables_travel_too(tmp_path: Path) -> None:
    write_trace(dp_trace(4).trace, tmp_path / "0_0.pt.trace.json")
    with ProcessPoolExecutor(1) as executor:
        parallel = analyze_traces([tmp_path], executor=executor)
    assert len(parallel.dp_phases) > 50
    assert_same(parallel, analyze_traces([tmp_path]))


def test_small_files_start_no_process(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process for a small file")

    monkeypatch.setattr(process_pool, "ProcessPoolExecutor", refuse)
    seen: list[tuple[int, int]] = []
    analyze_traces([job], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (RANKS, RANKS)


def test_errors_of_workers_are_told_as_ever(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    force_processes(monkeypatch)
    (job / "other.json").write_text('{"a": 1}')
    assert "file_not_read" in {finding.code for finding in analyze_traces([job]).findings}
    with pytest.raises(DpscopeError, match=r"is not a torch\.profiler trace"):
        analyze_traces([job / "other.json", job / "a.json.gz"])


def test_a_worker_that_dies_is_told(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    force_processes(monkeypatch)
    monkeypatch.setattr(process_pool, "read_rank_tables", die)
    with pytest.raises(DpscopeError, match="ended without an answer"):
        analyze_traces([job])


def test_a_cancelled_future_is_told(job: Path) -> None:
    class Cancelling(Executor):
        def submit(self, *_: object, **__: object) -> "Future[object]":  # type: ignore[override]
            future: Future[object] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    with pytest.raises(DpscopeError, match="ended without an answer"):
        analyze_traces([job], executor=Cancelling())


INTERRUPTED = """
import sys, time
from pathlib import Path
from dpscope.analysis.traces.ranks import process_pool
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces

def wait(path, max_bytes):
    Path(sys.argv[2], f"started-{path.stem}").touch()
    time.sleep(60)

process_pool.SIZEABLE_BYTES = 1
process_pool._usable_cores = lambda: 2
process_pool.read_rank_tables = wait
analyze_traces([Path(sys.argv[1])])
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_leaves_no_process(
    job: Path, tmp_path_factory: pytest.TempPathFactory, sent: signal.Signals
) -> None:
    marks = tmp_path_factory.mktemp("marks")
    command = [sys.executable, "-c", INTERRUPTED, str(job), str(marks)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while len(list(marks.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(list(marks.iterdir())) == 2
        process.send_signal(sent)
        process.wait(20)
    assert _members(process.pid, patience_s=5) == []


def _members(session: int, patience_s: float) -> list[int]:
    """Processes of a session that are still there after a while."""
    deadline = time.monotonic() + patience_s
    while found := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session(pid) == session]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return found


def _session(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if status[0] == "Z" else int(status[3])
