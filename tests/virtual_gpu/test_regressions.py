"""What once failed on nodes with GPUs: the real command on such a virtual node. The README lists
what cannot be shown.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpscope.profiling.records.run import Cell, Manifest
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import RunFolder
from tests.helpers import gpu_checks
from tests.helpers.words import words
from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import Device, Node, Nvml, Truth
from tests.virtual_gpu.programs import noted_limits

SLOW, FAST = "dpscope virtual GPU slow", "dpscope virtual GPU fast"


def test_gpus_are_found_without_nvml_where_only_torch_knows_them(plant: Plant) -> None:
    """As on a Jetson or ROCm under WSL, whose device file here is /dev/null."""
    program = """
from pathlib import Path
from dpscope.launch import contents
from dpscope.launch.jobs import devices
assert devices.present_gpus() is None
devices._DEVICE_FILES = (Path("/dev/null"),)
contents.app()
"""
    node = plant(Node(nvml=Nvml(missing=("nvmlInitWithFlags",))))
    planned = node.run("-c", program, "run", "--strategy", "single", "--devices", "1", "--dry-run")
    assert "single-d1-b512" in planned  # 512 is a default batch of GPUs alone


@dataclass(frozen=True)
class Ran:
    out: Path
    limits_s: list[dict[str, float]]  # by rank, of its groups
    truth: Truth


@pytest.fixture(scope="module")
def ran(plant: Plant, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Every second GPU is faster, and CUDA's own order begins with those."""
    node = plant(Node(devices=(Device(name=SLOW), Device(name=FAST, teraflops=30)) * 2))
    out, noted = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("limits")
    options = words("--strategy single,hsdp --devices 1,4 --batch-size 4 --steps 3 --repeats 1")
    model = ("--model", f"{noted_limits.__name__}:small", "--traced-steps", "1", "--timeout", "100")
    node.dpscope(
        "run", *options, *model, "--out", str(out), variables={noted_limits.FOLDER: str(noted)}
    )
    return Ran(
        out, [json.loads(path.read_text()) for path in sorted(noted.iterdir())], node.truth()
    )


def test_the_gpu_that_is_measured_is_the_one_recorded(ran: Ran) -> None:
    truth = ran.truth
    alone = truth.work[~truth.work["pid"].isin(truth.collectives["pid"])]
    assert set(alone["device"]) == {0}
    environment = read_json(ran.out / "manifest.json", Manifest).environment
    assert [one.name for one in environment.accelerators] == [SLOW, FAST, SLOW, FAST]
    (single,) = RunFolder(ran.out).repeat(Cell("single", 1, 4), 0).ranks()
    assert gpu_checks.measured_uuids([single]) == {"d5000000-0000-0000-0000-000000000000"}


def test_the_engine_that_torch_registers_is_recorded(ran: Ran) -> None:
    """torch 2.14 has a second one, which it uses only when TORCH_DIST_USE_NCCL2 says so."""
    assert (
        read_json(ran.out / "manifest.json", Manifest).environment.nccl_engine == "ProcessGroupNCCL"
    )
    used = {rank.nccl_engine for rank in RunFolder(ran.out).repeat(Cell("hsdp", 4, 4), 0).ranks()}
    assert used == {"ProcessGroupNCCL"}


def test_every_group_of_a_mesh_has_the_jobs_limit(ran: Ran) -> None:
    """80% of --timeout, where NCCL's own is ten minutes."""
    groups = [("0,1", "0,2"), ("0,1", "1,3"), ("2,3", "0,2"), ("2,3", "1,3")]
    assert ran.limits_s == [dict.fromkeys(("0,1,2,3", *of_rank), 80.0) for of_rank in groups]


def test_what_groups_do_at_once_is_not_predicted_by_one_group_alone(ran: Ran) -> None:
    """HSDP's two groups of replicas reduce at the same time, so no calibration of a pair of GPUs is
    made for it.
    """
    reduced = ran.truth.collectives.query("name.str.contains('AllReduce') and ranks == 2")
    devices = {frozenset(group) for _, group in reduced.groupby("communicator")["device"]}
    assert devices == {frozenset({0, 2}), frozenset({1, 3})}
    assert not (ran.out / "calibration.json").exists()
