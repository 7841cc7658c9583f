"""Why the communication of traces is not split into transfer and waiting, and what to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpscope.analysis.text.units import as_ranges
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.event_kind import ROOTED
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.trace_codes import TraceCode

_REASONS = {
    TraceCode.GROUPS_UNKNOWN.code: "its collectives name no process group and do not visibly end together",
    TraceCode.COLLECTIVES_UNMATCHED.code: "the ranks' collectives differ in number, kind or size",
}


def missing_ranks(ranks: Sequence[int | None], world_size: int | None) -> list[int]:
    """Ranks of the job that were not read; none where the job's size or a rank is not known."""
    if world_size is None or any(rank is None for rank in ranks):
        return []
    return sorted(set(range(world_size)) - {rank for rank in ranks if rank is not None})


@dataclass(frozen=True)
class NotSplit:
    """Why communication is not split into transfer and waiting, and what to do."""

    reason: str
    next_step: str


def why_not_split(
    ranks: Sequence[int | None],
    world_size: int | None,
    collectives: Table,
    findings: Sequence[Finding] = (),
) -> NotSplit:
    """The actual reason, for traces of which no step has a transfer; `findings` are those of
    matching the ranks.
    """
    missing = missing_ranks(ranks, world_size)
    if world_size == 1:
        return NotSplit(
            "the one rank of the job has no other to compare with", "trace several ranks"
        )
    if len(ranks) == 1:
        return NotSplit(
            "only one process was read",
            "read the traces of all ranks to separate waiting from transfer",
        )
    if missing:
        which, are = f"ranks {as_ranges(missing)}", "are"
        if len(missing) == 1:
            which, are = f"rank {missing[0]}", "is"
        reason = f"{which} of {world_size} {are} missing"
        return NotSplit(reason, f"read the traces of all ranks, {which} among them")
    if not len(collectives):
        return NotSplit(
            "copies between devices are no collectives",
            "look at the copies on the timeline (dpscope merge)",
        )
    if collectives.words("kind").isin(*ROOTED).all():
        return NotSplit(
            "broadcasts and reduces do not make all ranks wait for each other", "no action needed"
        )
    for finding in findings:
        if finding.code in _REASONS:
            return NotSplit(_REASONS[finding.code], finding.next_step)
    return NotSplit(
        "its collectives could not be matched across ranks", "see the findings on the collectives"
    )
