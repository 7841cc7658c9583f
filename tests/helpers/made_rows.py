"""Rows of the comparison with values that no measurement gave."""

from dataclasses import fields, replace
from typing import Any

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.cells.view import REGISTERED

_FIELDS = {one.name for one in fields(CellRow)}


def made_row(cell: str, strategy: str = "ddp", devices: int = 2, **values: Any) -> CellRow:
    """A row with these values of its fields and columns; all other columns are missing."""
    return with_values(CellRow(cell, strategy, devices), **values)


def with_values(row: CellRow, **values: Any) -> CellRow:
    """The row with other values of these fields and columns."""
    own = {name: value for name, value in values.items() if name in _FIELDS}
    columns = {name: value for name, value in values.items() if name not in _FIELDS}
    assert set(columns) <= set(REGISTERED), set(columns) - set(REGISTERED)
    return replace(row, **({"values": {**row.values, **columns}} | own))
