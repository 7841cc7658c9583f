"""Who made whom wait, as a table to read: of one trace analysis, or of the cells of a run."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from dpscope.analysis.runs.waits import mean_waits
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import Unit, choose_unit, plain, show, text

if TYPE_CHECKING:
    from dpscope.analysis.runs.run_data import CellData

_SHARE = Unit("%", 0.01, 1)
_SHOWN = 10  # rows; the JSON has them all
_TITLE = "Who made whom wait"


def trace_waits(waits: pd.DataFrame) -> TextTable:
    """The rows of `waits_caused`, the longest wait first."""
    unit = choose_unit("time", [float(value) for value in waits["wait_per_step_us"]])
    rows = [_row(record, unit) for record in waits.head(_SHOWN).to_dict("records")]
    return TextTable(_TITLE, _headings(unit), tuple(rows), _left_out(len(waits) - len(rows)))


def run_waits(cells: Sequence["CellData"]) -> TextTable | None:
    """The same of the whole steps of several cells: means over repeats. None where nobody waited."""
    means = {data.cell.name: mean_waits(data) for data in cells}
    means = {cell: table for cell, table in means.items() if len(table)}
    if not means:
        return None
    unit = choose_unit("time", [float(value) for table in means.values() for value in table["wait_per_step_us"]])
    rows = [
        (cell, *_row(record, unit)) for cell, table in means.items() for record in table.head(_SHOWN).to_dict("records")
    ]
    left = sum(map(len, means.values())) - len(rows)
    return TextTable(f"{_TITLE} (means over repeats)", ("cell", *_headings(unit)), tuple(rows), _left_out(left))


def _row(record: Mapping[Hashable, object], unit: Unit) -> tuple[str, ...]:
    return (
        *(text(record[name]) for name in ("late_rank", "waiting_rank", "collectives")),
        show(plain(record["wait_per_step_us"]), unit),
        show(plain(record["share"]), _SHARE),
    )


def _headings(unit: Unit) -> tuple[str, ...]:
    return ("late rank", "waiting rank", "collectives", f"wait per step [{unit.label}]", "share [%]")


def _left_out(count: int) -> tuple[str, ...]:
    return (f"and {count} more pairs with shorter waits",) if count > 0 else ()
