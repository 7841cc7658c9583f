"""What a process recorded of its collectives, which every format is read into.

A lane is a sequence of calls that has the same numbers on all its processes: the collectives of a
group, of the kind where each kind is numbered by itself, or the transfers between two ranks. Where a
process gives a number several times, as coalesced calls do, each repetition is a lane. Where the
numbers start again, as after a restart, the rest is another attempt.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn

UNKNOWN_NS = 0  # of a time that was not recorded

CodeColumn = npt.NDArray[np.int32]

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Group:
    """A process group. Groups of one `key` are the same in all processes; `ranks` are its members,
    empty if they are not recorded.
    """

    key: str
    name: str = field(compare=False)
    size: int = field(compare=False)
    ranks: tuple[int, ...] = field(default=(), compare=False)


class Call(NamedTuple):
    """What many calls have in common.

    `name` is as recorded, `pair` the sender and the receiver within the group where only two ranks
    take part, and `clock` what took the time. `bytes` are of the larger of a rank's buffers.
    """

    group: Group
    kind: str | None
    name: str
    bytes: int | None
    pair: str = ""
    clock: str = ""


class Lane(NamedTuple):
    """A sequence of calls, and how many times its numbers had started again."""

    group: Group
    name: str  # of the kind, where each is numbered by itself
    pair: str
    repetition: int
    attempt: int

    @property
    def pair_ranks(self) -> tuple[int, ...]:
        """The ranks in the job of sender and receiver; empty for a collective, or if unknown."""
        sender, _, receiver = self.pair.partition("->")
        places = [int(place) for place in (sender, receiver) if place.isdecimal()]
        if len(places) < 2 or max(places) >= len(self.group.ranks):
            return ()
        return tuple(self.group.ranks[place] for place in places)


@dataclass(frozen=True, eq=False)
class Process:
    """The records of one process in the order in which they were made.

    `lanes` has the rows of each lane by ascending number, `group_ranks` the number by which each
    group knows the process. `call` are indices of `calls`. `duration_us` is NaN and `created_ns`
    UNKNOWN_NS where not recorded. `groups_by_name` are groups by the name that they have in all
    processes. `damaged` counts the records that could not be read, `clock_jumps` the times that are
    before those of earlier calls.
    """

    source: str
    rank: int | None
    host: str | None
    process_id: int | None
    version: str
    groups: tuple[Group, ...]
    group_ranks: Mapping[Group, int]
    calls: tuple[Call, ...]
    lanes: Mapping[Lane, IntColumn]
    call: CodeColumn
    number: IntColumn
    created_ns: IntColumn
    duration_us: FloatColumn
    unfinished: BoolColumn
    groups_by_name: Mapping[str, Group] = field(default_factory=dict)
    damaged: int = 0
    clock_jumps: int = 0

    def __len__(self) -> int:
        return len(self.number)

    @property
    def content(self) -> tuple[Hashable, ...]:
        """The same for every file that holds this record, whatever rank it is named after; without
        times, ranks may be alike.
        """
        columns = (self.number, self.created_ns, self.duration_us)
        timed = len(self.times_ns) > 0
        return (
            None if timed else self.rank,
            self.host,
            self.process_id,
            self.groups,
            tuple(self.group_ranks.values()),
            *(column.tobytes() for column in columns),
        )

    @property
    def times_ns(self) -> IntColumn:
        """The times of creation that were recorded."""
        known = self.created_ns != UNKNOWN_NS
        return np.asarray(self.created_ns[known])


_FAR_BEFORE_NS = 1_000_000  # threads record calls a little out of order


@dataclass
class Recording:
    """The records of a process while its file is read: a value for each record, and the calls by
    what distinguishes them.
    """

    calls: list[Call] = field(default_factory=list)
    codes: dict[tuple[object, ...], int] = field(default_factory=dict)
    call: list[int] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    created_ns: list[int] = field(default_factory=list)
    duration_us: list[float | None] = field(default_factory=list)
    unfinished: list[bool] = field(default_factory=list)

    def new_call(self, key: tuple[object, ...], call: Call) -> int:
        """The code of a call that has none yet."""
        self.codes[key] = len(self.calls)
        self.calls.append(call)
        return self.codes[key]

    def add(
        self,
        code: int,
        number: int,
        created_ns: int,
        duration_us: float | None,
        unfinished: bool = False,
    ) -> None:
        self.call.append(code)
        self.number.append(number)
        self.created_ns.append(created_ns)
        self.duration_us.append(duration_us)
        self.unfinished.append(unfinished)

    def process(self, numbered_by_kind: bool = False, **known: Any) -> Process:
        """The process with these records, and what else is known of it."""
        call = np.array(self.call, dtype=np.int32)
        number = np.array(self.number, dtype=np.int64)
        created_ns = np.array(self.created_ns, dtype=np.int64)
        duration_us = np.array(self.duration_us, dtype=np.float64)
        duration_us[duration_us == 0] = np.nan  # some versions write 0 for an unknown time
        steps_ns = np.diff(created_ns[created_ns != UNKNOWN_NS])
        return Process(
            **known,
            calls=tuple(self.calls),
            lanes=dict(_lanes(self.calls, call, number, numbered_by_kind)),
            call=call,
            number=number,
            created_ns=created_ns,
            duration_us=duration_us,
            unfinished=np.array(self.unfinished, dtype=bool),
            clock_jumps=int((steps_ns < -_FAR_BEFORE_NS).sum()),
        )


def numbered(values: Iterable[_Value]) -> tuple[list[_Value], IntColumn]:
    """The distinct values in the order of their first, and the index of each value among them."""
    codes: dict[_Value, int] = {}
    column = [codes.setdefault(value, len(codes)) for value in values]
    return list(codes), np.array(column, dtype=np.int64)


def _lanes(
    calls: Iterable[Call], call: CodeColumn, number: IntColumn, numbered_by_kind: bool
) -> Iterator[tuple[Lane, IntColumn]]:
    """The rows of each lane by ascending number."""
    sequences, sequence_of_call = numbered(
        (call.group, call.name if numbered_by_kind else "", call.pair) for call in calls
    )
    sequence = sequence_of_call[call]
    by_sequence = np.argsort(sequence, kind="stable")
    bounds = np.searchsorted(sequence[by_sequence], np.arange(len(sequences) + 1))
    for (group, name, pair), (start, end) in zip(sequences, pairwise(bounds), strict=True):
        rows = by_sequence[start:end]
        for attempt, repetition, inside in _split(number[rows]):
            yield Lane(group, name, pair, repetition, attempt), rows[inside]


def _split(number: IntColumn) -> Iterator[tuple[int, int, IntColumn]]:
    """Attempt, repetition and rows by ascending number of the calls of one sequence."""
    starts = [*_restarts(number), len(number)]
    for attempt, (start, end) in enumerate(pairwise(starts)):
        rows = start + np.argsort(number[start:end], kind="stable")
        repetitions = _repetitions(number[rows])
        for repetition in range(int(repetitions.max()) + 1):
            yield attempt, repetition, rows[repetitions == repetition]


def _restarts(number: IntColumn) -> list[int]:
    """Where numbers start again: at one that lies before another and was given before."""
    starts = [0]
    while True:
        rest = number[starts[-1] :]
        _, first = np.unique(rest, return_index=True)
        given_before = np.ones(len(rest), dtype=bool)
        given_before[first] = False
        behind = np.flatnonzero(given_before & (rest < np.maximum.accumulate(rest)))
        if not len(behind):
            return starts
        starts.append(starts[-1] + int(behind[0]))


def _repetitions(ascending: IntColumn) -> IntColumn:
    """How often each number was given before."""
    _, first, group = np.unique(ascending, return_index=True, return_inverse=True)
    return np.asarray(np.arange(len(ascending)) - first[group])
