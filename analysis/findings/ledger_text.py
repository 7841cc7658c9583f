"""What several findings say of a cell's ledger: that tracing slowed it, that messages are small."""

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.traces.ranks.exposed_parts import SMALL, Messages

SLOWED = 1.5  # traced over untraced step, above which no share of a step and no saving is stated


def slowed_by_tracing(row: CellRow) -> float | None:
    """The ratio of a cell's traced to its untraced step if it exceeds SLOWED; None otherwise or if
    unknown.
    """
    return row.tracer_cost if row.tracer_cost is not None and row.tracer_cost > SLOWED else None


def fewer_messages(messages: Messages) -> str:
    """What to do about many small collectives, as the end of a sentence."""
    each = f"{messages.small_count:.0f} collectives of at most {SMALL >> 10} KiB a step are bound by latency"
    return f"send fewer messages: {each}; join or drop some (gradients one by one, synchronised norms, metrics)"
