"""How much of a device a cell uses: FLOPs a second, their share of the device's peak, and where the rest of the step goes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpscope.analysis.cells.row import RowBuilder, ratio
from dpscope.analysis.runs.cell_data import TRACES_ALONE, CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import Estimate, pooled_median, pooled_spread, ratio_estimate
from dpscope.analysis.text.text_table import Field, TextTable, estimate_fields, table_of
from dpscope.analysis.text.units import Unit, choose_unit
from dpscope.profiling.machine.gpu_speed import FP32, HALF, TF32, GpuSpeed, StatedFlops, gpu_speed
from dpscope.profiling.records.run import Precision, StepFlops

CpuPeaks = Mapping[tuple[str, int], float]
"""The largest measured rate of matrix products in TFLOP/s, by dtype and threads."""

_BOUNDS: dict[Precision, int] = {"fp32": FP32, "tf32": TF32, "half": HALF}
_LOST = {  # column -> part of the ledger
    "lost_wait_points": "exposed_wait",
    "lost_transfer_points": "exposed_transfer",
    "lost_other_points": "exposed_other",
    "lost_idle_points": "idle",
    "lost_contention_points": "contention",
}
POINTS = ("used_points", *_LOST, "lost_below_peak_points")
"""Columns that add up to 100, the traced step; an unknown part is in the last one."""


@dataclass(frozen=True)
class DeviceWork:
    """One device's FLOPs in a step and the time that they take at its peak; None is unknown, for the reason given."""

    flops: float | None
    on_cpu: bool
    least_us: float | None = None
    cpu_peak_tflops: float | None = None
    no_flops: str = ""
    no_peak: str = ""


def cpu_peaks(cells: Iterable[CellData]) -> CpuPeaks:
    """The largest rate that a process of any cell measured: processes of one cell measure at the same time and share caches."""
    peaks: dict[tuple[str, int], float] = {}
    for data in cells:
        for _, rank in data.ranks:
            if (one := rank.matmul_peak) is not None:
                peaks[one.dtype, one.threads] = max(one.tflops, peaks.get((one.dtype, one.threads), 0.0))
    return peaks


def device_work(data: CellData, peaks: CpuPeaks, stated: StatedFlops | None = None) -> DeviceWork:
    """The FLOPs that a run counted, else those that the user states."""
    ranks = [rank for _, rank in data.ranks]
    name = data.device_name
    on_cpu = name == "cpu" or (not ranks and not data.on_device)
    counted = next((rank.flops for rank in ranks if rank.flops is not None), None)
    no_precision = ""
    if stated is not None and (counted is None or counted.total is None):
        counted = StepFlops(total=round(stated.total), product_precision=stated.precision or "fp32")
        no_precision = "" if stated.precision else "the precision of the products is not stated: --flops 1.2T:bf16"
    if counted is None or counted.total is None:
        why = "not counted: a script, or a run of an older version (--flops states them)"
        why = counted.missing if counted is not None else why if ranks else f"{TRACES_ALONE} (--flops)"
        return DeviceWork(None, on_cpu, no_flops=why, no_peak=why)
    if on_cpu:
        timed = next((rank.matmul_peak for rank in ranks if rank.matmul_peak is not None), None)
        peak = peaks.get((timed.dtype, timed.threads)) if timed is not None else None
        least_us = counted.total / peak / 1e6 if peak else None
        why = "no matrix product was timed: a script, traces alone, or a run of an older version"
        return DeviceWork(counted.total, True, least_us, peak, no_peak=why)
    speed = gpu_speed(name)
    if speed is None or no_precision:
        why = no_precision if speed is not None else f"no specified peak of {name or 'this device'}"
        return DeviceWork(counted.total, False, no_peak=why)
    return DeviceWork(counted.total, False, least_step_us(counted, speed))


def least_step_us(flops: StepFlops, speed: GpuSpeed) -> float:
    """The time that a step's FLOPs take at the peak of their precision: convolutions and other products may differ.

    1 TFLOP/s is 1e6 FLOPs a microsecond.
    """
    products = (flops.total or 0) - flops.convolutions
    rates = (speed.rate(_BOUNDS[one]) for one in (flops.product_precision, flops.convolution_precision))
    return sum(count / rate for count, rate in zip((products, flops.convolutions), rates, strict=True)) / 1e6


def put_device_use(row: RowBuilder, data: CellData, peaks: CpuPeaks, stated: StatedFlops | None = None) -> None:
    """FLOPs, their rate, its share of the peak, and the ledger in points of 100; after the step and the ledger."""
    work = device_work(data, peaks, stated)
    step_us = row.number("step_us") if data.ranks else row.number("traced_step_us")
    rate = work.flops / step_us / 1e6 if work.flops is not None and step_us else None
    row.put(work.no_flops, flops_per_step=work.flops)
    row.put(work.no_flops or "no step was timed", achieved_tflops=rate)
    share = ratio(work.least_us, step_us)
    row.put("a CPU has no specified peak" if work.on_cpu else work.no_peak, mfu=None if work.on_cpu else share)
    row.put(
        work.no_peak if work.on_cpu else "a GPU: mfu is its share of the specified peak",
        cpu_peak_tflops=work.cpu_peak_tflops,
        cpu_peak_share=share if work.on_cpu else None,
    )
    ledger = row.ledger
    if work.least_us is None or ledger is None or ledger.idle_us is None or ledger.compute_us is None:
        why = work.no_peak if work.least_us is None else row.reasons.get("idle_us", "no whole traced step")
        row.clear(POINTS, why)
        return
    used = 100 * work.least_us / ledger.traced_step_us
    lost = 0.0  # beyond `used`, what is left of 100 is compute below the peak
    for column, part in _LOST.items():
        us = getattr(ledger, f"{part}_us")
        points = None if us is None else 100 * us / ledger.traced_step_us
        row.put(row.reasons.get(f"{part}_us", ""), **{column: points})
        lost += points or 0.0
    row.put("", used_points=used, lost_below_peak_points=100 - used - lost)


@dataclass(frozen=True)
class UseChange:
    """A cell's rate and its share of the peak in two runs; `ratio` is the later rate over the earlier one, with its interval."""

    cell: str
    before_tflops: float
    after_tflops: float
    ratio: Estimate
    before_share: float | None  # of the specified peak of a GPU, of the measured one of a CPU
    after_share: float | None
    on_cpu: bool

    def record(self) -> dict[str, object]:
        """As plain data."""
        peak = "cpu_peak_share" if self.on_cpu else "mfu"
        return {
            "cell": self.cell,
            "achieved_tflops_before": self.before_tflops,
            "achieved_tflops_after": self.after_tflops,
            **{"ratio": self.ratio.value, "ratio_low": self.ratio.low, "ratio_high": self.ratio.high},
            **{f"{peak}_before": self.before_share, f"{peak}_after": self.after_share},
        }


def use_changes(before: RunData, after: RunData) -> list[UseChange]:
    """A change for each cell that was measured with known FLOPs in both runs."""
    later, changes = {data.cell.name: data for data in after.measured}, []
    pairs = [(data, later[data.cell.name]) for data in before.measured if data.cell.name in later]
    spread = pooled_spread(one.step_samples() for pair in pairs for one in pair)
    peaks = cpu_peaks(before.measured), cpu_peaks(after.measured)
    for pair in pairs:
        first, second = (device_work(data, known) for data, known in zip(pair, peaks, strict=True))
        steps_us = [pooled_median(data.step_samples()) for data in pair]
        if first.flops is None or second.flops is None or not steps_us[0] or not steps_us[1]:
            continue
        faster = ratio_estimate(pair[0].step_samples(), pair[1].step_samples(), spread)
        changes.append(
            UseChange(
                cell=pair[0].cell.name,
                before_tflops=first.flops / steps_us[0] / 1e6,
                after_tflops=second.flops / steps_us[1] / 1e6,
                ratio=faster.times(second.flops / first.flops),
                before_share=ratio(first.least_us, steps_us[0]),
                after_share=ratio(second.least_us, steps_us[1]),
                on_cpu=second.on_cpu,
            )
        )
    return changes


def use_table(changes: Sequence[UseChange]) -> TextTable | None:
    """A row per cell; None without any."""
    if not changes:
        return None
    rate, ratio_unit = choose_unit("flop_rate", [one.before_tflops for one in changes]), Unit("", 1.0, 3)
    peaks = sorted({"measured CPU matmul peak" if one.on_cpu else "GPU's specified peak (MFU)" for one in changes})
    return table_of(
        f"How much of a device is used: the rate and its share of the {' or '.join(peaks)}",
        (
            Field("cell", "cell"),
            Field("before", "before_tflops", rate),
            Field("after", "after_tflops", rate),
            *estimate_fields("ratio", ratio_unit),
            Field("share before", "before_share", "share"),
            Field("after", "after_share", "share"),
        ),
        changes,
        ["ratio: after / before, with its 95% interval"],
    )
