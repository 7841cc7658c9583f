"""Who made whom wait, as a matrix of ranks."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.figures.style import WIDTH
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.units import Unit, choose_unit, show

MOST_WAIT_PANELS = 4
MOST_WAIT_RANKS = 32  # more are shown by `wait_strip`
_MOST_NUMBERS = 8  # ranks up to which the values are written into the matrix
_SMALL = 4  # ranks up to which two matrices fit side by side


def waits(run: RunData, comparison: Comparison) -> Figure | None:
    """A panel for each cell, the longest waits first: row waits for column, mean per step. None where nobody waited.

    Cells of more than MOST_WAIT_RANKS ranks have a `wait_strip` instead.
    """
    matrices = {}
    for data in (one for one in run.measured if one.cell.processes <= MOST_WAIT_RANKS):
        pairs = data.mean_waits
        if len(pairs):
            matrix = np.zeros((data.cell.processes, data.cell.processes))
            places = (pairs["waiting_rank"].to_numpy(dtype=int), pairs["late_rank"].to_numpy(dtype=int))
            matrix[places] = pairs["wait_per_step_us"].to_numpy(dtype=float)
            matrices[data.cell.name] = matrix
    if not matrices:
        return None
    shown = sorted(matrices.items(), key=lambda item: -float(item[1].max()))[:MOST_WAIT_PANELS]
    unit = choose_unit("time", [float(matrix.max()) for _, matrix in shown])
    columns = 1 if max(len(matrix) for _, matrix in shown) > _SMALL else 2
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(WIDTH, (5.0 if columns == 1 else 2.6) * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    highest = max(float(matrix.max()) for _, matrix in shown) / unit.divisor
    for axes, (cell, matrix) in zip(panels, shown, strict=False):
        _panel(axes, cell, matrix, unit, highest)
    for axes in panels[len(shown) :]:
        axes.remove()
    figure.suptitle(
        f"Waiting per step [{unit.label}]: the row's rank waits for the column's", x=0.01, ha="left", fontsize=11
    )
    return figure


def _panel(axes: Axes, cell: str, matrix: np.ndarray, unit: Unit, highest: float) -> None:
    values = matrix / unit.divisor
    places = np.arange(len(matrix))
    shown = np.ma.masked_less_equal(values, 0.0)
    axes.pcolormesh(places, places, shown, shading="nearest", cmap="Blues", vmin=0.0, vmax=highest)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    ranks: Sequence[int] = range(len(matrix))
    axes.grid(visible=False)
    axes.set_title(cell, loc="left", fontsize=9)
    axes.set_xlabel("late rank")
    axes.set_ylabel("waiting rank")
    if len(ranks) > _MOST_NUMBERS:
        return
    axes.set_xticks(ranks, [str(rank) for rank in ranks])
    axes.set_yticks(ranks, [str(rank) for rank in ranks])
    for row in ranks:
        for column in ranks:
            if values[row, column] > 0:
                colour = "#ffffff" if values[row, column] > 0.6 * highest else "#111111"
                axes.text(
                    column, row, show(matrix[row, column], unit), ha="center", va="center", color=colour, fontsize=8
                )
