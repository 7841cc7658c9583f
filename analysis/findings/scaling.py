"""Tables and findings about scaling: strong compared with weak, the target efficiency, the fitted laws."""

from collections.abc import Iterator, Sequence

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.scaling import ScalingChoice, ScalingSeries
from dpscope.analysis.findings.strategy_costs import bounds, in_brackets
from dpscope.analysis.stats.samples import Verdict, verdict
from dpscope.analysis.stats.scaling_laws import FARTHEST_FACTOR, predicted_speedup
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import NA, Unit, show
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

_RATIO, _SHARE, _FRACTION = Unit("x", 1.0, 2), Unit("%", 0.01, 1), Unit("", 1.0, 3)
_SUPERLINEAR = 1.1  # times the number of devices, from which on a speedup without an interval is reported
_LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}
_PLAIN_RATIO = Unit("", 1.0, 2)
_POINTS = (
    Field("series", lambda row: row[0].label),
    Field("devices", lambda row: row[1].devices),
    Field("speedup", lambda row: row[1].speedup.value, _RATIO),
    Field("low", lambda row: row[1].speedup.low, _PLAIN_RATIO),
    Field("high", lambda row: row[1].speedup.high, _PLAIN_RATIO),
    Field("eff.", lambda row: row[1].efficiency.value, _SHARE),
    Field("Karp-Flatt", lambda row: row[1].serial_fraction, _FRACTION),
)


def scaling_table(comparison: Comparison) -> TextTable | None:
    """A row for each cell compared with one device; None without a single-device cell."""
    rows = [(series, point) for series in comparison.scaling for point in series.points]
    notes = [
        "low, high: 95% interval; Karp-Flatt: the serial fraction that would explain this speedup. If it grows with the "
        "number of devices, the loss is overhead such as communication, not serial code."
    ]
    few = "fewer than 5 timed steps or only one repeat, in this or the single-device cell"
    slower = "slower than one device, which no serial fraction explains"
    for columns, cells, reason in (
        ("low, high", [point.cell for _, point in rows if point.speedup.low is None], few),
        ("Karp-Flatt", [point.cell for _, point in rows if point.serial_fraction is None], slower),
    ):
        notes += [f"{NA} ({columns}; {', '.join(dict.fromkeys(cells))}): {reason}"] if cells else []
    return table_of("Scaling: speedup over one device", _POINTS, rows, notes) if rows else None


def law_table(comparison: Comparison) -> TextTable | None:
    """Scaling laws fitted to series with at least two device counts, a row per parameter; None without such a series."""
    rows: list[tuple[str, ...]] = []
    notes = [
        "one measured count gives only the Karp-Flatt fraction, two give Amdahl's or Gustafson's law, three or more the USL"
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
        notes.append(f"{series.label}: at most {error}% from a measured speedup{why and f'; {why}'}")
    if not rows:
        return None
    title = "Scaling laws fitted to these points, and their predictions at twice the largest count"
    return TextTable(title, ("series", "law", "parameter", "value", "low", "high"), tuple(rows), tuple(notes))


def scaling_findings(comparison: Comparison) -> Iterator[Finding]:
    """Findings about strong and weak scaling, superlinear speedups and the target efficiency."""
    yield from map(strong_or_weak, comparison.choices)
    yield from superlinear_findings(comparison)
    if comparison.target_efficiency is not None:
        yield from judge_target(comparison.scaling, comparison.target_efficiency)


def superlinear_findings(comparison: Comparison) -> Iterator[Finding]:
    """A warning for each cell that is significantly more than N times as fast as one device, or 10% more without an interval."""
    points = (point for series in comparison.scaling for point in series.points)
    speedups = {point.cell: (point.devices, point.speedup, "one device") for point in points}
    speedups |= {
        cell: (comparison.rows[cell].devices, speedup, "one device under the same strategy")
        for cell, speedup in comparison.over_itself.items()
        if cell not in speedups
    }
    for cell, (count, speedup, baseline) in speedups.items():
        shown = verdict(speedup, count)
        if shown == "above" or (shown == "too_few_samples" and (speedup.value or 0.0) > _SUPERLINEAR * count):
            yield EstimateCode.SUPERLINEAR_SPEEDUP.finding(
                f"{cell}: {speedup.value:.2f}x the throughput of {baseline} on {counted(count, 'device')}{in_brackets(speedup)}",
                "measure one device again, with the same threads and no other load, before using this speedup",
            )


def strong_or_weak(choice: ScalingChoice) -> Finding:
    """Whether a batch size per device (weak) or in total (strong) has the higher throughput, and by how much."""
    variant = choice.weak.partition(f"-b{choice.batch_size}-")[2]  # both cells have it
    label = f"{traits_of(choice.strategy).label} {variant}".strip()
    name = f"{label} on {counted(choice.devices, 'device')}, batch {choice.batch_size}"
    keeping = {
        "weak": f"keeping {counted(choice.batch_size, 'sample')} per device",
        "strong": f"splitting {choice.batch_size} over all devices",
    }
    ratio, shown = choice.ratio, verdict(choice.ratio)
    text = "too few steps or repeats to determine whether strong or weak scaling is better"
    if shown == "no_difference_shown":
        interval = f"ratio {ratio.value:.2f}, {bounds(ratio)}"
        text = f"the difference between strong and weak scaling is not significant ({interval})"
    elif shown != "too_few_samples":
        better, worse = ("weak", "strong") if shown == "above" else ("strong", "weak")
        times = ratio if shown == "above" else ratio.inverse()
        cells = f"{choice.weak} compared with {choice.strong}"
        text = (
            f"{keeping[better]} gives {times.value:.2f}x the throughput of {keeping[worse]} ({bounds(times)}; {cells})"
        )
    return RunCode.STRONG_OR_WEAK.finding(f"{name}: {text}")


def judge_target(scaling: Sequence[ScalingSeries], target: float) -> Iterator[Finding]:
    """Whether each series reaches a target efficiency (0..1), by the intervals of its points.

    A point reaches the target if its whole interval does, and misses it if its whole interval lies below; otherwise the result
    is not significant.
    """
    words: dict[Verdict, str] = {
        "above": "reached on",
        "below": "missed on",
        "no_difference_shown": "not significant on",
        "too_few_samples": "unknown (too few steps or repeats) on",
    }
    for series in scaling:
        results, missed = [], False
        for point in series.points:
            shown, reached = verdict(point.efficiency, target), point.efficiency
            missed |= shown == "below"
            value = f"{reached.value:.0%}" if reached.value is not None else NA
            ends = f", {reached.low:.0%} to {reached.high:.0%}" if shown != "too_few_samples" else ""
            results.append(f"{words[shown]} {counted(point.devices, 'device')} ({value}{ends})")
        fewer = "use fewer devices, a larger batch per device, or find out what the exposed time is spent on"
        yield RunCode.TARGET_EFFICIENCY.finding(
            f"{series.label}: target efficiency {target:.0%}: {'; '.join(results)}",
            fewer if missed else "no action needed, or time more repeats where it is not significant",
            severity="warning" if missed else "info",
        )
