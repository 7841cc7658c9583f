"""Errors that stand against a cell's numbers, built alike."""

from dpscope.profiling.records.run import Cell, Finding

MEASURE_AGAIN = "measure the cell again (`dpscope run --fresh`)"


def cell_error(cell: Cell, code: str, message: str, next_step: str = MEASURE_AGAIN) -> Finding:
    """An error finding about one cell, whose name begins the message."""
    return Finding(severity="error", code=code, message=f"{cell.name}: {message}", next_step=next_step)


def trace_incomplete(cell: Cell, message: str, next_step: str = MEASURE_AGAIN) -> Finding:
    """The trace does not show what the cell must have moved: its communication is not given."""
    return cell_error(cell, "trace_incomplete", f"{message}; its communication is not given", next_step)
