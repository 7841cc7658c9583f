"""What is said where a trace does not show what it must."""

import pandas as pd

from dpscope.profiling.records.finding import Finding, FindingCode, counted
from dpscope.profiling.records.run import Cell, RankResult
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.trace_codes import TraceCode

BYTES_TOLERANCE = 0.05
MEASURE_AGAIN = "measure the cell again (`dpscope run --fresh`)"
ATTACH_AGAIN = "attach to the script again, and let it train until its steps have been traced"


def cell_error(cell: Cell, code: FindingCode, message: str, next_step: str = MEASURE_AGAIN) -> Finding:
    """An error finding about one cell, whose name begins the message."""
    return code.finding(f"{cell.name}: {message}", next_step)


def trace_incomplete(cell: Cell, message: str, next_step: str = MEASURE_AGAIN) -> Finding:
    """The trace does not show what the cell must have moved: its communication is not given."""
    return cell_error(cell, TraceCode.TRACE_INCOMPLETE, f"{message}; its communication is not given", next_step)


def incomplete_repeat(cell: Cell, repeat: int, missing_parts: str) -> Finding:
    """A repeat that is left out, since parts of it are not there."""
    next_step = (
        f"if files were lost, {MEASURE_AGAIN}; if it ran on another number of nodes, keep it in a run of its own"
    )
    return cell_error(cell, RunCode.REPEAT_INCOMPLETE, f"repeat {repeat} is left out: {missing_parts}", next_step)


def no_trace(cell: Cell, repeat: str, rank: RankResult) -> Finding:
    """A repeat of the cell has no trace at all."""
    again = MEASURE_AGAIN if rank.attached is None else ATTACH_AGAIN
    return trace_incomplete(cell, f"{repeat} has no trace", again)


def incomplete(cell: Cell, expected: str, found: str, cause: str) -> Finding:
    """The trace shows something else than what was expected of it."""
    return trace_incomplete(
        cell,
        f"expected {expected}, the trace shows {found}",
        f"likely cause: {cause}. Run `dpscope doctor`, then measure the cell again",
    )


def check_ranks(cell: Cell, steps: pd.DataFrame) -> list[Finding]:
    """Whether every rank of a cell saved a trace."""
    found = len(set(steps["rank"].dropna()))
    if found == cell.devices:
        return []
    return [incomplete(cell, f"traces of {counted(cell.devices, 'rank')}", f"{found}", "a rank saved no trace")]
