"""How much of a device a cell uses: FLOPs a second, and their share of what the device is specified to compute."""

from dpscope.analysis.cells.row import Row
from dpscope.analysis.runs.cell_data import CellData
from dpscope.profiling.machine.gpu_speed import FP32, HALF, TF32, GpuSpeed, gpu_speed
from dpscope.profiling.records.run import Precision, StepFlops

_BOUNDS: dict[Precision, int] = {"fp32": FP32, "tf32": TF32, "half": HALF}


def put_device_use(row: Row, data: CellData) -> None:
    """`flops_per_step` of one device, `achieved_tflops` over the untraced step, `mfu` where the device's peak is known."""
    counted = next((rank.flops for _, rank in data.ranks if rank.flops is not None), None)
    flops = counted.total if counted is not None else None
    missing = (counted.missing if counted is not None else "") or "not counted: a script, or a run of an older version"
    step_us = row.number("step_us")
    achieved = flops / step_us / 1e6 if flops is not None and step_us else None
    row.put(missing, flops_per_step=flops)
    row.put("no untraced step was timed" if flops is not None else missing, achieved_tflops=achieved)
    name = next(iter(data.ranks[0][1].device_names), "this device")
    speed = gpu_speed(name)
    no_peak = missing if flops is None else f"no specified peak of {name}"
    share = None
    if speed is not None and counted is not None and flops is not None and step_us:
        share = least_step_us(counted, speed) / step_us
    row.put(no_peak, mfu=share)


def least_step_us(flops: StepFlops, speed: GpuSpeed) -> float:
    """The time that a step's FLOPs take at the peak of their precision: convolutions and other products may differ.

    1 TFLOP/s is 1e6 FLOPs a microsecond.
    """
    products = (flops.total or 0) - flops.convolutions
    rates = (speed.rate(_BOUNDS[one]) for one in (flops.product_precision, flops.convolution_precision))
    return sum(count / rate for count, rate in zip((products, flops.convolutions), rates, strict=True)) / 1e6
