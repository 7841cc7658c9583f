"""Speedup and efficiency over devices, and step time and throughput over the batch."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.scaling import ScalingSeries
from dpscope.analysis.cells.view import interval_ends
from dpscope.analysis.figures.style import (
    COLOURS,
    MARKERS,
    downwards,
    new_figure,
    whiskers,
    write_next_to,
)
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.stats.scaling_laws import FARTHEST_FACTOR, predicted_speedup
from dpscope.analysis.text.units import choose_unit
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import counted

TARGET, LAW, BAND = "target efficiency", "fitted law", "interval of the law"
"""Labels of what not every figure has."""
_ASIDE = 1.04  # by which the batches of neighbouring series differ as drawn
_TARGET_LINE: dict[str, Any] = {"color": "black", "linestyle": "-."}


def draw_scaling(comparison: Comparison) -> Figure | None:
    """Bars of speedup if only one count above 1 was measured, else lines of speedup on the left and
    efficiency on the right.

    Weak series are solid, strong ones dashed or hatched; laws go up to twice the largest measured
    count. None without a single-device cell as the baseline, and of one bar.
    """
    counts = {point.devices for series in comparison.scaling for point in series.points}
    if not counts:
        return None
    if len(counts) == 1:  # a line through one point shows no more than a bar
        return _bars(comparison, counts.pop())
    figure, (left, right) = new_figure(9, columns=2)
    ticks = [1, *sorted(counts)]
    left.plot(ticks, ticks, color="black", linestyle=":", label="ideal")
    right.axhline(100, color="black", linestyle=":")
    if (target := comparison.target_efficiency) is not None:
        right.axhline(100 * target, label=TARGET, **_TARGET_LINE)
    for axes, by_devices in ((left, False), (right, True)):
        for index, series in enumerate(comparison.scaling):
            _measured(axes, series, MARKERS[index % len(MARKERS)], by_devices)
            _law(axes, series, by_devices)
        axes.set_xlabel("devices")
        axes.set_xticks(ticks)
        axes.set_ylabel("efficiency [%]" if by_devices else "speedup")
        axes.set_ylim(bottom=0)
    return figure


def _measured(axes: Axes, series: ScalingSeries, marker: str, by_devices: bool) -> None:
    """Speedups, or `by_devices` efficiencies in percent, with intervals as whiskers; connected from
    one device on.
    """
    speedups = [Estimate(1.0, 1.0, 1.0, 0), *(point.speedup for point in series.points)]
    devices = np.array([1, *(point.devices for point in series.points)], dtype=float)
    scale = 100 / devices if by_devices else np.ones(len(devices))
    values = [speedup.value for speedup in speedups]
    spread = whiskers(
        values, [speedup.low for speedup in speedups], [speedup.high for speedup in speedups]
    )
    axes.errorbar(
        devices,
        np.array(values, dtype=float) * scale,
        yerr=spread * scale,
        marker=marker,
        capsize=2,
        label=series.label,
        color=COLOURS[series.strategy],
        linestyle="-" if series.scaling == "weak" else "--",
    )


def _bars(comparison: Comparison, devices: int) -> Figure | None:
    """A bar with its interval and values for each series of one device count; strong series are
    hatched.
    """
    if len(comparison.scaling) < 2:
        return None
    figure, (axes,) = new_figure(len(comparison.scaling))
    for row, series in enumerate(comparison.scaling):
        speedup = series.points[0].speedup
        value = speedup.value or np.nan
        axes.barh(
            row,
            value,
            height=0.6,
            color=COLOURS[series.strategy],
            edgecolor="white",
            hatch="\\\\" if series.scaling == "strong" else None,
        )
        spread = whiskers([value], [speedup.low], [speedup.high])
        axes.errorbar(value, row, xerr=spread, fmt="none", color="black", capsize=3)
        write_next_to(axes, row, f"{value:.3g}x, {value / devices:.1%}")
    axes.axvline(devices, color="black", linestyle=":", label=f"ideal: {devices}x, 100%")
    if (target := comparison.target_efficiency) is not None:
        axes.axvline(target * devices, label=TARGET, **_TARGET_LINE)
    axes.set_yticks(range(len(comparison.scaling)), [scaled.label for scaled in comparison.scaling])
    axes.set_xlim(left=0)
    downwards(axes, f"speedup on {counted(devices, 'device')}")
    return figure


def _law(axes: Axes, series: ScalingSeries, by_devices: bool) -> None:
    """The fitted law with its band, within its range; none for a single count."""
    if series.fit is None or series.fit.law == "karp_flatt":
        return
    counts = np.arange(1, FARTHEST_FACTOR * series.fit.largest_devices + 1)
    predictions = [predicted_speedup(series.fit, int(count)).speedup for count in counts]
    if any(prediction.value is None for prediction in predictions):
        return
    scale = 100 / counts if by_devices else np.ones(len(counts))
    ends = [(prediction.value, prediction.low, prediction.high) for prediction in predictions]
    values, low, high = np.array(ends, dtype=float).T * scale
    axes.plot(counts, values, color=COLOURS[series.strategy], linewidth=0.8, label=LAW)
    if not np.isnan((low, high)).any():
        axes.fill_between(
            counts, low, high, color=COLOURS[series.strategy], alpha=0.15, linewidth=0, label=BAND
        )


def batch_figure(run: RunData, comparison: Comparison) -> Figure | None:
    """Step time and throughput by batch, a line per strategy, devices (with their nodes) and
    variant; None for one batch size.

    A cross at the bottom of the axes marks a batch at which memory ran out.
    """
    series = _by_batch(run)
    every = [data for cells in series.values() for data in cells]
    batches = sorted({data.cell.batch_size for data in every})
    if len(batches) < 2:
        return None
    unit = choose_unit("time", [row.step_us for row in comparison.rows.values()])
    figure, (left, right) = new_figure(8, columns=2)
    middle = (len(series) - 1) / 2
    for index, ((strategy, where, variant), cells) in enumerate(series.items()):
        timed = [data for data in cells if data.measured]
        rows = [comparison.rows[data.name] for data in timed]
        from_middle = index - middle
        aside: float = _ASIDE**from_middle
        places = [data.cell.batch_size * aside for data in timed]
        full = [data.cell.batch_size for data in cells if ran_out_of_memory(data)]
        for axes, column, divisor in (
            (left, "step_us", unit.divisor),
            (right, "samples_per_s", 1.0),
        ):
            values, low, high = (
                [row.number(name) for row in rows] for name in (column, *interval_ends(column))
            )
            axes.errorbar(
                places,
                np.array(values, dtype=float) / divisor,
                yerr=whiskers(values, low, high) / divisor,
                capsize=2,
                color=COLOURS[strategy],
                marker=MARKERS[index % len(MARKERS)],
                linestyle=_line(len(rows), variant),
                label=f"{strategy}, {where}{f' ({variant})' if variant else ''}",
            )
            if full:
                axes.plot(
                    full,
                    [0.04 + 0.05 * index] * len(full),
                    transform=axes.get_xaxis_transform(),
                    linestyle="",
                    marker="x",
                    markersize=8,
                    markeredgewidth=2,
                    color=COLOURS[strategy],
                    clip_on=False,
                    label=f"{strategy}, {where}: out of memory",
                )
    for axes, label in ((left, f"median step [{unit.label}]"), (right, "samples/s")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, labels=[str(batch) for batch in batches])
        axes.minorticks_off()
        axes.set_xlabel("batch per device")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    return figure


def _by_batch(run: RunData) -> dict[tuple[str, str, str], list[Job]]:
    """The cells of each strategy, number of devices and variant, by their batches."""
    series: dict[tuple[str, str, str], list[Job]] = {}
    planned = [data for data in run.cells.values() if data.plan is not None]
    for data in sorted(planned, key=lambda data: data.cell.batch_size):
        if data.measured or ran_out_of_memory(data):
            over = f" over {data.nodes} nodes" if data.nodes > 1 else ""
            where = f"{counted(data.devices, 'device')}{over}"
            series.setdefault((data.strategy, where, data.variant), []).append(data)
    return series


def _line(points: int, variant: str) -> str:
    """The line between points; none for a single one."""
    if points < 2:
        return ""
    return "--" if variant else "-"


def ran_out_of_memory(data: Job) -> bool:
    return any(result.status == "out_of_memory" for result in data.results)
