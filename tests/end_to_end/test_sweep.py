"""A whole run with real torchrun jobs on a tiny model: what is stored, how failures end, how it
resumes.
"""

import fcntl
import os
import signal
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from dpscope.launch.jobs import torchrun
from dpscope.launch.jobs.parent_death import RUN_TOKEN_VARIABLE
from dpscope.launch.measuring.run import plan_run
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RepeatFolder, RunFolder
from tests.helpers.programs import Program
from tests.helpers.sweeps import TINY, half_written, processes_of, sweep, wait_until


def test_a_run_stores_what_it_measured(tmp_path: Path) -> None:
    outcome = sweep(tmp_path / "run", traced_steps=3, data="fake", workers=0, samples=9)
    run = RunFolder(tmp_path / "run")
    assert outcome.ok
    assert [result.cell.name for result in outcome.results] == [
        "single-d1-b2",
        "dp-host-d2-b2",
        "ddp-d2-b2",
    ]
    assert half_written(run.path) == []
    assert run.manifest().config.matrix.devices == (1, 2)
    for planned in run.manifest().plan:
        repeats = run.done_repeats(planned.cell)
        assert [index for index, _ in repeats] == [0]
        for _, folder in repeats:
            ranks = folder.ranks()
            assert [rank.rank for rank in ranks] == list(range(planned.cell.processes))
            assert len(folder.traces()) == planned.cell.processes
            samples = pd.DataFrame(folder.samples(ranks))
            counts = samples.groupby(["rank", "measuring_pass"]).size()
            assert set(counts.index.get_level_values("rank")) == set(range(planned.cell.processes))
            assert (counts.xs("timed", level="measuring_pass") == 4).all()
            # one more than requested
            assert (counts.xs("traced", level="measuring_pass") == 4).all()
            assert samples.step_us.min() > 0
            # Every epoch of 9 samples ends with a batch that is short, which is in none of these
            # passes.
            assert set(samples.samples) == {
                planned.cell.global_batch_size // planned.cell.processes
            }
            assert (samples.data_wait_us < samples.step_us).all()
            block = folder.ranks()[0].blocks[0]
            waits_us = samples[
                (samples["rank"] == 0) & (samples.measuring_pass == "timed")
            ].data_wait_us
            assert block.data_wait_s == pytest.approx(waits_us.sum() / 1e6)
            assert all(rank.threads == run.manifest().threads_per_process for rank in ranks)
            assert (
                sum(rank.blocks[0].samples for rank in ranks) == 4 * planned.cell.global_batch_size
            )
            if planned.cell.strategy == "ddp":
                assert len(folder.counters_traces()) == 2
                for rank in ranks:  # the steps that the counters pass traced
                    counters = folder.counters(0, rank.rank)
                    assert [entry.step for entry in counters] == [2, 3, 4, 5]
                    assert all(
                        sum(entry.bucket_bytes) == rank.model.gradient_bytes for entry in counters
                    )
                    assert all(entry.backward_comm_us > 0 for entry in counters)


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


def test_a_hang_ends_at_its_time_limit_with_all_its_processes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = sweep(out, torchrun=True, strategy="ddp", model="tiny_models:hanging", timeout=24)
    assert [result.status for result in outcome.results] == ["timed_out"]
    assert "time limit of 24 s (in its timed pass)" in outcome.results[0].message
    assert outcome.results[0].duration_s < 36
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
