"""How much of a device a cell uses: FLOPs a second, their share of the device's peak, and where the
rest of the step goes.
"""

from collections.abc import Iterable

from dpscope.analysis.cells.identity import measured
from dpscope.analysis.cells.times import NO_STEP
from dpscope.analysis.cells.traced import compute_us, idle_us
from dpscope.analysis.cells.view import CellView, CpuPeaks, Group, if_known, once, quotient
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.traces.ranks.job import TRACES_ALONE, Job
from dpscope.profiling.machine.gpu_speed import GpuSpeed, gpu_speed
from dpscope.profiling.records.finding import grouped
from dpscope.profiling.records.run import StepFlops

NO_CPU_PEAK = "no matrix product was timed: a script, traces alone, or a run of an older version"

DEVICE = Group("device", "How much of a device is used", needs=measured)


def cpu_peaks(cells: Iterable[Job]) -> CpuPeaks:
    """The largest rate that a process of any cell measured: processes of one cell measure at the
    same time and share caches.
    """
    timed = [rank.matmul_peak for data in cells for _, rank in data.ranks]
    rates = grouped(
        ((product.dtype, product.threads), product.tflops)
        for product in timed
        if product is not None
    )
    return {kind: max(tflops) for kind, tflops in rates.items()}


@once
def on_cpu(cell: CellView) -> bool:
    """Whether its devices are CPU cores; traces of unknown devices that show none are of a CPU."""
    data = cell.data
    return data.device_name == "cpu" or (not data.ranks and not data.on_device)


def _recorded_flops(cell: CellView) -> StepFlops | None:
    return next((rank.flops for _, rank in cell.data.ranks if rank.flops is not None), None)


def _counted(cell: CellView) -> bool:
    flops = _recorded_flops(cell)
    return flops is not None and flops.total is not None


@once
def step_flops(cell: CellView) -> StepFlops:
    """The FLOPs that a run counted, else those that the user states."""
    recorded, stated = _recorded_flops(cell), cell.flops
    if recorded is not None and (_counted(cell) or stated is None):
        known(recorded.total, recorded.missing)
        return recorded
    if stated is not None:
        return StepFlops(total=round(stated.total), product_precision=stated.precision or "fp32")
    if not cell.data.ranks:
        raise Missing(f"{TRACES_ALONE} (--flops)")
    raise Missing("not counted: a script, or a run of an older version (--flops states them)")


@once
def _cpu_peak(cell: CellView) -> float:
    """TFLOP/s of matrix products, as any process of the run measured it with this type and as many
    threads.
    """
    step_flops(cell)
    peak = next(
        (rank.matmul_peak for _, rank in cell.data.ranks if rank.matmul_peak is not None), None
    )
    timed = known(peak, NO_CPU_PEAK)
    return known(cell.peaks.get((timed.dtype, timed.threads)), NO_CPU_PEAK)


@once
def least_us(cell: CellView) -> float:
    """The time that a step's FLOPs take at the device's peak."""
    flops, name = step_flops(cell), cell.data.device_name
    if on_cpu(cell):
        return (flops.total or 0) / _cpu_peak(cell) / 1e6
    speed = known(gpu_speed(name), f"no specified peak of {name or 'this device'}")
    if not _counted(cell) and cell.flops is not None and cell.flops.precision is None:
        raise Missing("the precision of the products is not stated: --flops 1.2T:bf16")
    if flops.product_precision == "bf16" and not speed.bf16:
        raise Missing(f"{name} emulates bf16: no peak of it is specified")
    return least_step_us(flops, speed)


def least_step_us(flops: StepFlops, speed: GpuSpeed) -> float:
    """The time that a step's FLOPs take at the peak of their precision: convolutions and other
    products may differ.

    1 TFLOP/s is 1e6 FLOPs a microsecond.
    """
    products = (flops.total or 0) - flops.convolutions
    rates = (
        speed.tflops(precision)
        for precision in (flops.product_precision, flops.convolution_precision)
    )
    return (
        sum(count / rate for count, rate in zip((products, flops.convolutions), rates, strict=True))
        / 1e6
    )


@once
def _used_step_us(cell: CellView) -> float:
    """The step that rates are of: the untraced one, of traces alone the traced one."""
    return cell.step_us if cell.data.ranks else cell.traced_step_us


@DEVICE.column(
    "FLOPs/step",
    "flops",
    "Of one device, forward and backward: matrix products, convolutions, attention; two a multiply-add",
)
def flops_per_step(cell: CellView) -> float:
    return known(step_flops(cell).total, "not counted")


@DEVICE.column(
    "achieved",
    "flop_rate",
    "FLOPs of a step over its median time, of one device; of traces alone over the traced step",
)
def achieved_tflops(cell: CellView) -> float:
    return quotient(cell.flops_per_step, _used_step_us(cell), NO_STEP) / 1e6


def _share_of_peak(cell: CellView) -> float:
    return quotient(least_us(cell), _used_step_us(cell), NO_STEP)


@DEVICE.column("MFU", "share", "Time of those FLOPs at the GPU's specified dense peak / step")
def mfu(cell: CellView) -> float:
    if on_cpu(cell):
        raise Missing("a CPU has no specified peak")
    return _share_of_peak(cell)


def _on_cpu(cell: CellView) -> None:
    if not on_cpu(cell):
        raise Missing("a GPU: mfu is its share of the specified peak")


@DEVICE.column(
    "CPU matmul peak",
    "flop_rate",
    "Measured CPU matmul peak in 1e12 FLOPs per second: the fastest product of square matrices in this dtype and with as "
    "many threads that a process of the run timed",
    needs=_on_cpu,
)
def cpu_peak_tflops(cell: CellView) -> float:
    return _cpu_peak(cell)


@DEVICE.column(
    "of CPU matmul peak",
    "share",
    "Achieved over the CPU matmul peak: a share of a measured peak, not the MFU of a specified one",
    needs=_on_cpu,
)
def cpu_peak_share(cell: CellView) -> float:
    return _share_of_peak(cell)


def _points(cell: CellView, time_us: float) -> float:
    """A time in points of 100, the traced step."""
    return 100 * time_us / cell.traced_step_us


def _adds_up(cell: CellView) -> None:
    """What the points need: the time at the peak, and a ledger with idle and compute."""
    for part in (least_us, idle_us, compute_us):
        part(cell)


@DEVICE.column(
    "used",
    "points",
    "Time of those FLOPs at the peak, of 100 of the traced step, to which this and the columns below add up",
    needs=_adds_up,
)
def used_points(cell: CellView) -> float:
    return _points(cell, least_us(cell))


@DEVICE.column("wait", "points", "Waiting, of 100 of the traced step", needs=_adds_up)
def lost_wait_points(cell: CellView) -> float:
    return _points(cell, cell.exposed_wait_us)


@DEVICE.column("transfer", "points", "Transfer, of 100 of the traced step", needs=_adds_up)
def lost_transfer_points(cell: CellView) -> float:
    return _points(cell, cell.exposed_transfer_us)


@DEVICE.column(
    "other", "points", "Other exposed communication, of 100 of the traced step", needs=_adds_up
)
def lost_other_points(cell: CellView) -> float:
    return _points(cell, cell.exposed_other_us)


@DEVICE.column("idle", "points", "Idle, of 100 of the traced step", needs=_adds_up)
def lost_idle_points(cell: CellView) -> float:
    return _points(cell, cell.idle_us)


@DEVICE.column("contention", "points", "Contention, of 100 of the traced step", needs=_adds_up)
def lost_contention_points(cell: CellView) -> float:
    return _points(cell, cell.contention_us)


LOST_POINTS = (
    lost_wait_points,
    lost_transfer_points,
    lost_other_points,
    lost_idle_points,
    lost_contention_points,
)


@DEVICE.column(
    "below peak",
    "points",
    "The rest of 100: compute that runs below the peak, and parts that are not known",
    needs=_adds_up,
)
def lost_below_peak_points(cell: CellView) -> float:
    lost = sum(if_known(part, cell) or 0.0 for part in LOST_POINTS)
    return 100 - cell.used_points - lost
