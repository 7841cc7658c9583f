"""The figure dpscope exists for: communication as traced, and what the two shortcuts would have said of it."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.columns import INTERVAL
from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.figures.colours import COLOURS
from dpscope.analysis.figures.step import host_note
from dpscope.analysis.figures.style import NARROW, new_figure
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.units import choose_unit

_MEASURED = {  # label -> column and colour, stacked in this order
    "hidden behind compute": ("hidden_us", COLOURS["hidden"]),
    "exposed transfer": ("exposed_transfer_us", COLOURS["transfer"]),
    "exposed wait": ("exposed_wait_us", COLOURS["wait"]),
    "exposed other": ("exposed_other_us", COLOURS["exposed"]),
}
_SHORTCUTS = {
    "subtraction $T_N(b) - T_1(b)$": ("same_local_batch_us", COLOURS["same_local_batch"]),
    "ring formula": ("ring_us", COLOURS["ring"]),
}
_BAR = 0.27  # of the space between cells


def measured_and_estimated(run: RunData, comparison: Comparison) -> Figure | None:
    """Three bars on one axis per cell of several devices: measured, stacked; the subtraction with its interval; the ring formula.

    None if no cell has measured communication.
    """
    table = comparison.table[comparison.table["communication_us"].notna()]
    if table.empty:
        return None
    unit = choose_unit("time", [float(value) for value in table["communication_us"]])
    shortcuts = {name: spec for name, spec in _SHORTCUTS.items() if table[spec[0]].notna().any()}
    figure, (axes,) = new_figure(len(table) * (1 + len(shortcuts)), width=NARROW, row_height=0.24)
    places = [float(place) for place in range(len(table))]
    first = [place - _BAR * len(shortcuts) / 2 for place in places]
    _stack(axes, first, table, unit.divisor)
    for index, (name, (column, colour)) in enumerate(shortcuts.items(), start=1):
        offsets = [place + _BAR * index for place in first]
        axes.barh(
            offsets, _values(table, column, unit.divisor), height=_BAR * 0.9, color=colour, label=name,
            xerr=_interval(table, column, unit.divisor), error_kw={"ecolor": "#777777", "elinewidth": 1.0, "capsize": 2},
        )  # fmt: skip
    axes.set_yticks(places, [str(cell) for cell in table["cell"]])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"time per step [{unit.label}]; whiskers: 95% interval of the subtraction")
    axes.set_title(f"Communication per step{host_note(run)}", loc="left")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _stack(axes: Axes, places: Sequence[float], table: pd.DataFrame, divisor: float) -> None:
    """The measured parts of each cell side by side; a part that no cell has is left out."""
    left = [0.0] * len(table)
    for name, (column, colour) in _MEASURED.items():
        values = [value if value == value else 0.0 for value in _values(table, column, divisor)]
        if any(values):
            axes.barh(places, values, left=left, height=_BAR * 0.9, color=colour, label=f"measured: {name}")
            left = [start + value for start, value in zip(left, values, strict=True)]


def _values(table: pd.DataFrame, column: str, divisor: float) -> list[float]:
    return [float(value) / divisor if pd.notna(value) else float("nan") for value in table[column]]


def _interval(table: pd.DataFrame, column: str, divisor: float) -> list[list[float]] | None:
    low, high = INTERVAL.of(column)
    if low not in table:
        return None
    below = (table[column] - table[low]).astype("Float64").fillna(0.0)
    above = (table[high] - table[column]).astype("Float64").fillna(0.0)
    return [[max(0.0, float(value)) / divisor for value in side] for side in (below, above)]
