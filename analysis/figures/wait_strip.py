"""Who waits and who is waited for, of more ranks than a matrix shows: strips of heat, a row a rank, a column a step."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.figures.waits import MOST_WAIT_PANELS, MOST_WAIT_RANKS
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.units import choose_unit

MOST_STRIP_ROWS = 256  # beyond so many ranks neighbours share a row, which shows the longest time among them


def wait_strip(run: RunData, comparison: Comparison) -> Figure | None:
    """A row of two panels for each cell of more than MOST_WAIT_RANKS ranks whose waits are known; None where there is none."""
    many = [data for data in run.measured if data.cell.processes > MOST_WAIT_RANKS and len(data.collectives)]
    shown = [data for data in many if data.collectives["wait_us"].notna().any()][:MOST_WAIT_PANELS]
    if not shown:
        return None
    figure = Figure(figsize=(7.5, 3.2 * len(shown)), layout="constrained")
    for data, panels in zip(shown, figure.subplots(len(shown), 2, squeeze=False), strict=True):
        for axes, (title, strip) in zip(panels, wait_strips(data).items(), strict=True):
            _panel(figure, axes, f"{data.cell.name}: {title}", strip)
    return figure


def wait_strips(data: CellData) -> dict[str, pd.DataFrame]:
    """Time by rank (row, its first where several share one) and (repeat, step), microseconds, 0 where there was none.

    "waits": what the rank waits. "is waited for": what the others wait for it, their mean, in the collectives it came last to.
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
    found = {}
    for title, times in (("waits", steps), ("is waited for", late)):
        row = times["rank"].to_numpy(dtype=np.int64) // together * together
        plain = times[["repeat", "step"]].assign(row=row, wait_us=times["wait_us"].astype("float64"))
        strip = plain.pivot_table(index="row", columns=["repeat", "step"], values="wait_us", aggfunc="max")
        found[title] = strip.reindex(index=rows, columns=columns).fillna(0.0)
    return found


def _panel(figure: Figure, axes: Axes, title: str, strip: pd.DataFrame) -> None:
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
