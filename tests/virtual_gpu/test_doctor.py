"""Nodes whose state is planted: what `dpscope doctor` finds, that one failure hides no other, and
GPUs without NVML.
"""

import json
from dataclasses import dataclass

from tests.helpers.words import words
from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import Device, Fault, Links, Node, Nvml, PlantedNode
from tests.virtual_gpu.programs import device_file

NO_KERNEL_IMAGE, UNAVAILABLE = 209, 46  # of CUDA


@dataclass
class Check:
    status: str = ""
    found: str = ""
    next_step: str = ""


def doctor(node: PlantedNode, status: int = 0) -> dict[str, Check]:
    text = node.dpscope("doctor", "--format", "json", status=status)
    answers, _ = json.JSONDecoder().raw_decode(text[text.index("{\n") :])  # after standard error's
    return {
        answer["name"]: Check(answer["status"], answer["detail"], answer["next_step"])
        for answer in answers["checks"]
    }


def test_a_healthy_node(plant: Plant) -> None:
    checks = doctor(plant(Node(devices=(Device(),) * 2)))
    assert {check.status for check in checks.values()} == {"ok"}
    assert checks["devices"].found == "2 GPUs: dpscope virtual GPU"
    assert checks["device state"].found == "not throttled, not shared, uniform"
    assert checks["links"].found.startswith("12 NVLinks")
    assert checks["all-reduce"].found == "4 MB over 2 GPUs by ProcessGroupNCCL"
    assert checks["peer access"].found == "all 2 ordered pairs"


def test_a_node_without_peer_access_under_an_older_driver(plant: Plant) -> None:
    """Its NVML does not know which processes use a device."""
    older = Nvml(missing=("nvmlDeviceGetComputeRunningProcesses_v3",))
    checks = doctor(
        plant(Node(devices=(Device(),) * 2, links=Links(kind="pcie", peer=False), nvml=older))
    )
    assert checks["device state"].found == "not throttled, unknown whether shared, uniform"
    assert checks["links"].found.startswith("0 NVLinks")
    assert checks["peer access"].status == "warning"
    assert checks["peer access"].found.startswith("2 of 2 ordered pairs have none")
    assert checks["all-reduce"].status == "ok"


def test_a_lost_device(plant: Plant) -> None:
    lost = Fault(kind="lost", device=1, error=UNAVAILABLE)
    checks = doctor(plant(Node(devices=(Device(),) * 2, faults=(lost,))), status=1)
    failed = [name for name, check in checks.items() if check.status == "failed"]
    assert failed == ["device state", "all-reduce"]
    assert checks["device state"].found.startswith("GPU 1 does not answer its driver")
    assert "rank 1: " in checks["all-reduce"].found


def test_a_part_of_a_gpu_and_a_wrong_sum(plant: Plant) -> None:
    """CUDA uses one part (MIG) where NVML counts four GPUs. Of 1.0, which is 3f800000, one bit is
    flipped: 3e800000.
    """
    node = Node(cuda_devices=1, nvml=Nvml(devices=4), faults=(Fault(kind="corrupts"),))
    checks = doctor(plant(node), status=1)
    assert checks["devices"].found == "1 GPU: dpscope virtual GPU"
    assert [name for name, check in checks.items() if check.status == "failed"] == ["all-reduce"]
    wrong = "an all-reduce over 1 process gave 0.25, not 1, in 1 of 1048576 elements"
    assert wrong in checks["all-reduce"].found


def test_devices_that_torch_lists_and_cannot_use(plant: Plant) -> None:
    """Without code for the first, the second in exclusive use, the third full."""
    devices = (Device(name="Tesla V100", capability=(7, 0)), Device(), Device(memory_mib=300))
    old = Fault(kind="launch", device=0, error=NO_KERNEL_IMAGE)
    used = Fault(kind="sticky", device=1, after=-1, error=UNAVAILABLE)
    checks = doctor(plant(Node(devices=devices, faults=(old, used))), status=1)
    failed = [name for name, check in checks.items() if check.status == "failed"]
    assert failed == ["devices", "all-reduce", "tracer"]
    assert (
        "has no kernels for GPU 0 (dpscope virtual GPU Tesla V100, 7.0)" in checks["devices"].found
    )
    assert "no kernel image is available" in checks["tracer"].found


def test_gpus_are_found_without_nvml_where_only_torch_knows_them(plant: Plant) -> None:
    node = plant(Node(nvml=Nvml(missing=("nvmlInitWithFlags",))))
    options = words("run --strategy single --devices 1 --dry-run")
    planned = node.run("-m", device_file.__name__, *options)
    assert "single-d1-b512" in planned  # 512 is a default batch of GPUs alone
