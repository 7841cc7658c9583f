"""A job that stopped: who waits for whom, and where this ends.

Only what hosts created is recorded. Each rank waits in its oldest unfinished call, for members that
never began it or have an older unfinished call. The job stopped where this ends, in this order:

- a rank that never began a call and waits in nothing: its records prove it;
- a rank in a call that all members began, where it waits for none: its host ran ahead of a device;
- a rank without a record: it died and may never have begun the call, or its file is lost.

Where no rank is an end, ranks wait for each other in a circle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal

from dpscope.analysis.whole_job.job import RecordedJob
from dpscope.analysis.whole_job.records import Call, Group, Lane, Process
from dpscope.profiling.records.finding import grouped

Ranks = tuple[int, ...]
Cause = Literal["stopped", "device", "missing", "circle"]


@dataclass(frozen=True)
class OpenCall:
    """A call of `members` that had not completed on the ranks `waiting`, of which `delayed` have an older such
    call. Of its other members `stopped` never began it and wait in nothing, `busy` never began it
    and wait in other calls, and `missing` left no record.
    """

    call: Call
    number: int
    members: Ranks
    waiting: Ranks
    delayed: Ranks
    stopped: Ranks
    busy: Ranks
    missing: Ranks

    @property
    def name(self) -> str:
        """Its kind and number; of a transfer also sender and receiver within the group."""
        name = self.call.kind or self.call.name
        if self.call.pair:
            name = f"{name} {self.call.pair}"
        return f"{name} {self.number}"

    @property
    def lacking(self) -> Ranks:
        """All members that did not begin it, as far as is known."""
        return (*self.stopped, *self.busy, *self.missing)

    @property
    def awaited(self) -> Ranks:
        """All members that the others wait for."""
        return _ascending(self.delayed, self.lacking)


@dataclass(frozen=True)
class Waiting:
    """Ranks whose oldest call that had not completed is `oldest`."""

    oldest: OpenCall
    ranks: Ranks
    records: tuple[int, ...]  # of each rank, of any call that had not completed


@dataclass(frozen=True)
class Unfinished:
    """What had not completed: the calls, collectives before transfers, whose numbers are known less
    well, each by age, and what ranks wait in.
    """

    records: int
    ranks: int  # that have such records
    only: bool  # the files hold no other records
    calls: tuple[OpenCall, ...]
    waiting: tuple[Waiting, ...]
    unread: frozenset[int | None]  # ranks whose record could not be read
    is_gloo: bool

    @property
    def cause(self) -> Cause:
        """What stopped the job: the first of these that is known."""
        if self.stopped:
            return "stopped"
        if self.ends:
            return "device"
        if self.missing:
            return "missing"
        return "circle"

    @property
    def may_run(self) -> bool:
        """Whether records of a running job may look the same, whose hosts run ahead of devices."""
        return not self.only and self.cause != "stopped"

    @property
    def not_begun(self) -> list[OpenCall]:
        """The calls that prove who stopped the job."""
        return [call for call in self.calls if call.stopped]

    @property
    def stopped(self) -> Ranks:
        """The ranks that never began one of these, and wait in nothing."""
        return _ascending(*(call.stopped for call in self.not_begun))

    @property
    def ends(self) -> Ranks:
        """The ranks that wait in a call that all members began, and for no rank."""
        return _ascending(*(one.ranks for one in self.waiting if not one.oldest.awaited))

    @property
    def not_recorded(self) -> list[OpenCall]:
        """The calls in which a rank waits for one without a record."""
        oldest = [one.oldest for one in self.waiting]
        return [call for call in self.calls if call.missing and call in oldest]

    @property
    def missing(self) -> Ranks:
        """The ranks without a record that others wait for."""
        return _ascending(*(call.missing for call in self.not_recorded))


def ranks_in(calls: Sequence[OpenCall]) -> Ranks:
    """All that wait in these calls."""
    return _ascending(*(call.waiting for call in calls))


def _ascending(*ranks: Ranks) -> Ranks:
    return tuple(sorted({*chain.from_iterable(ranks)}))


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
    """What had not completed; None if all had, or if only calls in flight had not, which all their
    members began.
    """
    calls = _UnfinishedCalls(job)
    records = sum(calls.counts.values())
    only = records == job.records
    open_calls = calls.open_calls()
    lacks_any = any(call.lacking for call in open_calls)
    if not records or not (only or lacks_any):
        return None
    return Unfinished(
        records=records,
        ranks=len(calls.counts),
        only=only,
        calls=tuple(open_calls),
        waiting=tuple(calls.waiting()),
        unread=job.unread,
        is_gloo=job.is_gloo,
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

    def members_of(self, lane: Lane, number: int) -> OpenCall:
        """A call with its members by what they did about it."""
        calls = self.by_call[lane, number]
        read = {rank for rank, process in self.job.by_rank if _knows(process, lane.group)}
        members = lane.pair_ranks or self.job.members[lane.group]
        stopped, busy, missing = [], [], []
        for rank in members:
            last = self.begun.get((rank, lane.group, lane.pair, lane.attempt), -1)
            if rank not in read:
                missing.append(rank)
            elif last < number and rank in self.counts:
                busy.append(rank)
            elif last < number:
                stopped.append(rank)
        waiting = sorted({call.rank for call in calls})
        delayed = [rank for rank in waiting if self.oldest[rank] != (lane, number)]
        return OpenCall(
            call=calls[0].call,
            number=number,
            members=members,
            waiting=tuple(waiting),
            delayed=tuple(delayed),
            stopped=tuple(stopped),
            busy=tuple(busy),
            missing=tuple(missing),
        )

    def open_calls(self) -> list[OpenCall]:
        keys = sorted(self.by_call, key=lambda key: bool(key[0].pair))
        return [self.members_of(*key) for key in keys]

    def waiting(self) -> list[Waiting]:
        """By the oldest call of each rank; those first that wait for a rank that waits in nothing."""
        rows = []
        for key, ranks in grouped((key, rank) for rank, key in self.oldest.items()).items():
            ranks.sort()
            records = tuple(self.counts[rank] for rank in ranks)
            rows.append(Waiting(self.members_of(*key), tuple(ranks), records))
        rows.sort(key=lambda row: row.ranks)
        return sorted(rows, key=lambda row: self.counts.keys() >= {*row.oldest.awaited})


def _knows(process: Process, group: Group) -> bool:
    """Whether the process would have recorded a call of the group: its record may hold no call, but
    then it must name the group.
    """
    return len(process) > 0 or group in process.groups


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
