"""Many ranks at once: the same tables as one after another, in rank order, and no process left
behind.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.traces.ranks import process_pool
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import ddp_trace, write_trace
from tests.helpers.paths import ROOT
from tests.helpers.pool_work import die_at_rank_c, read_or_die_at_rank_c

pytestmark = pytest.mark.process

RANKS = 4


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """File names in another order than the ranks'."""
    for rank in range(RANKS):
        write_trace(ddp_trace(rank, RANKS).trace, tmp_path / f"{'dcba'[rank]}.json.gz")
    return tmp_path


def assert_same(one: Job, other: Job) -> None:
    for name in ("steps", "collectives", "dp_phases", "copies"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name))
    assert one.findings == other.findings
    assert one.summaries == other.summaries
    assert one.timelines == other.timelines


def force_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "START_BYTES", 1)
    monkeypatch.setattr(process_pool, "usable_cores", lambda: 2)


def test_own_processes_give_the_serial_tables_in_rank_order(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial = analyze_traces([job])
    assert [summary.rank for summary in serial.summaries] == [0, 1, 2, 3]
    assert serial.steps["rank"].is_monotonic_increasing
    force_processes(monkeypatch)
    seen: list[tuple[int, int]] = []
    parallel = analyze_traces([job], progress=lambda done, total: seen.append((done, total)))
    assert_same(parallel, serial)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_errors_of_workers_are_reported_as_usual(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_processes(monkeypatch)
    (job / "other.json").write_text('{"a": 1}')
    assert "file_not_read" in {finding.code for finding in analyze_traces([job]).findings}
    with pytest.raises(DpscopeError, match=r"is not a torch\.profiler trace"):
        analyze_traces([job / "other.json", job / "a.json.gz"])


def test_a_worker_that_dies_is_reported(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    force_processes(monkeypatch)
    monkeypatch.setattr(process_pool, "read_file", read_or_die_at_rank_c)
    read = process_pool.read_files([job / f"{name}.json.gz" for name in "abcd"], DEFAULT_LIMITS)
    assert [str(one) for one in read if isinstance(one, DpscopeError)] == [
        f"the process that was to read {job / 'c.json.gz'} ended without an answer (signal 9); "
        "if memory ran out, read fewer files at once"
    ]
    others = [one for one in read if not isinstance(one, DpscopeError)]
    assert [[summary.rank for summary in one.summaries] for one in others] == [[3], [2], [0]]
    with pytest.raises(DpscopeError, match=r"ended without an answer \(signal 9\)"):
        process_pool.over_cores(
            die_at_rank_c, [job / "a.json.gz", job / "c.json.gz"], [job / "a.json.gz"] * 2
        )


INTERRUPTED = """
import signal
import sys
from pathlib import Path
from dpscope.analysis.traces.ranks import process_pool
from tests.helpers.pool_work import mark_and_wait

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started deaf to it
process_pool.START_BYTES = 1
process_pool.usable_cores = lambda: 2
marks = [Path(sys.argv[1], name) for name in "ab"]
process_pool.over_cores(mark_and_wait, marks, [Path(sys.executable)] * 2)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_leaves_no_process(tmp_path: Path, sent: signal.Signals) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    with subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.DEVNULL, cwd=ROOT
    ) as process:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(list(tmp_path.iterdir())) == 2
        assert len(_members(process.pid, patience_s=0)) == 3
        process.send_signal(sent)
        process.wait(60)
    assert _members(process.pid, patience_s=60) == []


def _members(session: int, patience_s: float) -> list[int]:
    """Processes of a session that are still there after a while."""
    deadline = time.monotonic() + patience_s
    while found := [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if _session(pid) == session
    ]:
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
