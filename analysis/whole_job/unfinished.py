"""A job that stopped: the oldest collective that some rank never began, and who that is.

Only what hosts created is recorded. A rank that never began what others wait in, and that waits in
nothing itself, is where the job stopped. Where every such rank waits itself, hosts had run ahead of
their devices, and no record shows which device stopped.
"""

from collections.abc import Iterator
from dataclasses import dataclass

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

    @property
    def collective(self) -> tuple[Lane, int]:
        """What is the same on all ranks."""
        return self.lane, self.number


def unfinished_of(job: RecordedJob) -> Unfinished | None:
    """What had not completed; None if all had."""
    counts = {rank: int(process.unfinished.sum()) for rank, process in job.by_rank}
    busy = {rank: count for rank, count in counts.items() if count}
    if not busy:
        return None
    records = sum(busy.values())
    pending = sorted(_pending(job), key=lambda call: call.created_ns)
    return Unfinished(
        records=records,
        ranks=len(busy),
        only=records == job.records,
        oldest=_oldest_not_begun(job, pending, busy),
        waiting=tuple(_waiting(pending, busy)),
    )


def _pending(job: RecordedJob) -> Iterator[_Pending]:
    for rank, process in job.by_rank:
        for lane, rows in process.lanes.items():
            if lane.pair:
                continue
            for row in rows[process.unfinished[rows]]:
                yield _Pending(
                    created_ns=int(process.created_ns[row]),
                    rank=rank,
                    lane=lane,
                    number=int(process.number[row]),
                    call=process.calls[process.call[row]],
                )


def _oldest_not_begun(
    job: RecordedJob, pending: list[_Pending], busy: dict[int, int]
) -> NotBegun | None:
    begun = _last_begun(job)
    read = set(job.ranks)
    for oldest in pending:
        lane, number = oldest.collective
        absent = [
            rank
            for rank in job.members[lane.group]
            if rank in read and begun.get((rank, lane.group, lane.attempt), -1) < number
        ]
        if absent:
            waiting = {call.rank for call in pending if call.collective == oldest.collective}
            stopped = tuple(rank for rank in absent if rank not in busy)
            return NotBegun(oldest.call, number, tuple(sorted(waiting)), stopped)
    return None


def _last_begun(job: RecordedJob) -> dict[tuple[int, Group, int], int]:
    """The last number that each rank began, by rank, group and attempt."""
    begun: dict[tuple[int, Group, int], int] = {}
    for rank, process in job.by_rank:
        for lane, rows in process.lanes.items():
            if not lane.pair:
                key = (rank, lane.group, lane.attempt)
                begun[key] = max(begun.get(key, -1), int(process.number[rows[-1]]))
    return begun


def _waiting(pending: list[_Pending], busy: dict[int, int]) -> Iterator[Waiting]:
    oldest: dict[int, _Pending] = {}
    for call in pending:
        oldest.setdefault(call.rank, call)
    for calls in grouped((call.collective, call) for call in oldest.values()).values():
        ranks = tuple(sorted(call.rank for call in calls))
        records = sum(busy[rank] for rank in ranks)
        yield Waiting(calls[0].call, calls[0].number, ranks, records)
