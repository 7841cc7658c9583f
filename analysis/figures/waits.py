"""Who waits for whom: a matrix of ranks; on more ranks than it can show, heat maps with a row per rank and a column per step."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.figures.style import WIDTH
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.units import Unit, choose_unit, show

MOST_WAIT_PANELS = 4
MOST_WAIT_RANKS = 32  # more are shown by `wait_strip`
MOST_STRIP_ROWS = 256  # with more ranks, neighbours share a row, which shows the longest of their times
_MOST_NUMBERS = 8  # ranks up to which the values are written into the matrix
_SMALL = 4  # ranks up to which two matrices fit side by side


def waits(run: RunData, comparison: Comparison) -> Figure | None:
    """A panel for each cell, the longest waits first: row waits for column, mean per step. None without waits.

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


def wait_strip(run: RunData, comparison: Comparison) -> Figure | None:
    """Two panels for each cell on more than MOST_WAIT_RANKS ranks whose waits are known; None without such a cell."""
    many = [data for data in run.measured if data.cell.processes > MOST_WAIT_RANKS and len(data.collectives)]
    cells = [data for data in many if data.collectives["wait_us"].notna().any()][:MOST_WAIT_PANELS]
    if not cells:
        return None
    figure = Figure(figsize=(7.5, 3.2 * len(cells)), layout="constrained")
    for data, panels in zip(cells, figure.subplots(len(cells), 2, squeeze=False), strict=True):
        for axes, (title, strip) in zip(panels, wait_strips(data).items(), strict=True):
            _strip_panel(figure, axes, f"{data.cell.name}: {title}", strip)
    return figure


def wait_strips(data: CellData) -> dict[str, pd.DataFrame]:
    """Time by rank (row, its first where several share one) and (repeat, step), microseconds, 0 where there was none.

    "waits": how long the rank waits. "is waited for": how long the others wait for it on average, in collectives to which it
    comes last.
    """
    steps = data.steps[data.steps["rank"].notna() & data.steps["step"].notna() & data.steps["wait_us"].notna()]
    table = data.collectives
    known = table[table["match"].notna() & table["wait_us"].notna() & table["step"].notna()].reset_index(drop=True)
    of_collective = known.groupby(["repeat", "match"])
    last = known.loc[of_collective["duration_us"].idxmin(), ["rank", "repeat", "step"]]
    others = (of_collective["wait_us"].sum() / (of_collective.size() - 1)).to_numpy(dtype=float)
    late = last.assign(wait_us=others).groupby(["rank", "repeat", "step"], as_index=False)["wait_us"].sum()
    together = -(-data.cell.processes // MOST_STRIP_ROWS)
    rows = np.arange(0, data.cell.processes, together)
    columns = pd.MultiIndex.from_frame(steps[["repeat", "step"]].drop_duplicates().sort_values(["repeat", "step"]))
    strips = {}
    for title, times in (("waits", steps), ("is waited for", late)):
        row = times["rank"].to_numpy(dtype=np.int64) // together * together
        plain = times[["repeat", "step"]].assign(row=row, wait_us=times["wait_us"].astype("float64"))
        strip = plain.pivot_table(index="row", columns=["repeat", "step"], values="wait_us", aggfunc="max")
        strips[title] = strip.reindex(index=rows, columns=columns).fillna(0.0)
    return strips


def _strip_panel(figure: Figure, axes: Axes, title: str, strip: pd.DataFrame) -> None:
    unit = choose_unit("time", [float(strip.to_numpy().max())])
    together = int(strip.index[1] - strip.index[0])
    image = axes.imshow(
        strip.to_numpy() / unit.divisor,
        aspect="auto",
        interpolation="nearest",
        cmap="Blues",
        vmin=0.0,
        extent=(-0.5, len(strip.columns) - 0.5, float(strip.index[-1]) + together - 0.5, -0.5),
    )
    axes.grid(visible=False)
    axes.set_title(title, loc="left", fontsize=9)
    steps = strip.columns.get_level_values("step").tolist()
    ticks = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 10)).astype(int))
    axes.set_xticks(ticks, [str(steps[tick]) for tick in ticks])
    axes.set_xlabel("traced step")
    axes.set_ylabel("rank" if together == 1 else f"rank ({together} a row)")
    figure.colorbar(image, ax=axes, label=f"time [{unit.label}]")
