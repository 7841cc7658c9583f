"""Measured communication next to the two shortcuts: the subtraction and the ring formula."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.columns import BY_NAME, INTERVAL
from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.row import CellRow, minus
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
    """Three bars for each cell on several devices: measured, stacked; the subtraction with its interval; the ring formula.

    None if no cell has measured communication.
    """
    rows = [row for row in comparison.rows.values() if row.communication_us is not None]
    if not rows:
        return None
    unit = choose_unit("time", [row.communication_us for row in rows])
    shortcuts = {name: spec for name, spec in _SHORTCUTS.items() if any(row.value(spec[0]) is not None for row in rows)}
    figure, (axes,) = new_figure(len(rows) * (1 + len(shortcuts)), width=NARROW, row_height=0.24)
    places = [float(place) for place in range(len(rows))]
    first = [place - _BAR * len(shortcuts) / 2 for place in places]
    _stack(axes, first, rows, unit.divisor)
    for index, (name, (column, colour)) in enumerate(shortcuts.items(), start=1):
        offsets = [place + _BAR * index for place in first]
        axes.barh(
            offsets, _values(rows, column, unit.divisor), height=_BAR * 0.9, color=colour, label=name,
            xerr=_interval(rows, column, unit.divisor), error_kw={"ecolor": "#777777", "elinewidth": 1.0, "capsize": 2},
        )  # fmt: skip
    axes.set_yticks(places, [row.cell for row in rows])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"time per step [{unit.label}]; whiskers: 95% interval of the subtraction")
    axes.set_title(f"Communication per step{host_note(run)}", loc="left")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _stack(axes: Axes, places: Sequence[float], rows: Sequence[CellRow], divisor: float) -> None:
    """The measured parts of each cell, stacked; a part that no cell has is omitted."""
    left = [0.0] * len(rows)
    for name, (column, colour) in _MEASURED.items():
        values = [value if value == value else 0.0 for value in _values(rows, column, divisor)]
        if any(values):
            axes.barh(places, values, left=left, height=_BAR * 0.9, color=colour, label=f"measured: {name}")
            left = [start + value for start, value in zip(left, values, strict=True)]


def _values(rows: Sequence[CellRow], column: str, divisor: float) -> list[float]:
    values = (row.number(column) for row in rows)
    return [float("nan") if value is None else value / divisor for value in values]


def _interval(rows: Sequence[CellRow], column: str, divisor: float) -> list[list[float]] | None:
    low, high = INTERVAL.of(column)
    if low not in BY_NAME:
        return None
    sides = [
        [(minus(row.number(more), row.number(less)) or 0.0) for row in rows]
        for more, less in ((column, low), (high, column))
    ]
    return [[max(0.0, value) / divisor for value in side] for side in sides]
