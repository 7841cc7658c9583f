"""A job that stopped: the oldest collective that some rank never began, and who that is.

Only what hosts created is recorded. A rank that never began what others wait in, and that waits in
nothing itself, is where the job stopped. Where every such rank waits itself, hosts had run ahead of
their devices, and no record shows which device stopped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.whole_job.job import RecordedJob
from dpscope.analysis.whole_job.records import Call, Group, Lane
from dpscope.profiling.records.finding import grouped


@dataclass(frozen=True)
class NotBegun:
    """The oldest collective that some member never began.

    `stopped` are the ranks of those members that wait in nothing themselves, empty if each of them
    waits; `waiting` are the ranks that began it.
    """

    call: Call
    number: int
    waiting: tuple[int, ...]
    stopped: tuple[int, ...]


@dataclass(frozen=True)
class Waiting:
    """Ranks whose oldest collective that had not completed is this one."""

    call: Call
    number: int
    ranks: tuple[int, ...]
    records: int  # of these ranks, of any call that had not completed


@dataclass(frozen=True)
class Unfinished:
    """The records of collectives and transfers that had not completed; `oldest` is None if every
    member that was read had begun each of them. `waiting` has the oldest first.
    """

    records: int
    ranks: int  # that have such records
    only: bool  # the files hold no other records
    oldest: NotBegun | None
    waiting: tuple[Waiting, ...] = ()


@dataclass(frozen=True)
class _Pending:
    """A collective that had not completed on a rank."""

    created_ns: int
    rank: int
    lane: Lane
    number: int
    call: Call


def unfinished_of(job: RecordedJob) -> Unfinished | None:
    """What had not completed; None if all had."""
    counts = [int(process.unfinished.sum()) for process in job.processes]
    if not any(counts):
        return None
    begun = _last_begun(job)
    busy = {rank for rank, count in zip(job.ranks, counts, strict=True) if count}
    pending = sorted(_pending(job), key=lambda call: call.created_ns)
    oldest = next((call for call in pending if _absent(job, begun, call)), None)
    not_begun = None
    if oldest is not None:
        waiting = {
            call.rank
            for call in pending
            if (call.lane, call.number) == (oldest.lane, oldest.number)
        }
        not_begun = NotBegun(
            call=oldest.call,
            number=oldest.number,
            waiting=tuple(sorted(waiting)),
            stopped=tuple(rank for rank in _absent(job, begun, oldest) if rank not in busy),
        )
    records = sum(map(len, job.processes))
    return Unfinished(
        sum(counts),
        len(busy),
        sum(counts) == records,
        not_begun,
        tuple(_waiting(pending, dict(zip(job.ranks, counts, strict=True)))),
    )


def _waiting(pending: Sequence[_Pending], counts: Mapping[int, int]) -> Iterator[Waiting]:
    oldest: dict[int, _Pending] = {}
    for call in pending:
        oldest.setdefault(call.rank, call)
    together = grouped(((call.lane, call.number), call) for call in oldest.values())
    for calls in together.values():
        ranks = tuple(sorted(call.rank for call in calls))
        records = sum(counts[rank] for rank in ranks)
        yield Waiting(calls[0].call, calls[0].number, ranks, records)


def _pending(job: RecordedJob) -> Iterator[_Pending]:
    for rank, process in zip(job.ranks, job.processes, strict=True):
        for lane, (start, end) in zip(process.lanes, process.spans, strict=True):
            if lane.pair:
                continue
            for row in start + np.flatnonzero(process.unfinished[start:end]):
                yield _Pending(
                    created_ns=int(process.created_ns[row]),
                    rank=rank,
                    lane=lane,
                    number=int(process.number[row]),
                    call=process.calls[process.call[row]],
                )


def _last_begun(job: RecordedJob) -> Mapping[tuple[int, str, int], int]:
    """The last number that each rank began, by rank, group and attempt."""
    begun: dict[tuple[int, str, int], int] = {}
    for rank, process in zip(job.ranks, job.processes, strict=True):
        for lane, (_, end) in zip(process.lanes, process.spans, strict=True):
            if not lane.pair:
                key = (rank, lane.group.key, lane.attempt)
                begun[key] = max(begun.get(key, -1), int(process.number[end - 1]))
    return begun


def _absent(
    job: RecordedJob, begun: Mapping[tuple[int, str, int], int], one: _Pending
) -> list[int]:
    """The members that were read and never began it."""
    group: Group = job.groups[one.lane.group.key]
    read = set(job.ranks)
    return [
        rank
        for rank in group.ranks
        if rank in read and begun.get((rank, group.key, one.lane.attempt), -1) < one.number
    ]
