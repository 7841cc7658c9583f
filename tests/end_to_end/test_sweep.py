"""Whole runs with real jobs on a tiny model: how failures end, how a run resumes. What is stored:
test_real_run.py.
"""

import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpscope.launch.jobs import torchrun
from dpscope.launch.jobs.parent_death import RUN_TOKEN_VARIABLE
from dpscope.launch.measuring.run import plan_run
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RepeatFolder, RunFolder
from tests.helpers.programs import Program
from tests.helpers.sweeps import TINY, in_pass, processes_of, sweep, wait_until


def test_done_cells_are_skipped_and_fresh_redoes_them(tmp_path: Path) -> None:
    out = tmp_path / "run"
    sweep(out, strategy="single")
    result = RunFolder(out).repeat(RunFolder(out).manifest().plan[0].cell, 0).result_path
    first = result.stat().st_mtime_ns
    stranger, left = (
        subprocess.Popen(
            ["sleep", "99"], env={**os.environ, RUN_TOKEN_VARIABLE: str(path.resolve())}
        )
        for path in (tmp_path, out)  # the second one an earlier sweep's
    )
    assert all(
        job.done for job in plan_run(load_config(None, {**TINY, "strategy": "single"}), out).jobs
    )
    assert sweep(out, strategy="single").ok
    assert result.stat().st_mtime_ns == first
    assert left.wait(timeout=1) == -signal.SIGTERM
    assert stranger.poll() is None
    stranger.kill()
    # more patience and more repeats are no other run
    assert sweep(out, strategy="single", repeats=2, timeout=80).ok
    measurement = RunFolder(out).manifest().config.measurement
    assert (measurement.repeats, measurement.timeout_s) == (2, 80)
    assert len(RunFolder(out).done_repeats(RunFolder(out).manifest().plan[0].cell)) == 2
    assert result.stat().st_mtime_ns == first
    with pytest.raises(
        DpscopeError,
        match="holds a run with --steps 4, not --steps 5; use the same settings to resume",
    ):
        sweep(out, strategy="single", steps=5)
    with pytest.raises(
        DpscopeError, match="with --strategy single, not --strategy single,ddp; use"
    ):
        sweep(out, strategy="single,ddp")
    assert sweep(out, fresh=True, strategy="single").ok
    assert result.stat().st_mtime_ns > first


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with open(tmp_path / "run" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DpscopeError, match="another dpscope is writing it"):
            sweep(tmp_path / "run")


def test_a_crash_is_recorded_with_the_first_rank_first_and_the_others_go_on(tmp_path: Path) -> None:
    outcome = sweep(
        tmp_path / "run", torchrun=True, strategy="ddp", model="tiny_models:crashing", devices="2"
    )
    (result,) = outcome.results
    assert (result.status, outcome.ok) == ("crashed", False)
    assert "rank 1: ArithmeticError: this rank fails on purpose" in result.message
    assert result.log_tail[0].startswith("[rank1]: ")
    assert any("this rank fails on purpose" in line for line in result.log_tail)
    folder = RunFolder(tmp_path / "run").repeat(result.cell, 0)
    assert sorted(path.name for path in folder.path.iterdir()) == ["log.txt", "result.json"]
    assert processes_of(tmp_path / "run") == []


def test_out_of_memory_skips_larger_batches_and_later_repeats(tmp_path: Path) -> None:
    outcome = sweep(
        tmp_path / "run",
        strategy="single",
        model="tiny_models:memory_hungry",
        batch_size="2,4",
        repeats=2,
    )
    statuses = [(result.cell.batch_size, result.status) for result in outcome.results]
    # The second turn has the reverse order.
    assert statuses == [(2, "out_of_memory"), (4, "skipped"), (4, "skipped"), (2, "skipped")]
    assert outcome.results[1].message == "single-d1-b2 ran out of memory with a smaller batch"


def test_a_hang_ends_at_its_time_limit_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that is 88 s fast from the timed pass on, in which a rank hangs."""
    out = tmp_path / "run"
    hangs = in_pass(out, "ddp-d2-b2", "timed")
    clock = SimpleNamespace(**vars(time))
    clock.monotonic = lambda: time.monotonic() + 88 * hangs()
    monkeypatch.setattr(torchrun, "time", clock)
    outcome = sweep(out, torchrun=True, strategy="ddp", model="tiny_models:hanging", timeout=90)
    assert [result.status for result in outcome.results] == ["timed_out"]
    assert "time limit of 90 s (in its timed pass)" in outcome.results[0].message
    assert outcome.results[0].duration_s < 60  # gloo's own limit would be 90 s as well
    assert processes_of(out) == []


def test_a_job_that_cannot_be_ended_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where processes cannot be listed nor with one that outlives SIGKILL does the end wait
    for ever.
    """
    gone = subprocess.Popen(["true"])
    gone.wait()
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    for listed in ([], [gone.pid]):
        folder = RepeatFolder(tmp_path / str(len(listed)))
        monkeypatch.setattr(torchrun, "processes_with", lambda token, listed=listed: listed)
        monkeypatch.setattr(torchrun, "_GRACE_S", 0.3)
        monkeypatch.setattr(torchrun, "_KILL_S", 0.5)
        job = torchrun.TorchrunJob(
            Program(name="deaf", program=("-c", deaf), folder=folder, threads=1)
        )
        wait_until(lambda log=folder.log_path: "deaf" in log.read_text())  # type: ignore[misc]
        assert job.end() == listed
        assert job.wait(1, lambda state: None, lambda: False) == ("exited", -signal.SIGKILL)
