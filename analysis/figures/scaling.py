"""Speedup and efficiency over devices: measured with intervals, ideal and fitted laws with bands."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.scaling import ScalingSeries
from dpscope.analysis.figures.colours import COLOURS
from dpscope.analysis.figures.style import MARKERS, new_figure
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.scaling_laws import FARTHEST_FACTOR, predicted_speedup
from dpscope.profiling.records.finding import counted


def scaling(run: RunData, comparison: Comparison) -> Figure | None:
    """The run's scaling; None without a single-device cell as the baseline."""
    return draw_scaling(comparison)


def draw_scaling(comparison: Comparison) -> Figure | None:
    """Speedup on the left, efficiency on the right; bars if only one count above 1 was measured, else lines."""
    if not comparison.scaling:
        return None
    figure, (left, right) = new_figure(9, columns=2)
    counts = sorted({1, *(point.devices for series in comparison.scaling for point in series.points)})
    right.axhline(100, color="black", linestyle=":")
    if comparison.target_efficiency is not None:
        right.axhline(
            100 * comparison.target_efficiency, color=COLOURS["target"], linestyle="-.", label="target efficiency"
        )
    if len(counts) == 2:  # a line through one point shows no more than a bar
        left.axhline(counts[-1], color="black", linestyle=":", label="ideal")
        _bars(left, comparison.scaling, by_devices=False)
        _bars(right, comparison.scaling, by_devices=True)
    else:
        left.plot(counts, counts, color="black", linestyle=":", label="ideal")
        _lines(left, comparison.scaling, counts, by_devices=False)
        _lines(right, comparison.scaling, counts, by_devices=True)
    for axes, label in ((left, "speedup"), (right, "efficiency [%]")):
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    handles, labels = left.get_legend_handles_labels()
    more, more_labels = right.get_legend_handles_labels()
    once = dict(zip([*labels, *more_labels], [*handles, *more], strict=True))
    figure.legend(list(once.values()), list(once), loc="outside lower center", ncols=3)
    figure.suptitle("Speedup and efficiency against one device, with 95% intervals", x=0.01, ha="left", fontsize=11)
    return figure


def _lines(axes: Axes, several: Sequence[ScalingSeries], counts: list[int], by_devices: bool) -> None:
    """Weak series solid, strong ones dashed; laws up to twice the largest measured count."""
    for index, series in enumerate(several):
        _measured(axes, series, MARKERS[index % len(MARKERS)], by_devices)
        _law(axes, series, by_devices)
    axes.set_xlabel("devices")
    axes.set_xticks(counts)


def _style(series: ScalingSeries) -> dict[str, Any]:
    return {"color": COLOURS[series.strategy], "linestyle": "-" if series.scaling == "weak" else "--"}


def _measured(axes: Axes, series: ScalingSeries, marker: str, by_devices: bool) -> None:
    """Points connected from one device on; whiskers are intervals."""
    devices = np.array([1, *(point.devices for point in series.points)], dtype=float)
    estimates = [point.speedup for point in series.points]
    scale = 100 / devices if by_devices else np.ones(len(devices))
    values = np.array([1.0, *(one.value or np.nan for one in estimates)])
    below = [0.0, *(max(0.0, (one.value or 0.0) - one.low) if one.low is not None else 0.0 for one in estimates)]
    above = [0.0, *(max(0.0, one.high - (one.value or 0.0)) if one.high is not None else 0.0 for one in estimates)]
    axes.errorbar(
        devices,
        values * scale,
        yerr=[np.array(below) * scale, np.array(above) * scale],
        marker=marker,
        capsize=2,
        label=None if by_devices else series.label,
        **_style(series),
    )


def _bars(axes: Axes, several: Sequence[ScalingSeries], by_devices: bool) -> None:
    """A bar for each series of the one count above 1, with its interval; strong series are hatched."""
    for index, series in enumerate(several):
        (point,) = series.points
        estimate, scale = (point.efficiency, 100.0) if by_devices else (point.speedup, 1.0)
        value = estimate.value or np.nan
        axes.bar(
            index,
            value * scale,
            width=0.6,
            color=COLOURS[series.strategy],
            hatch="//" if series.scaling == "strong" else None,
            edgecolor="white",
        )
        if estimate.low is not None and estimate.high is not None:
            ends = [[max(0.0, value - estimate.low) * scale], [max(0.0, estimate.high - value) * scale]]
            axes.errorbar(index, value * scale, yerr=ends, color="black", capsize=3)
    devices = several[0].points[0].devices
    axes.set_xlabel(counted(devices, "device"))
    axes.set_xticks(range(len(several)), [_wrapped(series.label) for series in several])


def _wrapped(label: str) -> str:
    """A series' label on three lines (strategy, scaling, batch), so that the labels of four bars do not overlap."""
    for scaling in (" weak, ", " strong, "):
        label = label.replace(scaling, f"\n{scaling.strip(' ,')}\n")
    return label


def _law(axes: Axes, series: ScalingSeries, by_devices: bool) -> None:
    """The fitted law with its band, within its range; none for a single count."""
    if series.fit is None or series.fit.law == "karp_flatt":
        return
    counts = list(range(1, FARTHEST_FACTOR * series.fit.largest_devices + 1))
    predictions = [predicted_speedup(series.fit, count).speedup for count in counts]
    if any(one.value is None for one in predictions):
        return
    scale = 100 / np.array(counts) if by_devices else np.ones(len(counts))
    axes.plot(
        counts, [one.value or np.nan for one in predictions] * scale, color=COLOURS[series.strategy], linewidth=0.8
    )
    if all(one.low is not None and one.high is not None for one in predictions):
        low = np.array([one.low for one in predictions], dtype=float) * scale
        high = np.array([one.high for one in predictions], dtype=float) * scale
        axes.fill_between(counts, low, high, color=COLOURS[series.strategy], alpha=0.15, linewidth=0)
