"""Step time and throughput over the batch per device, with the batch at which memory ran out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from dpscope.analysis.cells.columns import INTERVAL
from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.figures.colours import COLOURS
from dpscope.analysis.figures.style import MARKERS, new_figure
from dpscope.analysis.runs.cell_data import CellData, knows_batch
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.units import Unit, choose_unit

Series = tuple[str, str, str]  # strategy, devices with their nodes, variant


def batch_figure(run: RunData, comparison: Comparison) -> Figure | None:
    """Step time and throughput by batch; None for a run with one batch size."""
    series: dict[Series, list[CellData]] = {}
    for data in (one for one in run.cells.values() if knows_batch(one.cell)):
        if data.measured or ran_out_of_memory(data):
            where = f"{data.cell.devices}" + (f" over {data.nodes} nodes" if data.nodes > 1 else "")
            series.setdefault((data.cell.strategy, where, data.cell.variant), []).append(data)
    batches = sorted({data.cell.batch_size for cells in series.values() for data in cells})
    if len(batches) < 2:
        return None
    unit = choose_unit("time", [row.step_us for row in comparison.rows.values()])
    figure, (left, right) = new_figure(8, columns=2)
    for index, (key, cells) in enumerate(series.items()):
        measured = sorted((data for data in cells if data.measured), key=lambda data: data.cell.batch_size)
        rows = [comparison.rows[data.cell.name] for data in measured]
        _line(left, rows, ("step_us", *INTERVAL.of("step_us")), unit, key, index)
        rate = ("samples_per_s", *INTERVAL.of("samples_per_s"))
        _line(right, rows, rate, Unit("", 1.0, 1), key, index)
        full = sorted(data.cell.batch_size for data in cells if ran_out_of_memory(data))
        for axes in (left, right):
            _out_of_memory(axes, full, key, index)
    for axes, label in ((left, f"median step [{unit.label}]"), (right, "samples/s")):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(batches))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        axes.set_xlabel("batch per device")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    handles, labels = left.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(list(once.values()), list(once), loc="outside lower center", ncols=3)
    figure.suptitle("Step time and throughput by batch, with 95% intervals", x=0.01, ha="left", fontsize=11)
    return figure


def ran_out_of_memory(data: CellData) -> bool:
    """Whether a repeat of the cell ran out of memory."""
    return any(result.status == "out_of_memory" for result in data.results)


def _style(key: Series, index: int) -> dict[str, Any]:
    strategy, where, variant = key
    return {
        "color": COLOURS[strategy],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": "--" if variant else "-",
        "label": f"{strategy} on {where}{f' ({variant})' if variant else ''}",
    }


def _line(
    axes: Axes, rows: Sequence[CellRow], columns: tuple[str, str, str], unit: Unit, key: Series, index: int
) -> None:
    value, low, high = (np.array([row.number(name) for row in rows], dtype=float) for name in columns)
    spread = np.nan_to_num(np.stack((value - low, high - value)), nan=0.0).clip(min=0.0) / unit.divisor
    batch = np.array([row.batch_size for row in rows], dtype=float)
    axes.errorbar(batch, value / unit.divisor, yerr=spread, capsize=2, **_style(key, index))


def _out_of_memory(axes: Axes, batches: Sequence[int], key: Series, index: int) -> None:
    """A cross at the bottom of the axes, where no time was measured."""
    if not batches:
        return
    height = [0.04 + 0.05 * index] * len(batches)
    strategy, where, _ = key
    axes.plot(
        list(batches), height, transform=axes.get_xaxis_transform(), linestyle="", marker="x", markersize=8,
        markeredgewidth=2, color=COLOURS[strategy], clip_on=False, label=f"{strategy} on {where}: out of memory",
    )  # fmt: skip
