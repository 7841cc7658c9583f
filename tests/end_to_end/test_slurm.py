"""The scripts of examples/cluster, submitted unchanged to a real Slurm of two nodes. Skips without
root, slurm-wlm, munge.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpscope.profiling.store.training_folders import TrainFolder
from tests.helpers.paths import ROOT, USER_MODELS
from tests.helpers.slurm import Cluster, slurm_cluster, why_no_slurm
from tests.helpers.sweeps import processes_of, wait_until
from tests.helpers.words import words

CLUSTER = ROOT / "examples" / "cluster"
SRUN_WITHOUT_CONTAINERS = """\
#!/bin/bash
for option in "$@"; do
  case "$option" in --container-*) echo "left out: $option" >&2 ;; *) kept+=("$option") ;; esac
done
exec {srun} "${{kept[@]}}"
"""
APPTAINER = """\
#!/bin/bash
[ "$1 $2 $3 $5" = "exec --nv --bind --pwd" ] || exit 90
echo "in $7" >&2
shift 7
exec "$@"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if (why := why_no_slurm()) is not None:
        pytest.skip(why)
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH with `dpscope`, as an installed environment has it, and stand-ins for what
    is not installed here.
    """
    folder = tmp_path_factory.mktemp("commands")
    srun = subprocess.run(
        ["which", "srun"], capture_output=True, text=True, check=False
    ).stdout.strip()
    programs = {
        "dpscope": f'#!/bin/bash\nexec {sys.executable} -m dpscope.launch.cli "$@"\n',
        "apptainer": APPTAINER,
        "without_containers/srun": SRUN_WITHOUT_CONTAINERS.format(srun=srun),
    }
    for name, text in programs.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def submit(
    cluster: Cluster, commands: Path, script: str, out: Path, *options: str, **more: str
) -> tuple[str, Path]:
    """The job's id and where its output goes; it runs where the tests' models are found."""
    path = f"{commands}:{os.environ['PATH']}"
    variables = {"OUT": str(out), "PATH": path, "OMP_NUM_THREADS": "1", **more}
    output = out.with_suffix(".txt")
    job = cluster.submit(
        CLUSTER / script, *options, cwd=USER_MODELS, SBATCH_OUTPUT=str(output), **variables
    )
    return job, output


def test_a_training_that_is_requeued_in_the_middle_goes_on(
    cluster: Cluster, commands: Path, tmp_path: Path
) -> None:
    """An epoch is three steps and a test. The model hangs in the seventh forward pass of a process,
    in the second epoch: the second start, with an epoch left, has no seventh.
    """
    out = tmp_path / "run"
    options = words(
        "--device cpu --strategy ddp --devices 2x1 --model tiny_models:hanging --data fake "
        "--batch-size 4 --samples 12 --epochs 2 --workers 0 --timeout 100"
    )
    job, output = submit(cluster, commands, "preemptible_training.sbatch", out, *options)
    saved = out / "training" / "ddp-d2-n2-b2" / "seed0" / "epochs.json"
    wait_until(saved.exists, timeout_s=200)
    cluster.call("scontrol", "requeue", job)
    state = cluster.wait(job)
    text = output.read_text()
    assert state["JobState"] == "COMPLETED", text
    assert state["Restarts"] == "1"
    assert "1 of 2" in text  # epochs trained, in the plan of the second start
    records = [one for one in TrainFolder(out).log().epochs if one.cell == "ddp-d2-n2-b2"]
    assert [one.epoch for one in records] == [1, 2]
    assert processes_of(out) == []


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("one_node.sbatch", "ddp-d2-b2"),
        ("several_nodes.sbatch", "ddp-d2-n2-b2"),
        ("container_apptainer.sbatch", "in torch.sif"),
        ("container_pyxis.sbatch", "left out: --container-image=torch.sif"),
    ],
)
def test_the_other_scripts_start_their_commands(
    cluster: Cluster, commands: Path, tmp_path: Path, script: str, expected: str
) -> None:
    devices = "1,2" if script == "one_node.sbatch" else "1,2x1"
    more = (
        {"PATH": f"{commands / 'without_containers'}:{commands}:{os.environ['PATH']}"}
        if "pyxis" in script
        else {}
    )
    options = ("--device", "cpu", "--batch-size", "2", "--devices", devices, "--dry-run")
    job, output = submit(
        cluster, commands, script, tmp_path / "run", *options, IMAGE="torch.sif", **more
    )
    assert cluster.wait(job)["JobState"] == "COMPLETED", output.read_text()
    text = output.read_text()
    assert expected in text
    assert ("ddp-d2-b2" if script == "one_node.sbatch" else "ddp-d2-n2-b2") in text
    if script != "one_node.sbatch":
        assert text.count("time per repeat") == 1  # only node 0 prints the plan
        assert "Node 1: node 0 prints the plan." in text
        assert (
            "--nnodes=2 --node-rank=NODE --master-addr=HOST0 --master-port=29501 --nproc-per-node=1"
            in text
        )
