"""All columns of the comparison, in the order of tables and files."""

from collections.abc import Iterator

from dpscope.analysis.cells.bandwidth import BANDWIDTH
from dpscope.analysis.cells.checks import CHECKS
from dpscope.analysis.cells.device_use import DEVICE
from dpscope.analysis.cells.estimated import ESTIMATES
from dpscope.analysis.cells.identity import CELL
from dpscope.analysis.cells.learning import LEARNING
from dpscope.analysis.cells.predicted import PREDICTIONS
from dpscope.analysis.cells.times import TIME
from dpscope.analysis.cells.traced import TRACED
from dpscope.analysis.cells.view import Column, Group

OWN = Group("own", "Your own columns", redefinable=True)
"""Columns that a user declares."""

column = OWN.column
"""Declares one, as `dpscope.analysis.column`."""

GROUPS = (CELL, TIME, TRACED, ESTIMATES, PREDICTIONS, BANDWIDTH, DEVICE, LEARNING, CHECKS, OWN)


def columns() -> Iterator[Column]:
    """Every column there is now, in the order of tables and files."""
    return (column for group in GROUPS for column in group.columns)
