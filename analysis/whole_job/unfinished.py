"""A job that stopped: the oldest call that some rank never began, and who that is.

Only what hosts created is recorded. A rank that never began what others wait in, and that waits in
nothing itself, is where the job stopped. A dead rank leaves no record: it may never have begun what
others wait in with it. Where every rank that lacks a call waits itself, hosts had run ahead of their
devices, and no record shows which device stopped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from dpscope.analysis.whole_job.job import RecordedJob
from dpscope.analysis.whole_job.records import Call, Group, Lane
from dpscope.profiling.records.finding import grouped

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class NotBegun:
    """A call that some member never began, or may not have begun.

    `waiting` are the ranks in which it had not completed. Of its other members `stopped` never
    began it and wait in nothing, `busy` never began it and wait in other calls, and `missing` left
    no record.
    """

    call: Call
    number: int
    waiting: Ranks
    stopped: Ranks
    busy: Ranks
    missing: Ranks

    @property
    def suspects(self) -> Ranks:
        """The ranks to look at first; none where each of them waits in another call."""
        return tuple(sorted((*self.stopped, *self.missing)))

    @property
    def lacking(self) -> Ranks:
        """All members that did not begin it, as far as is known."""
        return tuple(sorted((*self.stopped, *self.busy, *self.missing)))


@dataclass(frozen=True)
class Waiting:
    """Ranks whose oldest call that had not completed is `oldest`."""

    oldest: NotBegun
    ranks: Ranks
    records: int  # of these ranks, of any call that had not completed


@dataclass(frozen=True)
class Unfinished:
    """The records of calls that had not completed; `oldest` is None if every member had begun each
    of them. `waiting` has the oldest first.
    """

    records: int
    ranks: int  # that have such records
    only: bool  # the files hold no other records
    oldest: NotBegun | None
    waiting: tuple[Waiting, ...] = ()


@dataclass(frozen=True)
class _Pending:
    """A call that had not completed on a rank."""

    created_ns: int
    rank: int
    lane: Lane
    number: int
    call: Call

    @property
    def on_all_ranks(self) -> tuple[Lane, int]:
        """What is the same on all ranks that take part."""
        return self.lane, self.number


def unfinished_of(job: RecordedJob) -> Unfinished | None:
    """What had not completed; None if all had."""
    calls = _UnfinishedCalls(job)
    if not calls.counts:
        return None
    records = sum(calls.counts.values())
    return Unfinished(
        records=records,
        ranks=len(calls.counts),
        only=records == job.records,
        oldest=calls.oldest_not_begun(),
        waiting=tuple(calls.waiting()),
    )


@dataclass(frozen=True)
class _UnfinishedCalls:
    """The calls of a job that had not completed."""

    job: RecordedJob

    @cached_property
    def counts(self) -> dict[int, int]:
        """How many of them each rank has; without ranks that have none."""
        counts = {rank: int(process.unfinished.sum()) for rank, process in self.job.by_rank}
        return {rank: count for rank, count in counts.items() if count}

    @cached_property
    def pending(self) -> list[_Pending]:
        """The oldest first."""
        return sorted(_pending(self.job), key=lambda call: call.created_ns)

    @cached_property
    def by_call(self) -> dict[tuple[Lane, int], list[_Pending]]:
        """The same, by what is one call on all ranks."""
        return grouped((call.on_all_ranks, call) for call in self.pending)

    @cached_property
    def begun(self) -> dict[tuple[int, Group, str, int], int]:
        """The last number that each rank began, by rank, group, pair and attempt."""
        begun: dict[tuple[int, Group, str, int], int] = {}
        for rank, process in self.job.by_rank:
            for lane, rows in process.lanes.items():
                key = (rank, lane.group, lane.pair, lane.attempt)
                last = int(process.number[rows[-1]])
                begun[key] = max(begun.get(key, -1), last)
        return begun

    def members_of(self, lane: Lane, number: int) -> NotBegun:
        """A call with its members by what they did about it."""
        calls = self.by_call[lane, number]
        read = set(self.job.ranks)
        stopped, busy, missing = [], [], []
        for rank in lane.pair_ranks or self.job.members[lane.group]:
            last = self.begun.get((rank, lane.group, lane.pair, lane.attempt), -1)
            if rank not in read:
                missing.append(rank)
            elif last < number and rank in self.counts:
                busy.append(rank)
            elif last < number:
                stopped.append(rank)
        waiting = sorted({call.rank for call in calls})
        return NotBegun(
            calls[0].call, number, tuple(waiting), tuple(stopped), tuple(busy), tuple(missing)
        )

    def oldest_not_begun(self) -> NotBegun | None:
        """The oldest call that a rank never began that waits in nothing; else the oldest with a
        rank that left no record; else the oldest that any member never began.

        Collectives come before transfers, whose numbers are known less well.
        """
        calls = sorted(self.by_call, key=lambda call: bool(call[0].pair))
        lacked = (self.members_of(*call) for call in calls)
        known = [call for call in lacked if call.lacking]
        return min(known, key=_uncertainty, default=None)

    def waiting(self) -> Iterator[Waiting]:
        """By the oldest call of each rank."""
        oldest: dict[int, tuple[Lane, int]] = {}
        for pending in self.pending:
            oldest.setdefault(pending.rank, pending.on_all_ranks)
        ranks_of = grouped((call, rank) for rank, call in oldest.items())
        for call, ranks in ranks_of.items():
            records = sum(self.counts[rank] for rank in ranks)
            yield Waiting(self.members_of(*call), tuple(sorted(ranks)), records)


def _uncertainty(call: NotBegun) -> int:
    """How little a call shows of who stopped the job."""
    if call.stopped:
        return 0
    return 1 if call.missing else 2


def _pending(job: RecordedJob) -> Iterator[_Pending]:
    for rank, process in job.by_rank:
        for lane, rows in process.lanes.items():
            for row in rows[process.unfinished[rows]]:
                yield _Pending(
                    created_ns=int(process.created_ns[row]),
                    rank=rank,
                    lane=lane,
                    number=int(process.number[row]),
                    call=process.calls[process.call[row]],
                )
