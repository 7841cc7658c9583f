"""A cell whose batches come from loader workers: its processes end when their result is written."""

import os
import subprocess
import time
import uuid
from pathlib import Path

import msgspec
import pytest

from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.jobs.parent_death import JOB_TOKEN_VARIABLE
from dpscope.launch.jobs.torchrun import Job, processes_with
from dpscope.profiling.store.folders import JobFolder
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.sweeps import wait_until

LONGEST_END_S = 10.0


@pytest.mark.parametrize(("strategy", "data"), [("dp-host", "fake"), ("ddp", "digits")])
def test_a_cell_with_loader_workers_ends_with_all_its_processes(
    tmp_path: Path, strategy: str, data: str
) -> None:
    processes = 2 if strategy == "ddp" else 1
    token = uuid.uuid4().hex
    options: dict[str, object] = {
        "strategy": strategy.removesuffix("-host"),
        "devices": "2",
        "batch_size": "4",
        "data": data,
        "workers": 2,
        "steps": 4,
        "traced_steps": 2,
    }
    options |= (
        {"model": "tiny_models:tiny", "samples": 96}
        if data == "fake"
        else {"model": "resnet8_cifar"}
    )
    by_hand = Assignment(
        task="measure", out=str(tmp_path / "run"), cell=f"{strategy}-d2-b4", options=options
    )
    with light_jobs():
        job = subprocess.Popen(
            Job(
                name="",
                program=by_hand.program("cpu"),
                folder=JobFolder(tmp_path),
                threads=1,
                processes=processes,
            ).command,
            env={**os.environ, JOB_TOKEN_VARIABLE: token},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        wait_until(
            lambda: any(tmp_path.glob("run/cells/*/repeat0/result.json")) or job.poll() is not None,
            120,
        )
        written_s = time.monotonic()
        printed, _ = job.communicate(timeout=LONGEST_END_S)
        assert job.returncode == 0, printed
        assert time.monotonic() - written_s < LONGEST_END_S
        (rank_path,) = tmp_path.glob(f"run/cells/{strategy}-*/repeat0/rank_0_0.json")
        assert msgspec.json.decode(rank_path.read_bytes())["loader_workers"] == 2
        assert processes_with(f"{JOB_TOKEN_VARIABLE}={token}") == []
    finally:
        job.kill()
