"""All columns of the comparison, in the order of tables and files."""

from dpscope.analysis.cells.bandwidth import BANDWIDTH
from dpscope.analysis.cells.checks import CHECKS
from dpscope.analysis.cells.device_use import DEVICE
from dpscope.analysis.cells.estimated import ESTIMATES
from dpscope.analysis.cells.identity import CELL
from dpscope.analysis.cells.learning import LEARNING
from dpscope.analysis.cells.predicted import PREDICTIONS
from dpscope.analysis.cells.times import TIME
from dpscope.analysis.cells.traced import TRACED

GROUPS = (CELL, TIME, TRACED, ESTIMATES, PREDICTIONS, BANDWIDTH, DEVICE, LEARNING, CHECKS)
COLUMNS = tuple(column for group in GROUPS for column in group.columns)
BY_NAME = {column.name: column for column in COLUMNS}
NAMES = tuple(BY_NAME)
