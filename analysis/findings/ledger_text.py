"""What several findings say of a cell's ledger: that tracing slowed it or the machine changed before
it, that messages are small.
"""

from collections.abc import Iterator

from dpscope.analysis.cells.checks import too_slow_to_trust
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.traces.ranks.messages import SMALL, Messages
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode

# traced over untraced step that is reported, and its inverse: tracing shortens no step
TRACER_COST = 1.15

# of a step: the size of DDP's first bucket; so few are bound by latency
FEW_BYTES = 1 << 20
JOIN_MESSAGES = "join or drop some (gradients one by one, synchronised norms, metrics)"


def tracing_findings(row: CellRow) -> Iterator[Finding]:
    """That traced steps take longer than untraced ones, or less, as on a machine that changed."""
    cost = row.tracer_cost
    if cost is not None and cost > TRACER_COST:
        slower = f"a traced step takes {cost:.2f}x as long as an untraced one"
        yield RunCode.TRACER_COST.finding(slower, about=row.cell)
    if cost is not None and cost < 1 / TRACER_COST:
        times = f"{show_time(row.traced_step_us)} traced, {show_time(row.step_us)} before"
        yield RunCode.DRIFT.finding(
            f"steps became shorter by {1 - cost:.0%} until they were traced ({times})",
            about=row.cell,
        )


def slowed_by_tracing(row: CellRow) -> float | None:
    """How many times as long tracing made a cell's step, where its parts are not reliable."""
    return too_slow_to_trust(row.tracer_cost)


def without_interval(ledger: Ledger | None) -> bool:
    """Whether a cell of a run shows exposed communication without its interval. Traces alone are no
    repeats.
    """
    if ledger is None or ledger.tracer_us is None or not ledger.exposed_us:
        return False
    return "exposed" not in ledger.intervals


def why_no_interval(data: Job) -> str:
    """Why exposed communication has none: it needs the spread of the cell's own repeats."""
    traced = len(data.parts_by_repeat["exposed"])
    if traced < 2:
        return f"{counted(traced, 'traced repeat')}, 2 are needed"
    return f"{traced} traced repeats lie too far apart"


def fewer_messages(messages: Messages) -> str:
    """What to do about many small collectives, as the end of a sentence."""
    each = f"{messages.small_count:.0f} collectives of at most {SMALL >> 10} KiB a step are bound by latency"
    return f"send fewer messages: {each}; {JOIN_MESSAGES}"
