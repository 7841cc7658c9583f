"""Commands that are killed or interrupted, at any moment: nothing is left running, and what was
measured is kept.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpscope.profiling.store.folders import RunFolder
from tests.helpers.fork_server import forks
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.sweeps import (
    half_written,
    in_pass,
    parent_of,
    processes_of,
    start_sweep,
    torchruns_of,
    wait_until,
)

pytestmark = pytest.mark.real_processes  # their ends are what these tests are about


@pytest.mark.timeout(600)
def test_a_kill_at_any_moment_leaves_nothing_and_a_rerun_completes(tmp_path: Path) -> None:
    """A worker, then in the next attempt the command itself: the third attempt completes. The worker
    may be a fork, since it is torchrun that ends the others after it. That torchrun is killed:
    test_attach_ends.py.
    """
    out = tmp_path / "run"
    # The sweep knows the model without torch, and its steps take tens of milliseconds.
    flags = {
        "strategy": "ddp",
        "model": "resnet8_cifar",
        "batch_size": "8",
        "steps": 30,
        "traced_steps": 10,
    }
    for victim in ("worker", "sweep"):
        with forks() if victim == "worker" else contextlib.nullcontext():
            running = start_sweep(out, **flags)
        # or in a later one, where this process is held up meanwhile
        passes = ["warm-up", "timed", "traced"][random.randrange(3) :]
        wait_until(in_pass(out, "ddp-d2-b8", *passes), timeout_s=120)
        time.sleep(random.uniform(0, 0.3))
        torchruns = torchruns_of(out)
        # Not a worker's own children: the death of a data loader may come too late to matter.
        workers = [process for process in processes_of(out) if parent_of(process) in torchruns]
        chosen = workers if victim == "worker" else [running.pid]
        assert chosen
        os.kill(random.choice(chosen), signal.SIGKILL)
        assert running.wait(timeout=120) != 0
        wait_until(lambda: processes_of(out) == [], timeout_s=15)
        if victim != "sweep":
            assert_recorded(out, "crashed", "killed by signal 9 (SIGKILL")
    with forks(), light_jobs():
        assert start_sweep(out, **flags).wait(timeout=120) == 0
    assert half_written(out) == []
    assert len(RunFolder(out).done_repeats(RunFolder(out).manifest().plan[0].cell)) == 1


def job_runs(out: Path, sweep: int) -> bool:
    """Whether a job's process runs next to the sweep and its torchrun."""
    return set(processes_of(out)) - {sweep, *torchruns_of(out)} != set()


def test_a_sweep_killed_as_its_worker_starts_leaves_nothing(tmp_path: Path) -> None:
    """Before a worker can ask the kernel to end it with its parent, which takes it a part of a
    second.
    """
    flags: dict[str, object] = {"strategy": "single", "data": "synthetic", "workers": None}
    flags |= {"model": "resnet8_cifar"}  # known without torch: the sweep is at its job at once
    out = tmp_path / "run"
    running = start_sweep(out, **flags)
    wait_until(lambda: job_runs(out, running.pid))
    time.sleep(random.uniform(0, 0.1))
    running.kill()
    running.wait()
    wait_until(lambda: processes_of(out) == [], timeout_s=15)


def test_a_termination_is_recorded_and_ends_the_job(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with forks():
        running = start_sweep(out, model="tiny_models:hanging", strategy="ddp")
    wait_until(in_pass(out, "ddp-d2-b2", "timed"))
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=30) == 128 + signal.SIGTERM
    assert processes_of(out) == []
    assert_recorded(out, "interrupted", "the same command without --fresh resumes the run")


def assert_recorded(out: Path, status: str, message: str) -> None:
    """Of the first cell."""
    result = RunFolder(out).repeat(RunFolder(out).manifest().plan[0].cell, 0).result()
    assert result is not None
    assert (result.status, message in result.message) == (status, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "--devices", "2"], "nothing is saved: interrupted"),
        (["equal", "--device", "cpu", "--steps", "50"], "nothing is compared: interrupted"),
        (["train", "--device", "cpu", "--strategy", "ddp", "--data", "fake"], "interrupted"),
    ],
)
def test_ctrl_c_is_130_everywhere(tmp_path: Path, arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "dpscope.launch.cli", *arguments]
    with forks():
        running = subprocess.Popen(
            [*command, "--out", str(tmp_path / "run")],
            env={**os.environ, "TMPDIR": str(tmp_path)},  # a calibration's job works there
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        wait_until(lambda: running.poll() is not None or torchruns_of(tmp_path) != [])
        assert running.poll() is None, running.communicate()
        running.send_signal(signal.SIGINT)
        printed, _ = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 128 + signal.SIGINT, printed
    assert message in " ".join(printed.split())
    assert "Traceback" not in printed
    assert torchruns_of(tmp_path) == []
