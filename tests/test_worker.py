"""The worker started by hand, by path, under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpscope.launch.worker_job import TorchrunPlace, job_from_arguments, torchrun_place
from dpscope.profiling.run_store import DpscopeError, RunFolder

WORKER = Path(__file__).parents[1] / "launch" / "worker.py"
USER_MODELS = Path(__file__).parent / "user_models"
ALONE = TorchrunPlace(rank=0, local_rank=0, world_size=1, local_world_size=1, node=0)
TINY = [
    "--model", "tiny_models:tiny", "--device", "cpu", "--steps", "3", "--traced-steps", "1", "--batch-size", "2",
]  # fmt: skip


def by_hand(out: Path, processes: int, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [*command, str(WORKER), *TINY, *options, "--out", str(out)],
        cwd=USER_MODELS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_cells_started_by_hand_share_one_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for processes, strategy in ((1, "dp"), (2, "ddp"), (2, "ddp")):
        ended = by_hand(out, processes, "--strategy", strategy)
        assert ended.returncode == 0, ended.stderr
    run = RunFolder(out)
    done = {planned.cell.name: len(run.done_repeats(planned.cell)) for planned in run.manifest().plan}
    assert done == {"dp-host-d2-b2": 1, "ddp-d2-b2": 2}
    assert run.manifest().config.strategies == ("dp", "ddp")
    other = by_hand(out, 1, "--strategy", "single", "--momentum", "0.5")
    assert other.returncode != 0
    assert "was measured with momentum = 0.9, not 0.5" in other.stderr
    assert "Traceback" not in other.stderr.partition("ChildFailedError")[0].partition("torch/distributed")[0]


def test_two_nodes_by_torchruns_environment() -> None:
    environment = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
    }
    place = torchrun_place(environment)
    assert (place.rank, place.local_rank, place.node, place.world_size) == (3, 1, 1, 4)


def test_without_torchrun_it_says_so() -> None:
    with pytest.raises(DpscopeError, match="under torchrun; start it with torchrun --standalone"):
        torchrun_place({})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--strategy", "all", "--batch-size", "2"], "--strategy all"),
        (["--strategy", "single"], "--batch-size is missing"),
        (["--strategy", "single", "--batch-size", "2,4"], "one batch size"),
        (
            ["--strategy", "dp", "--batch-size", "2", "--devices", "2,4", "--device", "cpu"],
            "one device count",
        ),
        (["--cell", "ddp-d2-b4"], "is not a run folder"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(DpscopeError, match=said):
        job_from_arguments([*arguments, "--out", str(tmp_path)], ALONE)
