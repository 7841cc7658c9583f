"""What a process recorded of its collectives: columns sorted by lane and number, which every format
is read into.

A lane is a sequence of calls that has the same numbers on all its processes: the collectives of a
group, of the kind where each kind is numbered by itself, or the transfers between two ranks. Where a
process gives a number several times, as coalesced calls do, each repetition is a lane. Where the
numbers start again, as after a restart, the rest is another attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn

UNKNOWN_NS = 0  # of a time that was not recorded

CodeColumn = npt.NDArray[np.int32]


class Group(NamedTuple):
    """A process group: `key` identifies it in all processes, `ranks` are its members, as far as
    they are recorded.
    """

    key: str
    name: str
    size: int
    ranks: tuple[int, ...] = ()


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
    place: int
    attempt: int


@dataclass(frozen=True)
class Process:
    """The records of one process, in the order of `lanes` and of their numbers.

    `spans` are the first and the last row of each lane, `group_ranks` are the numbers by which its
    groups know the process. `duration_us` is NaN and `created_ns` UNKNOWN_NS where not recorded.
    `damaged` counts the records that could not be read, `clock_jumps` the times that are before
    those of earlier calls.
    """

    source: str
    rank: int | None
    host: str | None
    process_id: int | None
    version: str
    groups: tuple[Group, ...]
    group_ranks: dict[str, int]
    calls: tuple[Call, ...]
    lanes: tuple[Lane, ...]
    spans: tuple[tuple[int, int], ...]
    call: CodeColumn
    number: IntColumn
    created_ns: IntColumn
    duration_us: FloatColumn
    unfinished: BoolColumn
    damaged: int = 0
    clock_jumps: int = 0

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True)
class Columns:
    """A process's records in the order in which they were made; `call` are indices of `calls`."""

    calls: Sequence[Call]
    call: CodeColumn
    number: IntColumn
    created_ns: IntColumn
    duration_us: FloatColumn
    unfinished: BoolColumn
    numbered_by_kind: bool = False


_FAR_BEFORE_NS = 1_000_000  # threads record calls a little out of order


def process_of(columns: Columns, **known: Any) -> Process:
    """A process with these records, sorted, and what else is known of it."""
    times = columns.created_ns[columns.created_ns != UNKNOWN_NS]
    lanes, spans, order = _sorted_by_lane(columns)
    return Process(
        **known,
        calls=tuple(columns.calls),
        lanes=lanes,
        spans=spans,
        call=columns.call[order],
        number=columns.number[order],
        created_ns=columns.created_ns[order],
        duration_us=columns.duration_us[order],
        unfinished=columns.unfinished[order],
        clock_jumps=int((np.diff(times) < -_FAR_BEFORE_NS).sum()),
    )


def _sorted_by_lane(
    columns: Columns,
) -> tuple[tuple[Lane, ...], tuple[tuple[int, int], ...], IntColumn]:
    """The lanes of the calls, their spans, and the order of rows by lane and number."""
    bases: dict[tuple[Group, str, str], int] = {}
    base_of_call = [
        bases.setdefault(_base(call, columns.numbered_by_kind), len(bases))
        for call in columns.calls
    ]
    base = np.array(base_of_call, dtype=np.int64)[columns.call]
    by_base = np.argsort(base, kind="stable")
    firsts = np.searchsorted(base[by_base], np.arange(len(bases) + 1))
    lanes: list[Lane] = []
    spans: list[tuple[int, int]] = []
    parts: list[IntColumn] = []
    done = 0
    for (group, name, pair), first, last in zip(bases, firsts[:-1], firsts[1:], strict=True):
        rows = by_base[first:last]
        for attempt, place, inside in _split(columns.number[rows]):
            lanes.append(Lane(group, name, pair, place, attempt))
            spans.append((done, done + len(inside)))
            parts.append(rows[inside])
            done += len(inside)
    order = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    return tuple(lanes), tuple(spans), order


def _base(call: Call, numbered_by_kind: bool) -> tuple[Group, str, str]:
    return call.group, call.name if numbered_by_kind else "", call.pair


def _split(number: IntColumn) -> list[tuple[int, int, IntColumn]]:
    """Attempt, repetition and rows by ascending number of the calls of one sequence."""
    if bool((np.diff(number) > 0).all()):
        return [(0, 0, np.arange(len(number)))]
    parts: list[tuple[int, int, IntColumn]] = []
    starts = [*_restarts(number), len(number)]
    for attempt, (start, end) in enumerate(pairwise(starts)):
        rows = start + np.argsort(number[start:end], kind="stable")
        place = _repetition(number[rows])
        for part_number in range(int(place.max(initial=0)) + 1):
            parts.append((attempt, part_number, rows[place == part_number]))
    return parts


def _restarts(number: IntColumn) -> list[int]:
    """Where numbers start again: at one that lies before another and was given before."""
    starts = [0]
    while True:
        rest = number[starts[-1] :]
        _, first = np.unique(rest, return_index=True)
        again = np.ones(len(rest), dtype=bool)
        again[first] = False
        behind = np.flatnonzero(again & (rest < np.maximum.accumulate(rest)))
        if not len(behind):
            return starts
        starts.append(starts[-1] + int(behind[0]))


def _repetition(ascending: IntColumn) -> IntColumn:
    """How often each number was given before."""
    rows = np.arange(len(ascending))
    is_first = np.ones(len(ascending), dtype=bool)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return np.asarray(rows - np.maximum.accumulate(np.where(is_first, rows, 0)))
