"""What is planted is what programs see: the fixture itself, by the calls of the libraries, mostly
without torch.
"""

import json
import random
from typing import Any

import pytest

from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import (
    Device,
    Fault,
    HostDelay,
    Kernels,
    KernelTime,
    Links,
    Node,
    Nvml,
    PlantedNode,
    UnlikeLink,
)

# of CUDA
NO_KERNEL_IMAGE, LAUNCH_FAILURE, UNAVAILABLE, OUT_OF_MEMORY, NOT_READY = 209, 719, 46, 2, 600
REMOTE_ERROR = 6  # of NCCL
MIB = 1 << 20


def answers(node: PlantedNode, scenario: str, **variables: str) -> dict[str, Any]:
    printed: dict[str, Any] = json.loads(
        node.run("-m", "tests.virtual_gpu.programs.calls", scenario, variables=variables)
    )
    return printed


def test_visible_devices_by_index_uuid_and_order(plant: Plant) -> None:
    node = plant(Node(devices=(Device(), Device(teraflops=30), Device(), Device())))
    # CUDA's own order: the fastest first
    assert answers(node, "devices") == {"buses": [2, 1, 3, 4], "nvml": 4}
    by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert answers(node, "devices", **by_bus)["buses"] == [1, 2, 3, 4]
    assert answers(node, "devices", CUDA_VISIBLE_DEVICES="0,3")["buses"] == [2, 4]
    assert answers(node, "devices", CUDA_VISIBLE_DEVICES="3,0", **by_bus)["buses"] == [4, 1]
    uuid = "GPU-d5000000-0000-0000-0000-000000000002"
    assert answers(node, "devices", CUDA_VISIBLE_DEVICES=uuid) == {"buses": [3], "nvml": 4}
    assert answers(node, "devices", CUDA_VISIBLE_DEVICES="1,9,0")["buses"] == [
        1
    ]  # all after an invalid one are ignored


def test_no_name_passes_for_a_real_device(plant: Plant) -> None:
    node = plant(Node(devices=(Device(), Device(name="NVIDIA A100-SXM4-80GB"))))
    program = "import torch; print([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())])"
    assert (
        node.run("-c", program).strip()
        == "['dpscope virtual GPU', 'dpscope virtual GPU NVIDIA A100-SXM4-80GB']"
    )


def test_parts_of_a_gpu_and_an_older_driver(plant: Plant) -> None:
    parts = plant(Node(cuda_devices=1))
    assert answers(parts, "devices") == {"buses": [1], "nvml": 4}
    assert answers(parts, "processes") == {"processes": 0}
    older = plant(Node(nvml=Nvml(missing=("nvmlDeviceGetComputeRunningProcesses_v3",))))
    assert answers(older, "processes") == {"error": "NVMLLibraryMismatchError"}


def test_memory_ends_at_its_size(plant: Plant) -> None:
    node = plant(Node(devices=(Device(memory_mib=3 * 1024 + 400),)))  # 300 MiB are the context's
    assert answers(node, "memory") == {"answers": [0, 0, OUT_OF_MEMORY, OUT_OF_MEMORY]}


def test_copies_take_their_links(plant: Plant, random_values: random.Random) -> None:
    host, near, far = (random_values.uniform(2, 20) for _ in range(3))
    unlike = UnlikeLink(devices=(0, 2), kind="pcie", gb_per_s=far, latency_us=9, peer=False)
    node = plant(
        Node(host_gb_per_s=host, links=Links(gb_per_s=near, latency_us=3, unlike=(unlike,)))
    )
    assert answers(node, "copies") == {"same": True, "peers": [0, 1, 0]}
    work = node.truth().work
    assert list(work["name"]) == ["htod", "ptop", "ptop", "dtoh"]
    staged = min(host, far) / 2  # without peer access, through the host
    planted_us = [
        1.5 + MIB / host / 1000,
        3 + MIB / near / 1000,
        9 + MIB / staged / 1000,
        1.5 + MIB / host / 1000,
    ]
    assert list((work["end_ns"] - work["start_ns"]) / 1000) == pytest.approx(planted_us, abs=0.01)


def test_kernels_of_a_slow_device(plant: Plant, random_values: random.Random) -> None:
    kernel_us, slowdown = random_values.uniform(100, 900), random_values.uniform(1.1, 3)
    times = Kernels(by_name=(KernelTime(name="planted", us=kernel_us),))
    node = plant(Node(devices=(Device(), Device(slowdown=slowdown)), kernels=times))
    answers(node, "kernels")
    work = node.truth().work
    planted_us = [kernel_us] * 3 + [kernel_us * slowdown] * 3
    assert list((work["end_ns"] - work["start_ns"]) / 1000) == pytest.approx(planted_us, abs=0.01)
    starts, ends = work["start_ns"], work["end_ns"]
    assert (starts.iloc[[1, 2]].to_numpy() >= ends.iloc[[0, 1]].to_numpy()).all()


def test_broken_devices(plant: Plant) -> None:
    broken = Fault(kind="launch", device=1, error=NO_KERNEL_IMAGE)
    failing = Fault(kind="sticky", device=0, after=1, error=LAUNCH_FAILURE)
    node = plant(Node(devices=(Device(),) * 3, faults=(broken, failing)))
    sticky = [0, LAUNCH_FAILURE, LAUNCH_FAILURE, LAUNCH_FAILURE]
    image = [NO_KERNEL_IMAGE, NO_KERNEL_IMAGE, NO_KERNEL_IMAGE, 0]
    assert answers(node, "kernels") == {"answers": {"0": sticky, "1": image, "2": [0, 0, 0, 0]}}
    assert answers(node, "kernels", RANK="3") == {
        "answers": {"0": sticky, "1": image, "2": [0, 0, 0, 0]}
    }
    of_rank = plant(
        Node(devices=(Device(),), faults=(Fault(kind="lost", rank=1, after=2, error=UNAVAILABLE),))
    )
    assert answers(of_rank, "kernels", RANK="0") == {"answers": {"0": [0, 0, 0, 0]}}
    assert answers(of_rank, "kernels", RANK="1") == {
        "answers": {"0": [0, 0, UNAVAILABLE, UNAVAILABLE]}
    }


def test_a_late_host_sleeps_before_its_kernel(plant: Plant) -> None:
    node = plant(Node(host_delays=(HostDelay(rank=1, kernel="late", us=300_000),)))
    on_time, late = answers(node, "late_host", RANK="0"), answers(node, "late_host", RANK="1")
    assert late["late_s"] >= 0.3
    assert max(late["other_s"], on_time["late_s"]) < 0.3


def test_collectives_that_fail(plant: Plant) -> None:
    healthy = plant(Node())
    assert answers(healthy, "collective") == {"ended": [0, 0], "error": 0, "aborted": [0, 0]}
    hanging = plant(Node(faults=(Fault(kind="never_arrives", rank=0),)))
    assert answers(hanging, "collective") == {
        "ended": [NOT_READY, NOT_READY],
        "error": 0,
        "aborted": [0, 0],
    }
    failing = plant(Node(faults=(Fault(kind="async_error", rank=0, after=1, error=REMOTE_ERROR),)))
    assert answers(failing, "collective") == {
        "ended": [NOT_READY, NOT_READY],
        "error": REMOTE_ERROR,
        "aborted": [0, 0],
    }
