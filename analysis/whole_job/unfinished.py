"""A job that stopped: the oldest call that some rank never began, and who that is.

Only what hosts created is recorded. Each rank waits in its oldest unfinished call, for members that
never began it or have an older unfinished call. The job stopped where this ends, in this order:

- a rank that never began a call and waits in nothing: its records prove it;
- a rank in a call that all members began, where it waits for none: its host ran ahead of a device;
- a rank without a record: it died and may never have begun the call, or its file is lost.
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

    `waiting` are the ranks in which it had not completed, of which `delayed` have an older such
    call. Of its other members `stopped` never began it and wait in nothing, `busy` never began it
    and wait in other calls, and `missing` left no record.
    """

    call: Call
    number: int
    waiting: Ranks
    delayed: Ranks
    stopped: Ranks
    busy: Ranks
    missing: Ranks

    @property
    def lacking(self) -> Ranks:
        """All members that did not begin it, as far as is known."""
        return (*self.stopped, *self.busy, *self.missing)

    @property
    def awaited(self) -> Ranks:
        """All members that the others wait for."""
        return tuple(sorted((*self.delayed, *self.lacking)))

    @property
    def ran_ahead(self) -> bool:
        """Whether each member that lacks it waits in another call."""
        return self.lacking == self.busy


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
    waiting: tuple[Waiting, ...]
    without_record: Ranks

    @property
    def ends(self) -> Ranks:
        """The ranks that wait in a call that all members began, and for no rank."""
        ranks = [rank for one in self.waiting if not one.oldest.awaited for rank in one.ranks]
        return tuple(sorted(ranks))

    @property
    def missing(self) -> Ranks:
        """Those of `without_record` for which another rank may wait."""
        calls = [one.oldest for one in self.waiting]
        if self.oldest is not None:
            calls.append(self.oldest)
        return tuple(sorted({rank for call in calls for rank in call.missing}))


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
        without_record=tuple(job.missing),
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
    def oldest(self) -> dict[int, tuple[Lane, int]]:
        """The oldest of each rank that has any."""
        calls = reversed(self.pending)
        return {call.rank: call.on_all_ranks for call in calls}

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
        delayed = [rank for rank in waiting if self.oldest[rank] != (lane, number)]
        return NotBegun(
            call=calls[0].call,
            number=number,
            waiting=tuple(waiting),
            delayed=tuple(delayed),
            stopped=tuple(stopped),
            busy=tuple(busy),
            missing=tuple(missing),
        )

    def oldest_not_begun(self) -> NotBegun | None:
        """The call that shows best who stopped the job; None if every member began each call.

        Collectives come before transfers, whose numbers are known less well.
        """
        keys = sorted(self.by_call, key=lambda key: bool(key[0].pair))
        calls = {key: self.members_of(*key) for key in keys}
        of_ranks = set(self.oldest.values())
        oldest = [calls[key] for key in keys if key in of_ranks]
        lacked = [call for call in calls.values() if call.lacking]
        proven = [call for call in lacked if call.stopped]
        ahead = [call for call in lacked if call.ran_ahead]
        missing = [call for call in (*oldest, *lacked) if call.missing]
        likely = (*proven, *missing, *ahead)
        if any(not call.awaited for call in oldest):
            likely = (*proven, *ahead, *missing)
        return next(iter(likely), None)

    def waiting(self) -> list[Waiting]:
        """By the oldest call of each rank; those first that wait for a rank that waits in nothing."""
        rows = []
        for key, ranks in grouped((key, rank) for rank, key in self.oldest.items()).items():
            records = sum(self.counts[rank] for rank in ranks)
            rows.append(Waiting(self.members_of(*key), tuple(sorted(ranks)), records))
        rows.sort(key=lambda row: row.ranks)
        return sorted(rows, key=lambda row: self.counts.keys() >= {*row.oldest.awaited})


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
