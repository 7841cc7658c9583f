"""The worker started by hand, by path, under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpscope.launch.worker_job import TorchrunPlace, job_from_arguments, torchrun_place
from dpscope.profiling.run_store import DpscopeError, RunFolder, write_json

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
    for processes, strategy in ((1, "dp"), (2, "ddp")):
        ended = by_hand(out, processes, "--strategy", strategy)
        assert ended.returncode == 0, ended.stderr
    run = RunFolder(out)
    done = {planned.cell.name: len(run.done_repeats(planned.cell)) for planned in run.manifest().plan}
    assert done == {"dp-host-d2-b2": 1, "ddp-d2-b2": 1}
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
        (["--batch-size", "2"], "--strategy is missing: a worker measures one"),
        (["--strategy", "single,ddp", "--batch-size", "2"], "--strategy single,ddp: a worker measures one"),
        (["--strategy", "dp", "--devices", "1", "--batch-size", "2", "--device", "cpu"], "--devices 1 with"),
        (["--strategy", "single", "--batch-size", "2", "--model", "resnet19", "--device", "cpu"], "no such model"),
        (["--strategy", "single", "--batch-size", "2", "--data", "cifar10", "--device", "cpu"], "--data cifar10"),
        (["--strategy", "single", "--batch-size", "9", "--samples", "8", "--device", "cpu"], "the data set has 8"),
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
        job_from_arguments([*arguments, "--out", str(tmp_path / "run")], ALONE)
    assert list(tmp_path.iterdir()) == []


def test_settings_that_nothing_was_measured_with_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('strategy = "single"\nbatch-size = 2\ndevice = "cpu"\n')
    arguments = ["--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    for momentum in ("0.5", "0.6"):
        job = job_from_arguments([*arguments, "--momentum", momentum], ALONE)
        assert RunFolder(tmp_path / "run").manifest().config.momentum == float(momentum)
    write_json(job.folder.result_path, {})
    assert job_from_arguments([*arguments, "--momentum", "0.6"], ALONE).repeat == job.repeat + 1
    with pytest.raises(DpscopeError, match=r"measured with momentum = 0\.6, not 0\.7"):
        job_from_arguments([*arguments, "--momentum", "0.7"], ALONE)


def test_a_job_that_is_running_keeps_its_manifest(tmp_path: Path) -> None:
    """Another process has claimed the first job's folder; once it has ended its settings are replaced."""
    arguments = [*TINY, "--strategy", "single", "--out", str(tmp_path / "run")]
    sys.path.append(str(USER_MODELS))
    try:
        first = job_from_arguments([*arguments, "--momentum", "0.5"], ALONE)
        code = (
            "import sys, pathlib; from dpscope.launch.out_folder import claim; claim(pathlib.Path(sys.argv[1])); "
            "print('claimed', flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(first.folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"claimed\n"
            with pytest.raises(DpscopeError, match=r"another job is measuring there with momentum = 0\.5, not 0\.6"):
                job_from_arguments([*arguments, "--momentum", "0.6"], ALONE)
            other.kill()
        assert job_from_arguments([*arguments, "--momentum", "0.6"], ALONE).config.momentum == 0.6
    finally:
        sys.path.remove(str(USER_MODELS))
