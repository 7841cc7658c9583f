"""Communication as measured beside what the subtractions and the models say of it."""

import pandas as pd
from matplotlib.figure import Figure

from dpscope.analysis.comparison.columns import INTERVAL, RANK_RANGE
from dpscope.analysis.comparison.compare import Comparison
from dpscope.analysis.figures.colours import COLOURS
from dpscope.analysis.figures.step import host_note
from dpscope.analysis.figures.style import new_figure
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.units import choose_unit

_SERIES = {  # label -> column and colour
    "measured, all": ("communication_us", COLOURS["hidden"]),
    "measured, exposed": ("exposed_us", COLOURS["exposed"]),
    "measured, transfer": ("transfer_us", COLOURS["transfer"]),
    "estimate t_N(b) - t_1(b)": ("same_local_batch_us", COLOURS["same_local_batch"]),
    "estimate t_N - t_1(G)/N": ("ideal_split_us", COLOURS["ideal_split"]),
    "estimate t_N - t_1(G)": ("same_total_us", COLOURS["same_total"]),
    "ring model, transfer": ("ring_us", COLOURS["ring"]),
    "predicted transfer": ("predicted_transfer_us", COLOURS["predicted"]),
}


def measured_and_estimated(run: RunData, comparison: Comparison) -> Figure | None:
    """Communication measured (with its range over ranks) beside each estimate (with its interval) that this run allows."""
    table = comparison.table[comparison.table["communication_us"].notna()]
    if table.empty:
        return None
    shown = {name: spec for name, spec in _SERIES.items() if table[spec[0]].notna().any()}
    unit = choose_unit("time", [float(value) for value in table["communication_us"]])
    figure, (axes,) = new_figure(len(table) * len(shown), row_height=0.17)
    height = 0.8 / len(shown)
    positions = range(len(table))
    for index, (name, (column, colour)) in enumerate(shown.items()):
        offsets = [position - 0.4 + height * (index + 0.5) for position in positions]
        values = [float(value) / unit.divisor if pd.notna(value) else float("nan") for value in table[column]]
        axes.barh(
            offsets, values, height=height * 0.92, color=colour, label=name, xerr=_ranges(table, column, unit.divisor),
            error_kw={"ecolor": "#777777", "elinewidth": 1.0, "capsize": 2},
        )  # fmt: skip
    axes.set_yticks(list(positions), [str(cell) for cell in table["cell"]])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"time per step [{unit.label}]; whiskers: range over ranks, of the estimate its 95% interval")
    axes.set_title(f"Communication: measured against estimated{host_note(run)}", loc="left")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _ranges(table: pd.DataFrame, column: str, divisor: float) -> list[list[float]] | None:
    for ends in (RANK_RANGE, INTERVAL):
        low, high = ends.of(column)
        if low in table:
            below = (table[column] - table[low]).astype("Float64").fillna(0.0)
            above = (table[high] - table[column]).astype("Float64").fillna(0.0)
            return [[max(0.0, float(value)) / divisor for value in side] for side in (below, above)]
    return None
