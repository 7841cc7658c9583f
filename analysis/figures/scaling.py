"""Speedup, efficiency and accuracy over devices, and step time and throughput over the batch."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.scaling import ScalingSeries
from dpscope.analysis.cells.view import INTERVAL
from dpscope.analysis.figures.style import (
    COLOURS,
    MARKERS,
    headline,
    new_figure,
    shared_legend,
    whiskers,
    with_intervals,
)
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.stats.scaling_laws import FARTHEST_FACTOR, amdahl_speedup, predicted_speedup
from dpscope.analysis.text.units import choose_unit
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of

_Accuracy = tuple[str, int, float, float, float]
"""Strategy, devices, test accuracy in percent, the lowest and the highest of its seeds."""


def draw_scaling(comparison: Comparison) -> Figure | None:
    """Speedup on the left, efficiency on the right; bars if only one count above 1 was measured,
    else lines.

    Weak series are solid, strong ones dashed; laws go up to twice the largest measured count. None
    without a single-device cell as the baseline.
    """
    if not comparison.scaling:
        return None
    figure, (left, right) = new_figure(9, columns=2)
    counts = _counts(comparison)
    right.axhline(100, color="black", linestyle=":")
    _target(right, comparison)
    if len(counts) == 2:  # a line through one point shows no more than a bar
        left.axhline(counts[-1], color="black", linestyle=":", label="ideal")
    else:
        left.plot(counts, counts, color="black", linestyle=":", label="ideal")
    for axes, by_devices in ((left, False), (right, True)):
        if len(counts) == 2:
            _bars(axes, comparison.scaling, by_devices)
        else:
            for index, series in enumerate(comparison.scaling):
                _measured(axes, series, MARKERS[index % len(MARKERS)], by_devices)
                _law(axes, series, by_devices)
            _by_devices(axes, counts)
        _labelled(axes, by_devices)
    shared_legend(figure, (left, right), 3)
    ends = (point.speedup.low for series in comparison.scaling for point in series.points)
    headline(figure, with_intervals("Speedup and efficiency against one device", ends))
    return figure


def _counts(comparison: Comparison) -> list[int]:
    return sorted({1, *(point.devices for series in comparison.scaling for point in series.points)})


def _by_devices(axes: Axes, counts: Sequence[int]) -> None:
    axes.set_xlabel("devices")
    axes.set_xticks(counts)


def _labelled(axes: Axes, by_devices: bool) -> None:
    axes.set_ylabel("efficiency [%]" if by_devices else "speedup")
    axes.set_ylim(bottom=0)


def _target(axes: Axes, comparison: Comparison) -> None:
    if (target := comparison.target_efficiency) is not None:
        axes.axhline(
            100 * target, color=COLOURS["target"], linestyle="-.", label="target efficiency"
        )


def _measured(
    axes: Axes, series: ScalingSeries, marker: str, by_devices: bool, from_one: bool = True
) -> None:
    """Speedups, or `by_devices` efficiencies in percent, with intervals as whiskers; connected from
    one device on.
    """
    points = [(1, Estimate(1.0, 1.0, 1.0, 0))] * from_one + [
        (one.devices, one.speedup) for one in series.points
    ]
    devices, speedups = (
        np.array([count for count, _ in points], dtype=float),
        [one for _, one in points],
    )
    scale = 100 / devices if by_devices else np.ones(len(devices))
    values = [one.value or np.nan for one in speedups]
    low, high = [one.low for one in speedups], [one.high for one in speedups]
    spread = whiskers([one.value or 0.0 for one in speedups], low, high)
    axes.errorbar(
        devices, np.array(values) * scale, yerr=spread * scale, marker=marker, capsize=2,
        label=None if by_devices else series.label, color=COLOURS[series.strategy],
        linestyle="-" if series.scaling == "weak" else "--",
    )  # fmt: skip


def _bars(axes: Axes, several: Sequence[ScalingSeries], by_devices: bool) -> None:
    """A bar for each series of the one count above 1, with its interval; strong series are
    hatched.
    """
    for index, series in enumerate(several):
        (point,) = series.points
        estimate, scale = (point.efficiency, 100.0) if by_devices else (point.speedup, 1.0)
        value, hatch = estimate.value or np.nan, "//" if series.scaling == "strong" else None
        axes.bar(
            index,
            value * scale,
            width=0.6,
            color=COLOURS[series.strategy],
            hatch=hatch,
            edgecolor="white",
        )
        if estimate.low is not None and estimate.high is not None:
            spread = whiskers([value], [estimate.low], [estimate.high]) * scale
            axes.errorbar(index, value * scale, yerr=spread, color="black", capsize=3)
    axes.set_xlabel(counted(several[0].points[0].devices, "device"))
    # Strategy, scaling and batch on three lines, so that the labels of four bars do not overlap.
    labels = (
        one.label.replace(" weak, ", "\nweak\n").replace(" strong, ", "\nstrong\n")
        for one in several
    )
    axes.set_xticks(range(len(several)), list(labels))


def _law(axes: Axes, series: ScalingSeries, by_devices: bool) -> None:
    """The fitted law with its band, within its range; none for a single count."""
    if series.fit is None or series.fit.law == "karp_flatt":
        return
    counts = np.arange(1, FARTHEST_FACTOR * series.fit.largest_devices + 1)
    predictions = [predicted_speedup(series.fit, int(count)).speedup for count in counts]
    if any(one.value is None for one in predictions):
        return
    scale = 100 / counts if by_devices else np.ones(len(counts))
    ends = [(one.value, one.low, one.high) for one in predictions]
    values, low, high = np.array(ends, dtype=float).T * scale
    axes.plot(counts, values, color=COLOURS[series.strategy], linewidth=0.8)
    if not np.isnan((low, high)).any():
        axes.fill_between(
            counts, low, high, color=COLOURS[series.strategy], alpha=0.15, linewidth=0
        )


def draw_study(comparison: Comparison) -> Figure | None:
    """The three panels of a run and the trainings in its folder; None without speedups or without
    trainings.
    """
    accuracies = _accuracies(comparison)
    if not comparison.scaling or not accuracies:
        return None
    figure, (left, middle, right) = new_figure(8, width=10.0, columns=3)
    counts = _counts(comparison)
    left.plot(counts, counts, color="black", linestyle=":", label="ideal")
    for index, series in enumerate(comparison.scaling):
        for axes in (left, middle):
            _measured(
                axes,
                series,
                MARKERS[index % len(MARKERS)],
                by_devices=axes is middle,
                from_one=False,
            )
        # Amdahl's law through the strong point with the most devices, with its Karp-Flatt fraction.
        last, serial = series.points[-1], series.points[-1].serial_fraction
        if series.scaling == "strong" and serial is not None and serial >= 0:
            devices = np.linspace(1, last.devices, 50)
            speedups, label = (
                [amdahl_speedup(serial, count) for count in devices],
                f"Amdahl, {serial:.0%} serial",
            )
            left.plot(devices, speedups, color=COLOURS[series.strategy], linewidth=0.8, label=label)
    _target(middle, comparison)
    _accuracy_bars(right, accuracies)
    for axes in (left, middle):
        _by_devices(axes, counts)
        _labelled(axes, by_devices=axes is middle)
    shared_legend(figure, (left, middle), 4)
    return figure


def _accuracies(comparison: Comparison) -> list[_Accuracy]:
    """Each training once."""
    found: dict[_Accuracy, None] = {}
    for row in comparison.rows.values():
        value, low, high = (
            row.test_accuracy_percent,
            row.test_accuracy_percent_min,
            row.test_accuracy_percent_max,
        )
        if value is not None and low is not None and high is not None:
            found[row.strategy, row.devices, value, low, high] = None
    return list(found)


def _accuracy_bars(axes: Axes, accuracies: Sequence[_Accuracy]) -> None:
    """A bar for each training with the range over seeds; the axis does not begin at 0, so that
    differences are visible.
    """
    for index, (strategy, _, value, low, high) in enumerate(accuracies):
        axes.bar(index, value, width=0.6, color=COLOURS[strategy])
        axes.errorbar(index, value, yerr=whiskers([value], [low], [high]), color="black", capsize=3)
        axes.annotate(
            f"{value:.1f}",
            (index, high),
            (0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    labels = [
        f"{traits_of(strategy).label}\n{counted(devices, 'device')}"
        for strategy, devices, *_ in accuracies
    ]
    axes.set_xticks(range(len(accuracies)), labels, fontsize=7)
    axes.set_ylabel("test accuracy [%]")
    lowest, highest = min(one[3] for one in accuracies), max(one[4] for one in accuracies)
    margin = max(1.0, highest - lowest)
    axes.set_ylim(max(0.0, lowest - margin), highest + margin / 2)


def batch_figure(run: RunData, comparison: Comparison) -> Figure | None:
    """Step time and throughput by batch, a line per strategy, devices (with their nodes) and
    variant; None for one batch size.

    A cross at the bottom of the axes marks a batch at which memory ran out.
    """
    series: dict[tuple[str, str, str], list[Job]] = {}
    for data in (one for one in run.cells.values() if one.plan is not None):
        if data.measured or ran_out_of_memory(data):
            where = f"{data.devices}" + (f" over {data.nodes} nodes" if data.nodes > 1 else "")
            series.setdefault((data.strategy, where, data.variant), []).append(data)
    batches = sorted({data.cell.batch_size for cells in series.values() for data in cells})
    if len(batches) < 2:
        return None
    unit = choose_unit("time", [row.step_us for row in comparison.rows.values()])
    figure, (left, right) = new_figure(8, columns=2)
    for index, ((strategy, where, variant), cells) in enumerate(series.items()):
        measured = sorted(
            (data for data in cells if data.measured), key=lambda data: data.cell.batch_size
        )
        rows = [comparison.rows[data.name] for data in measured]
        full = sorted(data.cell.batch_size for data in cells if ran_out_of_memory(data))
        for axes, column, divisor in (
            (left, "step_us", unit.divisor),
            (right, "samples_per_s", 1.0),
        ):
            values, low, high = (
                [row.number(name) for row in rows] for name in (column, *INTERVAL.of(column))
            )
            axes.errorbar(
                np.array([row.batch_size for row in rows], dtype=float), np.array(values, dtype=float) / divisor,
                yerr=whiskers(values, low, high) / divisor, capsize=2, color=COLOURS[strategy],
                marker=MARKERS[index % len(MARKERS)], linestyle="--" if variant else "-",
                label=f"{strategy} on {where}{f' ({variant})' if variant else ''}",
            )  # fmt: skip
            if full:
                axes.plot(
                    full, [0.04 + 0.05 * index] * len(full), transform=axes.get_xaxis_transform(), linestyle="",
                    marker="x", markersize=8, markeredgewidth=2, color=COLOURS[strategy], clip_on=False,
                    label=f"{strategy} on {where}: out of memory",
                )  # fmt: skip
    for axes, label in ((left, f"median step [{unit.label}]"), (right, "samples/s")):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(batches))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        axes.set_xlabel("batch per device")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    shared_legend(figure, [left], 3)
    ends = (row.number(INTERVAL.of("step_us")[0]) for row in comparison.rows.values())
    headline(figure, with_intervals("Step time and throughput by batch", ends))
    return figure


def ran_out_of_memory(data: Job) -> bool:
    return any(result.status == "out_of_memory" for result in data.results)
