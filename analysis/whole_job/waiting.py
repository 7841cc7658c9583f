"""Collectives matched across ranks by their numbers: transfer, waiting, and who caused it.

Of a matched collective the shortest duration is the transfer, and what a rank takes longer is its
wait for the rank with the shortest duration, which arrived last (`analysis/traces/ranks/matching.py`;
no clocks are compared). Where no durations were recorded, ranks are compared by the times at which
their hosts created the collective: by what they were ahead of the last one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.ranks.matching import enough_ranks
from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn
from dpscope.analysis.traces.steps.event_kind import ROOTED
from dpscope.analysis.whole_job.job import RecordedJob
from dpscope.analysis.whole_job.records import UNKNOWN_NS, Call, CodeColumn, Group, Lane, numbered
from dpscope.profiling.records.finding import grouped

BINS = 20  # of time
_BLOCK = 1 << 22  # durations that are compared at once
_DELAYED = 0.95  # quantile of a rank's lateness that stands for a delay
_VARIABLE_SIZE = "all_to_all"

Basis = Literal["durations", "creation", "nothing"]
Matrix = npt.NDArray[np.float64]


class Row(NamedTuple):
    """Collectives that are summed: `hosts` on which their group runs, None if unknown."""

    kind: str
    group: str
    size: int
    hosts: int | None
    bytes: int | None


@dataclass
class RowRecords:
    """All records of each row, matched or not: how many, how many with a duration, and its sum."""

    count: FloatColumn
    timed: FloatColumn
    duration_us: FloatColumn


@dataclass
class Counts:
    """How many records have a counterpart on all ranks, and why others have none."""

    records: int = 0  # of collectives of several ranks
    matched: int = 0
    outside: int = 0  # of the numbers that all ranks hold, as in wrapped rings
    dropped: int = 0  # within them, which others lack, or which lack a duration
    unlike: int = 0  # by kind, size or what took the time
    of_missing_ranks: int = 0
    restarted: int = 0


class Matched(NamedTuple):
    """The matched collectives, a value for each: index in `Waiting.rows`, place of the rank that
    arrived last, number of ranks, part of the time, by how much the last one was later than the
    last but one, transfer, and what all ranks together waited.
    """

    row: IntColumn
    late: IntColumn
    ranks: IntColumn
    bin: IntColumn
    lateness_us: FloatColumn
    transfer_us: FloatColumn
    wait_us: FloatColumn


@dataclass(frozen=True, eq=False)
class Waiting:
    """What the ranks of a job waited, microseconds; their places are those in the job.

    `wait_us` is by rank and part of the time, `transfer_us` by rank; neither is known unless
    durations are.
    """

    job: RecordedJob
    basis: Basis
    span_ns: tuple[int, int]
    rows: Sequence[Row]
    records: RowRecords
    counts: Counts
    matched: Matched
    wait_us: Matrix
    transfer_us: FloatColumn

    @property
    def timed(self) -> bool:
        return self.basis == "durations"

    @cached_property
    def duration_us(self) -> FloatColumn:
        """Of all records of each rank, matched or not."""
        sums_us = [np.nansum(process.duration_us) for process in self.job.processes]
        return np.array(sums_us)

    @cached_property
    def caused_us(self) -> Matrix:
        """What the others waited for each rank, by part of the time."""
        ranks = len(self.job.ranks)
        cell = self.matched.late * BINS + self.matched.bin
        sums_us = np.bincount(cell, self.matched.wait_us, minlength=ranks * BINS)
        return np.asarray(sums_us.reshape(ranks, BINS), dtype=np.float64)

    @property
    def others(self) -> FloatColumn:
        """What the others waited for each rank, over the whole time."""
        return np.asarray(self.caused_us.sum(axis=1))

    @property
    def caused_share(self) -> FloatColumn:
        """The part of all waiting that was for each rank; NaN if nothing waited."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.others / self.others.sum())

    @property
    def lateness_us(self) -> FloatColumn:
        """By how much each rank was later than the last but one, in sum."""
        matched = self.matched
        ranks = len(self.job.ranks)
        sums_us = np.bincount(matched.late, matched.lateness_us, minlength=ranks)
        return np.asarray(sums_us, dtype=np.float64)

    @property
    def last_count(self) -> IntColumn:
        """In how many collectives each rank was last, and not together with another."""
        is_later = self.matched.lateness_us > 0
        late = self.matched.late[is_later]
        return np.bincount(late, minlength=len(self.job.ranks))

    def typical_lateness_us(self, place: int) -> float | None:
        """The median of a rank's larger delays; None if it delays no collective."""
        delays_us = self.larger_delays_us(place)
        if not len(delays_us):
            return None
        return float(np.median(delays_us))

    def larger_delays_us(self, place: int) -> FloatColumn:
        """By how much a rank delays collectives, where this is at least a quarter of its 95%
        quantile.

        Collectives right behind a delayed one start together: without them the tiny differences of
        those would be the median. The quantile leaves out rare long delays, such as a checkpoint.
        """
        is_late = self.matched.late == place
        lateness_us: FloatColumn = self.matched.lateness_us[is_late]
        lateness_us = lateness_us[lateness_us > 0]
        if not len(lateness_us):
            return lateness_us
        least = np.quantile(lateness_us, _DELAYED) / 4
        larger_us: FloatColumn = lateness_us[lateness_us >= least]
        return larger_us

    @property
    def bin_edges_s(self) -> FloatColumn:
        """From the first record."""
        first_ns, last_ns = self.span_ns
        length_s = (last_ns - first_ns) / 1e9
        return np.linspace(0.0, length_s, BINS + 1)


def waiting_of(job: RecordedJob) -> Waiting:
    """Match the collectives of a job's ranks."""
    basis = _basis(job)
    calls = _Calls(job, basis)
    matching = _Matching(job, basis, calls)
    lanes = _lanes(job)
    unlike_attempts = _unlike_attempts(lanes)
    for lane, members in lanes.items():
        restarted = (lane.group, lane.name) in unlike_attempts
        matching.add_lane(lane, members, restarted)
    matched = map(np.concatenate, zip(*matching.parts, strict=True))
    return Waiting(
        job=job,
        basis=basis,
        span_ns=matching.span_ns,
        rows=calls.rows,
        records=_records_of_rows(job, calls),
        counts=matching.counts,
        matched=Matched(*matched),
        wait_us=matching.wait_us,
        transfer_us=matching.transfer_us,
    )


def _records_of_rows(job: RecordedJob, calls: "_Calls") -> RowRecords:
    """Count and time of all records, matched or not."""
    rows = len(calls.rows)
    sums = RowRecords(np.zeros(rows), np.zeros(rows), np.zeros(rows))
    for process, code in zip(job.processes, calls.of_process, strict=True):
        row = calls.row[code[process.call]]
        is_timed = np.isfinite(process.duration_us)
        row_of_timed = row[is_timed]
        timed_us = process.duration_us[is_timed]
        sums.count += np.bincount(row, minlength=rows)
        sums.timed += np.bincount(row_of_timed, minlength=rows)
        sums.duration_us += np.bincount(row_of_timed, timed_us, minlength=rows)
    return sums


def _basis(job: RecordedJob) -> Basis:
    """By what ranks are compared. Creation times are compared within one host, or where no host is
    known, which is then stated as an assumption.
    """
    for process in job.processes:
        if np.isfinite(process.duration_us).any():
            return "durations"
    if len(set(job.hosts)) == 1:
        return "creation"
    return "nothing"


def _time_span_ns(job: RecordedJob) -> tuple[int, int]:
    """The first and the last time in the records; zeros where none has a time."""
    times_ns = [process.times_ns for process in job.processes if len(process.times_ns)]
    if not times_ns:
        return 0, 0
    first = min(column.min() for column in times_ns)
    last = max(column.max() for column in times_ns)
    return int(first), int(last)


class _Calls:
    """The calls of all processes by code: the codes of each process's calls, and of each code the
    row, a signature that calls of one collective have in common, and whether ranks wait in it.
    """

    def __init__(self, job: RecordedJob, basis: Basis) -> None:
        every: list[Call] = []
        ends = []
        for process in job.processes:
            every += process.calls
            ends.append(len(every))
        calls, codes = numbered(every)
        self.of_process: list[CodeColumn] = np.split(codes.astype(np.int32), ends[:-1])
        host_of = dict(zip(job.ranks, job.hosts, strict=True))
        self.rows, self.row = numbered(_row(job, host_of, call, basis) for call in calls)
        _, self.signature = numbered(map(_signature, calls))
        self.synchronises = np.array([_synchronises(call) for call in calls], dtype=bool)


def _signature(call: Call) -> tuple[object, ...]:
    size = None if call.kind == _VARIABLE_SIZE else call.bytes
    return call.kind, call.name, call.clock, size


def _synchronises(call: Call) -> bool:
    return call.kind is not None and call.kind not in ROOTED


def _row(job: RecordedJob, host_of: dict[int, str | None], call: Call, basis: Basis) -> Row:
    ranks = job.members[call.group]
    hosts = {host_of.get(rank) for rank in ranks}
    known = None not in hosts and len(ranks) >= call.group.size
    # without times the many sizes of all-to-alls say nothing
    any_size = call.kind == _VARIABLE_SIZE and basis != "durations"
    return Row(
        kind=call.kind or call.name,
        group=call.group.name,
        size=2 if call.pair else call.group.size,
        hosts=len(hosts) if known else None,
        bytes=None if any_size else call.bytes,
    )


@dataclass(frozen=True)
class _Member:
    """A rank's rows of a lane, by ascending number."""

    place: int
    rows: IntColumn
    number: IntColumn


def _lanes(job: RecordedJob) -> dict[Lane, list[_Member]]:
    """The lanes in which ranks wait for each other, with their ranks."""
    members: list[tuple[Lane, _Member]] = []
    for place, process in enumerate(job.processes):
        for lane, rows in process.lanes.items():
            if not lane.pair and lane.group.size != 1:
                member = _Member(place, rows, process.number[rows])
                members.append((lane, member))
    return grouped(members)


def _unlike_attempts(lanes: Mapping[Lane, Sequence[_Member]]) -> set[tuple[Group, str]]:
    """The groups and kinds whose numbers did not start again as often on every rank."""
    ranks: dict[tuple[Group, str, int], set[int]] = {}
    for lane, members in lanes.items():
        attempt = ranks.setdefault((lane.group, lane.name, lane.attempt), set())
        attempt.update(member.place for member in members)
    unlike = set()
    for (group, name, _), places in ranks.items():
        if places != ranks[group, name, 0]:
            unlike.add((group, name))
    return unlike


class _Block(NamedTuple):
    """Collectives by rank (row) and number (column): the code of the call, -1 where there is none,
    and the duration that it is compared by, NaN where there is none.
    """

    code: CodeColumn
    duration_us: Matrix
    created_ns: IntColumn  # by number: the latest of any rank


_INT = np.zeros(0, dtype=np.int64)
_FLOAT = np.zeros(0)
_NONE = Matched(_INT, _INT, _INT, _INT, _FLOAT, _FLOAT, _FLOAT)


class _Matching:
    """Adds up the lanes of a job."""

    def __init__(self, job: RecordedJob, basis: Basis, calls: _Calls) -> None:
        self.job = job
        self.calls = calls
        self.span_ns = _time_span_ns(job)
        self.counts = Counts()
        self.parts = [_NONE]
        ranks = len(job.ranks)
        self.wait_us = np.zeros((ranks, BINS))
        self.transfer_us = np.zeros(ranks)
        self._compared_us = [self._compared(place, basis) for place in range(ranks)]

    def _compared(self, place: int, basis: Basis) -> FloatColumn:
        """By what a rank's records are compared with those of others: the shortest is the last."""
        process = self.job.processes[place]
        if basis == "durations":
            return process.duration_us
        # what is created later counts as shorter
        until_us = (self.span_ns[1] - process.created_ns) / 1e3
        until_us[process.unfinished] = np.nan
        until_us[process.created_ns == UNKNOWN_NS] = np.nan
        if basis == "nothing" or process.clock_jumps:
            until_us[:] = np.nan
        return until_us

    def add_lane(self, lane: Lane, members: Sequence[_Member], restarted: bool) -> None:
        counts = self.counts
        records = sum(len(member.rows) for member in members)
        counts.records += records
        if restarted:
            counts.restarted += records
            return
        if not enough_ranks(np.array(len(members)), lane.group.size):
            counts.of_missing_ranks += records
            return
        numbers = _common_numbers(members)
        counts.outside += records
        width = max(1, _BLOCK // len(members))
        for start in range(0, len(numbers), width):
            here = numbers[start : start + width]
            block = self._block(members, here)
            held = block.code >= 0
            counts.outside -= int(held.sum())
            matched = self._matched(block, lane.group.size)
            if matched.any():
                self._add(block, matched, members)

    def _block(self, members: Sequence[_Member], numbers: IntColumn) -> _Block:
        shape = (len(members), len(numbers))
        code = np.full(shape, -1, dtype=np.int32)
        duration_us = np.full(shape, np.nan)
        created_ns = np.full(len(numbers), UNKNOWN_NS, dtype=np.int64)
        for index, member in enumerate(members):
            process = self.job.processes[member.place]
            code_of_call = self.calls.of_process[member.place]
            compared_us = self._compared_us[member.place]
            start, end = np.searchsorted(member.number, (numbers[0], numbers[-1] + 1))
            rows = member.rows[start:end]
            column = np.searchsorted(numbers, member.number[start:end])
            code[index, column] = code_of_call[process.call[rows]]
            duration_us[index, column] = compared_us[rows]
            created_ns[column] = np.maximum(created_ns[column], process.created_ns[rows])
        return _Block(code, duration_us, created_ns)

    def _matched(self, block: _Block, size: int) -> BoolColumn:
        """Which collectives have a record with a duration on every rank; counts all records."""
        held = block.code >= 0
        # of those ranks that hold it, which are alike
        code = block.code.max(axis=0)
        synchronises = self.calls.synchronises[code]
        is_alike = self._alike(block.code, held)
        alike = synchronises & is_alike
        unlike = synchronises & ~is_alike
        timed_ranks = np.isfinite(block.duration_us).sum(axis=0)
        complete = enough_ranks(timed_ranks, size)
        matched = alike & complete

        records = held.sum(axis=0)
        counts = self.counts
        counts.matched += int(records[matched].sum())
        counts.unlike += int(records[unlike].sum())
        counts.dropped += int(records[alike & ~complete].sum())
        return np.asarray(matched)

    def _alike(self, code: CodeColumn, held: BoolColumn) -> BoolColumn:
        """Numbers under which all ranks recorded the same kind and size, timed in the same way."""
        signature = self.calls.signature[code]
        beyond = len(self.calls.signature)
        highest = np.where(held, signature, -1).max(axis=0)
        lowest = np.where(held, signature, beyond).min(axis=0)
        return np.asarray(highest == lowest)

    def _add(self, block: _Block, matched: BoolColumn, members: Sequence[_Member]) -> None:
        """Add the matched collectives."""
        places = np.array([member.place for member in members])
        code = block.code[:, matched].max(axis=0)
        duration_us = block.duration_us[:, matched]
        part = self._bin(block.created_ns[matched])
        # of some large groups a few ranks may be missing
        comparable_us = np.where(np.isnan(duration_us), np.inf, duration_us)
        shortest, second = np.partition(comparable_us, 1, axis=0)[:2]
        late = comparable_us.argmin(axis=0)
        wait_us = np.nan_to_num(duration_us - shortest)
        takes_part = np.isfinite(duration_us)
        is_in_part = np.eye(BINS)[part]

        self.wait_us[places] += wait_us @ is_in_part
        self.transfer_us[places] += takes_part @ shortest
        added = Matched(
            row=self.calls.row[code],
            late=places[late],
            ranks=np.full(len(late), len(places)),
            bin=part,
            lateness_us=second - shortest,
            transfer_us=shortest,
            wait_us=wait_us.sum(axis=0),
        )
        self.parts.append(added)

    def _bin(self, time_ns: IntColumn) -> IntColumn:
        """The part of the time that each is in."""
        first, last = self.span_ns
        share = (time_ns - first) / max(last - first, 1)
        part = (share * BINS).astype(np.int64)
        return np.clip(part, 0, BINS - 1)


def _common_numbers(members: Sequence[_Member]) -> IntColumn:
    """The numbers of any rank within those that all ranks hold."""
    first = max(member.number[0] for member in members)
    last = min(member.number[-1] for member in members)
    numbers = np.zeros(0, dtype=np.int64)
    for member in members:
        start, end = np.searchsorted(member.number, (first, last + 1))
        common = member.number[start:end]
        # mostly all are the same
        if not np.array_equal(common, numbers):
            numbers = np.union1d(numbers, common)
    return numbers
