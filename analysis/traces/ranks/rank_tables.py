"""What readers give: the tables of ranks, each by itself, and what else is known of each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from dpscope.analysis.traces.ranks.origin import Origin
from dpscope.analysis.traces.ranks.parallelism import ParallelismEvidence
from dpscope.analysis.traces.ranks.timeline import StepTimeline, timeline_of
from dpscope.analysis.traces.reading.event_table import IntColumn
from dpscope.analysis.traces.reading.table import Table, joined, without_rows
from dpscope.analysis.traces.steps import breakdown, collectives, data_parallel, kernel_times
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.quantities import Count, Stamp

Group = tuple[str, tuple[int, ...]]
"""A process group's name and its ranks."""


@dataclass(frozen=True)
class TraceSummary:
    """What one process's trace shows besides its tables; None where it does not record it.

    `start_ns` and `end_ns` are those of its first and last event since 1970.
    """

    source: str
    rank: Count | None = None
    world_size: Count | None = None
    host: str | None = None
    process_id: Count | None = None
    groups: tuple[Group, ...] = ()
    start_ns: Stamp | None = None
    end_ns: Stamp | None = None
    first_step: Count | None = None
    last_step: Count | None = None
    content: str | None = None  # digest of its events; None without events
    on_device: bool = False
    range_counts: dict[str, dict[Count | None, Count]] = field(default_factory=dict)
    """Of dpscope's own ranges: name -> step -> how many."""
    parallelism: ParallelismEvidence = field(default_factory=ParallelismEvidence)
    # False: it must have communicated, or computed on devices, and nothing of it is there.
    communication_shown: bool = True
    # Step -> when DDP had copied the last gradient out of its bucket, each time that it reduced.
    reduction_ends_us: dict[int | None, list[float]] = field(default_factory=dict)
    zero_ns: int = 0  # the trace's clock, as in `Trace`
    read_on: str | None = None  # the host that reduced the trace where it lay
    cut_short: bool = False  # the trace's file ends too early, or cannot be read to its end
    device_name: str | None = None  # of the first device that the trace lists
    format: str = "trace"  # as in `Trace`
    # name and value of what the file records of where it was made
    environment: tuple[tuple[str, str], ...] = ()


COLUMNS: dict[str, tuple[str, ...]] = {
    "steps": breakdown.COLUMNS,
    "collectives": collectives.COLUMNS,
    "dp_phases": data_parallel.COLUMNS,
    "exposed": breakdown.EXPOSED_COLUMNS,
    "copies": data_parallel.COPY_COLUMNS,
    "kernels": kernel_times.COLUMNS,
}
"""The tables of a rank and their columns, as its trace gives them and as files keep them."""


class RankRecord(msgspec.Struct, frozen=True):
    """What is known of a rank besides its tables."""

    summary: TraceSummary
    findings: tuple[Finding, ...] = ()
    timeline: bytes = b""  # `timeline_bytes` of one whole step to draw
    origin: Origin = Origin("")  # of a stored rank


class Unread(msgspec.Struct, frozen=True, order=True):
    """A trace that could not be read, and why."""

    file: str
    message: str


@dataclass(frozen=True)
class RankTables:
    """Ranks, and their tables by name, keyed by (rank, device, step); unknown values are
    missing.

    All ranks' rows are in one table, so that joining thousands of ranks makes few arrays; a rank's
    rows are found by `lengths`, since ranks of damaged traces may have no number, or the same one.
    """

    ranks: Sequence[RankRecord]
    tables: Mapping[str, Table]  # COLUMNS, one rank's rows after the other's
    lengths: Mapping[str, IntColumn]  # of each table the rows of each rank
    unread: tuple[Unread, ...] = ()

    @property
    def summaries(self) -> tuple[TraceSummary, ...]:
        return tuple(rank.summary for rank in self.ranks)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for rank in self.ranks for finding in rank.findings)

    def places(self, name: str) -> IntColumn:
        """The place of the rank of each row of a table."""
        return np.repeat(np.arange(len(self.ranks)), self.lengths[name])

    def timelines(self, places: Iterable[int]) -> list[StepTimeline]:
        """The drawn steps of those of these ranks that have one."""
        drawn = [timeline_of(self.ranks[place].timeline) for place in places]
        return [timeline for timeline in drawn if timeline is not None]

    def take(self, places: Sequence[int]) -> "RankTables":
        """The ranks at these places, in this order."""
        chosen = np.array(places, dtype=np.int64)
        tables = {}
        lengths = {}
        for name, table in self.tables.items():
            rows = _rows_of(self.lengths[name], chosen)
            tables[name] = table.take(rows)
            lengths[name] = self.lengths[name][chosen]
        ranks = [self.ranks[place] for place in places]
        return RankTables(ranks, tables, lengths, self.unread)

    def order(self) -> list[int]:
        """Places of the ranks, in `rank_order`."""
        sources = [f"{rank.summary.source}\0{rank.origin.file}" for rank in self.ranks]
        numbers = [rank.summary.rank for rank in self.ranks]
        return rank_order(numbers, sources)

    def each_once(self) -> list[int]:
        """As `order`, with always the same one of the ranks that several files hold of one trace:
        the last.
        """
        once: dict[object, int] = {}
        for place in self.order():
            origin = self.ranks[place].origin
            trace: object = place
            if origin.file:
                # its folder may differ: traces are copied, or read on several hosts
                name = Path(origin.file).name
                rank = self.ranks[place].summary.rank
                trace = (rank, name, origin.size_bytes, origin.modified_ns)
            once.pop(trace, None)  # the last one stands where it is itself
            once[trace] = place
        return list(once.values())

    def stored_of(self, origin: Origin, read_on: str | None = None) -> "RankTables":
        """To be stored as read of this trace; `read_on` is the host that did, if the trace was on
        it.
        """
        records = []
        for record in self.ranks:
            summary = replace(record.summary, read_on=read_on)
            stored = msgspec.structs.replace(record, summary=summary, origin=origin)
            records.append(stored)
        return replace(self, ranks=records)


def rank_order(ranks: Sequence[int | None], sources: Sequence[str]) -> list[int]:
    """Places of traces by rank, unknown ranks last; those of the same rank by their source."""

    def key(place: int) -> tuple[bool, int, str]:
        rank = ranks[place]
        return rank is None, rank or 0, sources[place]

    return sorted(range(len(ranks)), key=key)


def _rows_of(lengths: IntColumn, ranks: IntColumn) -> IntColumn:
    """The rows of these ranks, one after the other, in tables with so many rows of each."""
    starts = np.cumsum(lengths) - lengths
    taken = lengths[ranks]
    taken_starts = np.cumsum(taken) - taken
    # from a rank's place among the rows that are taken to that among all
    shift = np.repeat(starts[ranks] - taken_starts, taken)
    return shift + np.arange(taken.sum())


_NO_ROWS = {name: without_rows(columns) for name, columns in COLUMNS.items()}


def of_rank(record: RankRecord, **tables: Table) -> RankTables:
    """One rank and its tables; what a format does not know is left out, table or column."""
    # a misspelt name would lose its table in silence
    assert tables.keys() <= COLUMNS.keys()
    whole: dict[str, Table] = {}
    lengths: dict[str, IntColumn] = {}
    for name, columns in COLUMNS.items():
        table = tables.get(name, _NO_ROWS[name])
        missing = [column for column in columns if column not in table]
        whole[name] = table.assign(**dict.fromkeys(missing))
        lengths[name] = np.array([len(table)])
    return RankTables([record], whole, lengths)


NO_RANKS = RankTables((), _NO_ROWS, {name: np.zeros(0, dtype=np.int64) for name in COLUMNS})


def join_ranks(parts: Sequence[RankTables], unread: Sequence[Unread] = ()) -> RankTables:
    """The ranks of these parts, one after the other; `unread` are further traces that could not be
    read.
    """
    parts = [NO_RANKS, *parts]  # so that there is one to take the columns from
    ranks: list[RankRecord] = []
    missing = set(unread)
    for part in parts:
        ranks += part.ranks
        missing.update(part.unread)
    # what one part could not read, another may have read
    files_read = {rank.origin.file for rank in ranks}
    missing = {trace for trace in missing if trace.file not in files_read or trace in unread}
    tables = {}
    lengths = {}
    for name in COLUMNS:
        tables[name] = joined([part.tables[name] for part in parts])
        lengths[name] = np.concatenate([part.lengths[name] for part in parts])
    return RankTables(ranks, tables, lengths, tuple(sorted(missing)))
