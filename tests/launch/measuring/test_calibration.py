"""What a run times before its cells: which collectives, on how many devices, at which sizes; and what is there already."""

import msgspec

from dpscope.launch.jobs.devices import Devices
from dpscope.launch.measuring.calibration import calibrated_sizes, calibration_seconds, plan_calibration
from dpscope.launch.planning.cells import make_plan, resolve
from dpscope.launch.planning.run_config import load_config
from dpscope.launch.workload.model_size import SIZES, ModelSize
from dpscope.profiling.records.calibration import Calibration, CalibrationPoint, CalibrationSettings
from tests.helpers.run_cells import calibration

RESNET = SIZES["resnet18_cifar"]  # 11,173,962 parameters: 44.7 MB of gradients


def planned(kind: str, stored: Calibration | None = None, **flags: object) -> CalibrationSettings | None:
    config = load_config(None, {"devices": "1,2,4", "batch_size": "8", **flags})
    devices = Devices(kind="cuda", count=4) if kind == "cuda" else Devices(kind="cpu", count=None)
    resolved = resolve(config, devices)
    plan = make_plan(resolved.matrix, resolved.workload.samples, devices.kind)
    return plan_calibration(plan, resolved, devices.kind, RESNET, stored)


def holding(*pairs: tuple[str, int]) -> Calibration:
    points = tuple(
        CalibrationPoint(collective=kind, devices=count, size_bytes=8, count=2, dtype="float32", times_us=(1.0,))  # type: ignore[arg-type]
        for kind, count in pairs
    )
    return msgspec.structs.replace(calibration({}), points=points)


def test_each_strategy_has_its_collectives_timed() -> None:
    ddp = planned("cuda", strategy="single,ddp")
    assert ddp is not None
    assert (ddp.devices, ddp.collectives) == ((2, 4), ("all_reduce", "broadcast"))
    both = planned("cuda")
    assert both is not None
    assert both.collectives == ("all_reduce", "broadcast", "reduce")
    on_cpu = planned("cpu")  # dp-host uses no link
    assert on_cpu is not None
    assert on_cpu.collectives == ("all_reduce", "broadcast")
    without_buffers = planned("cpu", broadcast_buffers="off")
    assert without_buffers is not None
    assert without_buffers.collectives == ("all_reduce",)


def test_nothing_is_timed_that_is_not_needed_or_not_wanted() -> None:
    assert planned("cpu", strategy="single,dp") is None
    assert planned("cpu", devices="1") is None
    assert planned("cpu", calibrate=False) is None


def test_only_what_the_folder_lacks_is_timed() -> None:
    pairs = [(kind, count) for kind in ("all_reduce", "broadcast") for count in (2, 4)]
    assert planned("cpu", holding(*pairs)) is None
    rest = planned("cpu", holding(*pairs[:3]))
    assert rest is not None
    assert (rest.devices, rest.collectives) == ((4,), ("broadcast",))
    logs = msgspec.structs.replace(holding(), source="nccl-tests")
    assert planned("cpu", logs) is None  # the user's word


def test_sizes_lie_around_the_buckets() -> None:
    matrix = resolve(load_config(None, {"device": "cpu"}), Devices(kind="cpu", count=None)).matrix
    # 25 MiB buckets: 4 KiB, 64 KiB, and 1/8, 1/4, 1/2 of 25 MiB and all of it
    assert [size >> 10 for size in calibrated_sizes(matrix, RESNET)] == [4, 64, 3200, 6400, 12800, 25600]
    # 100,000 parameters are 400,000 B, less than 8 x 64 KiB
    small = calibrated_sizes(matrix, ModelSize(parameters=100_000, multiplications=None))
    assert [size >> 10 for size in small] == [4, 64, 128, 256, 512]
    whole = msgspec.structs.replace(matrix, overlap=("on", "off"))
    assert calibrated_sizes(whole, RESNET)[-1] == 44_695_848 >> 10 << 10  # one bucket
    huge = ModelSize(parameters=10**9, multiplications=None)
    assert calibrated_sizes(whole, huge)[-1] == 64 << 20


def test_it_takes_seconds() -> None:
    one = planned("cpu", devices="1,2")
    assert one is not None
    assert one.sizes == one.chosen_sizes
    # 50.1 MB at 6 sizes x 13 calls x 2 collectives over 0.5 GB/s: 2.6 s; 26.2 MB x 5 calls x 10 iterations: 2.6 s; 5 s to start
    assert 10 < calibration_seconds(one) < 10.5
