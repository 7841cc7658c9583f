"""Collectives matched across ranks by their numbers: transfer, waiting, and who caused it.

Of a matched collective the shortest duration is the transfer, and what a rank takes longer is its
wait for the rank with the shortest duration, which arrived last (`analysis/traces/ranks/matching.py`;
no clocks are compared). Where no durations were recorded, ranks are compared by the times at which
their hosts created the collective: what they were ahead of the last one by.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.ranks.matching import enough_ranks
from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn
from dpscope.analysis.traces.steps.event_kind import ROOTED
from dpscope.analysis.whole_job.job import RecordedJob, time_span_ns
from dpscope.analysis.whole_job.records import UNKNOWN_NS, Call, CodeColumn, Lane

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
class Counts:
    """How many records have a counterpart on all ranks, and why others have none."""

    records: int = 0  # of collectives of several ranks that synchronise
    matched: int = 0
    outside: int = 0  # of the numbers that all ranks hold, as in wrapped rings
    dropped: int = 0  # within them, which others lack, or which lack a duration
    unlike: int = 0  # by kind, size or what took the time
    of_missing_ranks: int = 0
    restarted: int = 0
    absent: int = 0  # records that are missing within the numbers that all ranks hold


@dataclass
class Waiting:
    """Sums over matched collectives, microseconds.

    By rank (in the job's order) and time bin: `wait_us` and `caused_us`, which the others waited for
    it. By rank: `transfer_us`, `lateness_us` (by how much later than the last but one it arrived),
    `saved_us` (what the others would wait less without that) and `last_count`. By row: `count`,
    `row_transfer_us`, `row_wait_us` (mean over ranks); of all records, matched or not, also
    `row_records` and `row_duration_us`.

    `late`, `lateness` and `row` hold a value for each matched collective.
    """

    job: RecordedJob
    basis: Basis
    span_ns: tuple[int, int]
    rows: list[Row]
    wait_us: Matrix
    caused_us: Matrix
    transfer_us: FloatColumn
    lateness_us: FloatColumn
    saved_us: FloatColumn
    last_count: IntColumn
    duration_us: FloatColumn  # of all records of each rank
    count: FloatColumn
    row_transfer_us: FloatColumn
    row_wait_us: FloatColumn
    row_records: FloatColumn
    row_duration_us: FloatColumn
    counts: Counts = field(default_factory=Counts)
    late: IntColumn = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lateness: FloatColumn = field(default_factory=lambda: np.zeros(0))
    row: IntColumn = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def others(self) -> FloatColumn:
        """What the others waited for each rank, over the whole time."""
        return np.asarray(self.caused_us.sum(axis=1))

    def typical_lateness_us(self, place: int) -> float | None:
        """By how much a rank typically delays a collective: the median over those that it delays by
        at least a quarter of its 95% quantile; None if it delays none.

        Collectives right behind a delayed one start together: without them the tiny differences of
        those would be the median. The quantile leaves out rare long delays, such as a checkpoint.
        """
        own = self.lateness[(self.late == place) & (self.lateness > 0)]
        if not len(own):
            return None
        least = np.quantile(own, _DELAYED) / 4
        return float(np.median(own[own >= least]))

    @property
    def bin_edges_s(self) -> FloatColumn:
        """From the first record."""
        return np.linspace(0.0, (self.span_ns[1] - self.span_ns[0]) / 1e9, BINS + 1)


class _Shapes:
    """All calls of a job as codes, and the code of each process's calls. Calls that are one
    collective on different ranks have one signature.
    """

    def __init__(self, job: RecordedJob, timed: bool) -> None:
        codes: dict[tuple[object, ...], int] = {}
        rows: dict[Row, int] = {}
        signatures: dict[tuple[object, ...], int] = {}
        row_of: list[int] = []
        signature_of: list[int] = []
        synchronises: list[bool] = []
        self.of_process: list[CodeColumn] = []
        for process in job.processes:
            own = []
            for call in process.calls:
                key = (call.group.key, *call[1:])
                code = codes.setdefault(key, len(codes))
                if code == len(row_of):
                    # without times their many sizes say nothing
                    any_size = not timed and call.kind == _VARIABLE_SIZE
                    row = _row(job, call, None if any_size else call.bytes)
                    row_of.append(rows.setdefault(row, len(rows)))
                    size = None if call.kind == _VARIABLE_SIZE else call.bytes
                    signature = (call.kind, call.name, call.clock, size)
                    signature_of.append(signatures.setdefault(signature, len(signatures)))
                    synchronises.append(call.kind is not None and call.kind not in ROOTED)
                own.append(code)
            self.of_process.append(np.array(own, dtype=np.int32))
        self.rows = list(rows)
        self.row = np.array(row_of, dtype=np.int64)
        self.signature = np.array(signature_of, dtype=np.int32)
        self.synchronises = np.array(synchronises, dtype=bool)


def _row(job: RecordedJob, call: Call, size_bytes: int | None) -> Row:
    ranks = job.members(call.group)
    place = dict(zip(job.ranks, job.hosts, strict=True))
    hosts = {place.get(rank) for rank in ranks}
    count = None if None in hosts or len(ranks) < call.group.size else len(hosts)
    size = 2 if call.pair else call.group.size
    return Row(call.kind or call.name, call.group.name, size, count, size_bytes)


def waiting_of(job: RecordedJob) -> Waiting:
    """Match the collectives of a job's ranks."""
    timed = any(bool(np.isfinite(process.duration_us).any()) for process in job.processes)
    shapes = _Shapes(job, timed)
    ranks, rows = len(job.processes), len(shapes.rows)
    found = Waiting(
        job=job,
        basis="durations" if timed else "creation" if _times_compare(job) else "nothing",
        span_ns=time_span_ns(job),
        rows=shapes.rows,
        wait_us=np.zeros((ranks, BINS)),
        caused_us=np.zeros((ranks, BINS)),
        transfer_us=np.zeros(ranks),
        lateness_us=np.zeros(ranks),
        saved_us=np.zeros(ranks),
        last_count=np.zeros(ranks, dtype=np.int64),
        duration_us=np.zeros(ranks),
        count=np.zeros(rows),
        row_transfer_us=np.zeros(rows),
        row_wait_us=np.zeros(rows),
        row_records=np.zeros(rows),
        row_duration_us=np.zeros(rows),
    )
    _sum_records(found, shapes)
    parts = [part for lane in _lanes(job) for part in _lane_waits(found, shapes, lane)]
    if parts:
        late, lateness, row = zip(*parts, strict=True)
        found.late = np.concatenate(late)
        found.lateness = np.concatenate(lateness)
        found.row = np.concatenate(row)
    return found


def _times_compare(job: RecordedJob) -> bool:
    """Whether the ranks' times may be compared: of one host, of stated clocks, or where no host is
    known, which is then stated as an assumption.
    """
    return job.one_clock or set(job.hosts) == {None}


def _sum_records(found: Waiting, shapes: _Shapes) -> None:
    """Count and time of all records, matched or not."""
    for place, process in enumerate(found.job.processes):
        row = shapes.row[shapes.of_process[place]][process.call] if len(process) else process.call
        known = np.isfinite(process.duration_us)
        rows = len(found.rows)
        found.row_records += np.bincount(row, minlength=rows)
        found.row_duration_us += np.bincount(
            row[known], weights=process.duration_us[known], minlength=rows
        )
        found.duration_us[place] = process.duration_us[known].sum()


@dataclass(frozen=True)
class _Members:
    """A lane: the place of each process that has it, and its rows there."""

    lane: Lane
    places: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    same_attempts: bool

    def records(self) -> int:
        return sum(end - start for start, end in self.spans)


def _lanes(job: RecordedJob) -> Iterator[_Members]:
    """The lanes in which ranks wait for each other."""
    spans: dict[tuple[object, ...], list[tuple[int, tuple[int, int]]]] = {}
    first: dict[tuple[object, ...], Lane] = {}
    attempts: dict[tuple[object, ...], dict[int, int]] = {}
    for place, process in enumerate(job.processes):
        for lane, span in zip(process.lanes, process.spans, strict=True):
            if lane.pair or lane.group.size == 1:
                continue
            key: tuple[object, ...] = (lane.group.key, *lane[1:])
            first.setdefault(key, lane)
            spans.setdefault(key, []).append((place, span))
            base = attempts.setdefault(key[:2], {})
            base[place] = max(base.get(place, 0), lane.attempt)
    for name, members in spans.items():
        places, of_places = zip(*members, strict=True)
        same = len(set(attempts[name[:2]].values())) == 1
        yield _Members(first[name], places, of_places, same)


def _lane_waits(
    found: Waiting, shapes: _Shapes, members: _Members
) -> Iterator[tuple[IntColumn, FloatColumn, IntColumn]]:
    """Add a lane's waits; gives late rank, lateness and row of each of its matched collectives."""
    counts, size = found.counts, members.lane.group.size
    records = members.records()
    counts.records += records
    if not members.same_attempts:
        counts.restarted += records
        return
    if not enough_ranks(np.array(len(members.places)), size):
        counts.of_missing_ranks += records
        return
    numbers = [
        found.job.processes[place].number[start:end]
        for place, (start, end) in zip(members.places, members.spans, strict=True)
    ]
    first = max(int(own[0]) for own in numbers)
    last = min(int(own[-1]) for own in numbers)
    windows = [
        own[np.searchsorted(own, first) : np.searchsorted(own, last, "right")] for own in numbers
    ]
    every = windows[0]
    for own in windows[1:]:
        if not np.array_equal(own, every):
            every = np.union1d(every, own)
    inside = sum(map(len, windows))
    counts.outside += records - inside
    counts.absent += len(every) * len(windows) - inside
    width = max(1, _BLOCK // len(windows))
    for start in range(0, len(every), width):
        block = _block(found, shapes, members, numbers, every[start : start + width])
        counts.matched += block.matched
        counts.unlike += block.unlike
        counts.dropped += block.records - block.matched - block.unlike
        if len(block.row):
            yield _add(found, members, block)


@dataclass(frozen=True)
class _Block:
    """Matched collectives: a row of `duration_us` for each member."""

    duration_us: Matrix
    row: IntColumn
    when_ns: IntColumn
    records: int
    matched: int
    unlike: int


def _block(
    found: Waiting, shapes: _Shapes, members: _Members, numbers: list[IntColumn], every: IntColumn
) -> _Block:
    """The collectives of these numbers, as far as they are found on all ranks."""
    duration_us = np.full((len(numbers), len(every)), np.nan)
    code = np.full((len(numbers), len(every)), -1, dtype=np.int32)
    when_ns = np.zeros(len(every), dtype=np.int64)
    for index, (place, (start, _)) in enumerate(zip(members.places, members.spans, strict=True)):
        process = found.job.processes[place]
        at = np.minimum(np.searchsorted(numbers[index], every), len(numbers[index]) - 1)
        held = numbers[index][at] == every
        rows = start + at[held]
        code[index, held] = shapes.of_process[place][process.call[rows]]
        created_ns = process.created_ns[rows]
        if found.basis == "durations":
            duration_us[index, held] = process.duration_us[rows]
        else:
            since_us = _creation_us(found, place, created_ns)
            duration_us[index, held] = np.where(process.unfinished[rows], np.nan, since_us)
        when_ns[held] = np.where(when_ns[held] == UNKNOWN_NS, created_ns, when_ns[held])
    if found.basis != "durations":
        # ahead of the last one, as the duration of a collective without a transfer would be
        duration_us = np.fmax.reduce(duration_us, axis=0) - duration_us
    held = code >= 0
    alike = _alike(shapes, code, held)
    size = members.lane.group.size
    present = np.isfinite(duration_us).sum(axis=0)
    shape = np.max(code, axis=0)  # of those that hold it, which are alike
    synchronises = shapes.synchronises[shape]
    whole = alike & enough_ranks(present, size) & synchronises
    per_number = held.sum(axis=0)
    return _Block(
        duration_us=duration_us[:, whole],
        row=shapes.row[shape[whole]],
        when_ns=when_ns[whole],
        records=int(per_number[synchronises].sum()),
        matched=int(per_number[whole].sum()),
        unlike=int(per_number[~alike & synchronises].sum()),
    )


def _creation_us(found: Waiting, place: int, created_ns: IntColumn) -> FloatColumn:
    """The times of a host's calls from the first record, by the common clock; NaN if unknown."""
    where = found.job.places[place]
    ahead_ns = 0 if where is None else where.clock_ahead_ns
    since = (created_ns - found.span_ns[0] - ahead_ns) / 1e3
    unknown = (created_ns == UNKNOWN_NS) | bool(found.job.processes[place].clock_jumps)
    return np.where(unknown, np.nan, since)


def _alike(shapes: _Shapes, code: CodeColumn, held: BoolColumn) -> BoolColumn:
    """Numbers under which all ranks recorded the same kind and size, timed in the same way."""
    signature = shapes.signature[code]
    highest = np.where(held, signature, -1)
    lowest = np.where(held, signature, len(shapes.signature))
    return np.asarray(highest.max(axis=0) == lowest.min(axis=0))


def _add(
    found: Waiting, members: _Members, block: _Block
) -> tuple[IntColumn, FloatColumn, IntColumn]:
    """Add matched collectives to the sums."""
    places = np.array(members.places)
    taken = np.where(np.isnan(block.duration_us), np.inf, block.duration_us)
    columns = np.arange(taken.shape[1])
    late = taken.argmin(axis=0)
    shortest = taken[late, columns]
    wait_us = np.where(np.isinf(taken), 0.0, taken - shortest)
    taken[late, columns] = np.inf
    lateness = taken.min(axis=0) - shortest
    caused_us = wait_us.sum(axis=0)
    late_place = places[late]
    ranks, rows = len(found.job.processes), len(found.rows)
    in_bin = _bins(found, block.when_ns)
    one_hot = np.zeros((len(columns), BINS))
    one_hot[columns, in_bin] = 1.0
    found.wait_us[places] += wait_us @ one_hot
    np.add.at(found.caused_us, (late_place, in_bin), caused_us)
    found.transfer_us[places] += np.isfinite(block.duration_us) @ shortest
    found.lateness_us += np.bincount(late_place, weights=lateness, minlength=ranks)
    others = len(places) - 1
    found.saved_us += others * np.bincount(late_place, weights=lateness, minlength=ranks)
    found.last_count += np.bincount(late_place[lateness > 0], minlength=ranks)
    found.count += np.bincount(block.row, minlength=rows)
    found.row_transfer_us += np.bincount(block.row, weights=shortest, minlength=rows)
    found.row_wait_us += np.bincount(block.row, weights=caused_us / len(places), minlength=rows)
    return late_place, lateness, block.row


def _bins(found: Waiting, when_ns: IntColumn) -> IntColumn:
    first, last = found.span_ns
    share = (when_ns - first) / max(last - first, 1)
    return np.clip((share * BINS).astype(np.int64), 0, BINS - 1)
