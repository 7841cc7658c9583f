"""Speedup with Amdahl's law, efficiency with its target, and accuracy after training in one figure."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.scaling import ScalingSeries
from dpscope.analysis.figures.colours import COLOURS
from dpscope.analysis.figures.style import MARKERS, new_figure
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.scaling_laws import amdahl_speedup
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of


def study(run: RunData, comparison: Comparison) -> Figure | None:
    """The three panels of a run and the trainings in its folder."""
    return draw_study(comparison)


def draw_study(comparison: Comparison) -> Figure | None:
    """The three panels; None without speedups or without trainings."""
    accuracies = _accuracies(comparison)
    if not comparison.scaling or not accuracies:
        return None
    figure, (left, middle, right) = new_figure(8, width=10.0, columns=3)
    counts = sorted({1, *(point.devices for series in comparison.scaling for point in series.points)})
    left.plot(counts, counts, color="black", linestyle=":", label="ideal")
    for index, series in enumerate(comparison.scaling):
        marker = MARKERS[index % len(MARKERS)]
        _with_intervals(left, series, marker, 1.0)
        _with_intervals(middle, series, marker, 100.0)
        _amdahl(left, series)
    if comparison.target_efficiency is not None:
        target = 100 * comparison.target_efficiency
        middle.axhline(target, color=COLOURS["target"], linestyle="-.", label="target efficiency")
    _accuracy_bars(right, accuracies)
    for axes, label in ((left, "speedup"), (middle, "efficiency [%]")):
        axes.set_xlabel("devices")
        axes.set_xticks(counts)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    labelled = {
        label: handle
        for axes in (left, middle)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(labelled.values()), list(labelled), loc="outside lower center", ncols=4)
    return figure


def _with_intervals(axes: Axes, series: ScalingSeries, marker: str, percent: float) -> None:
    """Speedups (`percent` 1), or efficiencies in percent (100), with their 95% intervals."""
    points = series.points
    estimates = [point.speedup if percent == 1 else point.efficiency for point in points]
    values = np.array([one.value or np.nan for one in estimates]) * percent
    ends = [
        [
            abs(value - end * percent) if end is not None else 0.0
            for value, end in zip(values, (getattr(one, side) for one in estimates), strict=True)
        ]
        for side in ("low", "high")
    ]
    line = "-" if series.scaling == "weak" else "--"
    axes.errorbar(
        [point.devices for point in points],
        values,
        yerr=ends,
        marker=marker,
        linestyle=line,
        capsize=2,
        color=COLOURS[series.strategy],
        label=series.label if percent == 1 else None,
    )


def _amdahl(axes: Axes, series: ScalingSeries) -> None:
    """Amdahl's law through the strong point with the most devices, with its Karp-Flatt fraction."""
    last = series.points[-1]
    if series.scaling != "strong" or last.serial_fraction is None or last.serial_fraction < 0:
        return
    devices = np.linspace(1, last.devices, 50)
    fraction = last.serial_fraction
    axes.plot(
        devices,
        [amdahl_speedup(fraction, count) for count in devices],
        color=COLOURS[series.strategy],
        linewidth=0.8,
        label=f"Amdahl, {fraction:.0%} serial",
    )


def _accuracies(comparison: Comparison) -> list[tuple[str, str, float, float, float]]:
    """Cell, strategy, test accuracy in percent, lowest and highest of its seeds; each training once."""
    bars: dict[tuple[str, int, float, float, float], tuple[str, str, float, float, float]] = {}
    for row in comparison.rows.values():
        value, low, high = row.test_accuracy_percent, row.test_accuracy_percent_min, row.test_accuracy_percent_max
        if value is None or low is None or high is None:
            continue
        label = f"{traits_of(row.strategy).label}\n{counted(row.devices, 'device')}"
        bars.setdefault((row.strategy, row.devices, value, low, high), (label, row.strategy, value, low, high))
    return list(bars.values())


def _accuracy_bars(axes: Axes, accuracies: Sequence[tuple[str, str, float, float, float]]) -> None:
    """A bar for each training with the range over seeds; the axis does not begin at 0, so that differences are visible."""
    for index, (_, strategy, value, low, high) in enumerate(accuracies):
        axes.bar(index, value, width=0.6, color=COLOURS[strategy])
        axes.errorbar(index, value, yerr=[[value - low], [high - value]], color="black", capsize=3)
        axes.annotate(f"{value:.1f}", (index, high), (0, 3), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(range(len(accuracies)), [label for label, *_ in accuracies], fontsize=7)
    axes.set_ylabel("test accuracy [%]")
    lowest, highest = min(one[3] for one in accuracies), max(one[4] for one in accuracies)
    margin = max(1.0, highest - lowest)
    axes.set_ylim(max(0.0, lowest - margin), highest + margin / 2)
