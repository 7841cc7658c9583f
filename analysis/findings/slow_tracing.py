"""Cells that tracing slows down so much that the parts of their traced steps do not describe the training."""

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.text.units import show_bytes
from dpscope.profiling.records.finding import counted

SLOWED = 1.5  # traced over untraced step, above which no share of a step and no saving is stated


def slowed_by_tracing(row: CellRow) -> float | None:
    """The ratio of a cell's traced to its untraced step if it exceeds SLOWED; None otherwise or if unknown."""
    return row.tracer_cost if row.tracer_cost is not None and row.tracer_cost > SLOWED else None


def slowed_text(row: CellRow, cost: float) -> str:
    """Why such a trace does not show the cost of communication, and what tracing does not change."""
    volume, count = row.bytes_per_step, row.collectives_per_step
    moved = ""
    if volume is not None and count is not None:
        moved = f" What tracing does not change: {show_bytes(volume)} a step in {counted(round(count), 'collective')}."
    return (
        f"communication's share of a step is unknown: a traced step takes {cost:.2f}x as long as an untraced one, "
        f"so its parts do not describe the training.{moved}"
    )
