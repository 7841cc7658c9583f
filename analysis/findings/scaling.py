"""Scaling of a run in tables and findings: strong or weak, the target efficiency, and the fitted laws."""

from collections.abc import Iterator, Sequence

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.scaling import ScalingChoice, ScalingPoint, ScalingSeries
from dpscope.analysis.findings.strategy_gaps import range_said
from dpscope.analysis.stats.samples import Estimate, verdict
from dpscope.analysis.stats.scaling_laws import FARTHEST_FACTOR, predicted_speedup
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, Unit, show
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

_RATIO, _SHARE, _FRACTION = Unit("x", 1.0, 2), Unit("%", 0.01, 1), Unit("", 1.0, 3)
_SUPERLINEAR = 1.1  # times the number of devices: what few steps differ by anyway is no finding
_LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}


def scaling_table(comparison: Comparison) -> TextTable | None:
    """A row for each cell against one device; None without a single-device cell to stand against."""
    points = [point for series in comparison.scaling for point in series.points]
    rows = [
        (
            series.label,
            str(point.devices),
            *(show(value, _RATIO) for value in (point.speedup.value, point.speedup.low, point.speedup.high)),
            show(point.efficiency.value, _SHARE),
            show(point.serial_fraction, _FRACTION),
        )
        for series in comparison.scaling
        for point in series.points
    ]
    if not rows:
        return None
    return TextTable(
        title="Scaling: speedup against one device",
        headings=("series", "devices", "speedup [x]", "low", "high", "eff. [%]", "Karp-Flatt"),
        rows=tuple(rows),
        notes=(
            "low, high: 95% interval; Karp-Flatt: the serial fraction that alone would explain this speedup. If it grows as "
            "devices are added, the loss is overhead such as communication, not serial code.",
            *_why_missing(points),
        ),
    )


def _why_missing(points: Sequence[ScalingPoint]) -> list[str]:
    no_interval = [point.cell for point in points if point.speedup.low is None]
    slower = [point.cell for point in points if point.serial_fraction is None]
    return [
        f"{NA} ({columns}; {', '.join(dict.fromkeys(cells))}): {reason}"
        for columns, cells, reason in (
            (
                "low, high",
                no_interval,
                "fewer than 5 timed steps, or one repeat alone, here or in the single-device cell",
            ),
            ("Karp-Flatt", slower, "slower than one device, which no serial fraction explains"),
        )
        if cells
    ]


def law_table(comparison: Comparison) -> TextTable | None:
    """Laws fitted to series of two or more device counts, a row for each parameter; None without such a series."""
    rows: list[tuple[str, ...]] = []
    notes = [
        "one measured count gives Karp-Flatt's fraction only, two Amdahl's or Gustafson's law, three or more the USL"
    ]
    for series in comparison.scaling:
        fit = series.fit
        if fit is None or fit.law == "karp_flatt":
            continue
        farthest = FARTHEST_FACTOR * fit.largest_devices
        prediction = predicted_speedup(fit, farthest)
        entries = [(name.replace("_", " "), value, _FRACTION) for name, value in fit.parameters.items()]
        entries.append((f"speedup on {farthest}", prediction.speedup, _RATIO))
        rows += [
            (series.label, _LAWS[fit.law], name, *(show(one, unit) for one in (value.value, value.low, value.high)))
            for name, value, unit in entries
        ]
        why = "; ".join(dict.fromkeys(note for note in (fit.note, prediction.note) if note))
        error = show(fit.worst_relative_error, _SHARE)
        notes.append(f"{series.label}: at most {error}% from a measured speedup{f'; {why}' if why else ''}")
    if not rows:
        return None
    return TextTable(
        title="Scaling laws fitted to these points, and what they predict at twice the largest count",
        headings=("series", "law", "parameter", "value", "low", "high"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def scaling_findings(comparison: Comparison) -> Iterator[Finding]:
    """Strong against weak, and the target efficiency."""
    for choice in comparison.choices:
        yield strong_or_weak(choice)
    yield from superlinear_findings(comparison)
    if comparison.target_efficiency is not None:
        yield from judge_target(comparison.scaling, comparison.target_efficiency)


def superlinear_findings(comparison: Comparison) -> Iterator[Finding]:
    """A warning for each cell that is more than N times as fast as one device; without an interval from a tenth more."""
    speedups = {
        point.cell: (point.devices, point.speedup, "one device")
        for series in comparison.scaling
        for point in series.points
    }
    devices = (
        dict(zip(comparison.table["cell"], comparison.table["devices"], strict=True)) if len(comparison.table) else {}
    )
    for cell, speedup in comparison.over_itself.items():
        speedups.setdefault(cell, (int(devices[cell]), speedup, "one device under the same strategy"))
    for cell, (count, speedup, baseline) in speedups.items():
        shown = verdict(speedup, count)
        if shown == "above" or (shown == "too_few_samples" and (speedup.value or 0.0) > _SUPERLINEAR * count):
            yield EstimateCode.SUPERLINEAR_SPEEDUP.finding(
                f"{cell}: {speedup.value:.2f}x the throughput of {baseline} on {counted(count, 'device')}{range_said(speedup)}",
                "measure one device again, with the same threads and no other load, before using this speedup",
            )


def strong_or_weak(choice: ScalingChoice) -> Finding:
    """Which way of reading the same batch number trains more samples per second, and by how much."""
    name = f"{traits_of(choice.strategy).label} on {counted(choice.devices, 'device')}, batch {choice.batch_size}"
    keeping = {
        "weak": f"keeping {counted(choice.batch_size, 'sample')} per device",
        "strong": f"splitting {choice.batch_size} over all devices",
    }
    ratio, shown = choice.ratio, verdict(choice.ratio)
    interval = f"95% interval {ratio.low:.2f} to {ratio.high:.2f}" if ratio.low is not None else ""
    if shown == "too_few_samples":
        said = "too few steps or repeats to say whether strong or weak scaling is better"
    elif shown == "no_difference_shown":
        said = f"no difference between strong and weak scaling is shown (ratio {ratio.value:.2f}, {interval})"
    else:
        better, worse = ("weak", "strong") if shown == "above" else ("strong", "weak")
        times, low, high = ratio.value or 1.0, ratio.low or 1.0, ratio.high or 1.0
        if shown == "below":
            times, low, high = 1 / times, 1 / high, 1 / low
        said = (
            f"{keeping[better]} gives {times:.2f}x the throughput of {keeping[worse]} (95% interval {low:.2f} to {high:.2f}; "
            f"{choice.weak} against {choice.strong})"
        )
    return RunCode.STRONG_OR_WEAK.finding(message=f"{name}: {said}")


def judge_target(scaling: Sequence[ScalingSeries], target: float) -> Iterator[Finding]:
    """Whether each series reaches a target efficiency (0..1), by the intervals of its points.

    A point reaches the target if its whole interval does, misses it if all of it lies below, and else it is not shown.
    """
    for series in scaling:
        said, missed = [], False
        for point in series.points:
            shown = verdict(point.efficiency, target)
            words = {
                "above": "reached on",
                "below": "missed on",
                "no_difference_shown": "not shown either way on",
                "too_few_samples": "too few steps or repeats to say on",
            }[shown]
            missed |= shown == "below"
            said.append(f"{words} {counted(point.devices, 'device')} ({_with_percent(point.efficiency)})")
        yield RunCode.TARGET_EFFICIENCY.finding(
            message=f"{series.label}: target efficiency {target:.0%}: {'; '.join(said)}",
            next_step="use fewer devices, a larger batch per device, or find what the exposed time is spent on"
            if missed
            else "no action needed, or time more repeats where it is not shown",
            severity="warning" if missed else "info",
        )


def _with_percent(estimate: Estimate) -> str:
    value = f"{estimate.value:.0%}" if estimate.value is not None else "NA"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value}, {estimate.low:.0%} to {estimate.high:.0%}"
