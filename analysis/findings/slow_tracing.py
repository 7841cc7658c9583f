"""Cells whose traced steps take so much longer than untraced ones that their parts and shares say nothing about the training."""

from dpscope.analysis.cells.row import CellValues, number
from dpscope.analysis.text.units import show_bytes
from dpscope.profiling.records.finding import counted

SLOWED = 1.5  # traced step over untraced step, from which on no share of it and no saving is stated


def slowed_by_tracing(row: CellValues) -> float | None:
    """How many times as long a cell's traced step takes, where that is too much; None else, and where it is not known."""
    cost = number(row, "tracer_cost")
    return cost if cost is not None and cost > SLOWED else None


def slowed_text(row: CellValues, cost: float) -> str:
    """What a trace like that still shows: what tracing does not change."""
    volume, count = number(row, "bytes_per_step"), number(row, "collectives_per_step")
    moved = ""
    if volume is not None and count is not None:
        moved = f" What tracing does not change: {show_bytes(volume)} a step in {counted(round(count), 'collective')}."
    return (
        f"communication's share of a step is not known: a traced step takes {cost:.2f}x as long as an untraced one, "
        f"so its parts do not describe the training.{moved}"
    )
