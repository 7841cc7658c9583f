"""Partials: the tables of ranks in a file. `dpscope reduce` writes them, and they keep what was read of a run's traces.

A file is Parquet with a row per rank: what is known of it, and its tables as lists of structs. No row refers to another, so
that rows of any number of files are joined by putting them together, in whatever order and tree. The file's metadata hold the
version of the format and the traces that could not be read. Nothing is pickled: any Parquet reader can show the tables, and
reading a file never executes its content.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from dpscope.analysis.traces.ranks.origin import Origin
from dpscope.analysis.traces.ranks.rank_rows import RankRows, from_lists, list_type, texts, to_lists
from dpscope.analysis.traces.ranks.rank_tables import COLUMNS, RankTables, TraceSummary
from dpscope.analysis.traces.ranks.timeline import StepTimeline, timeline_bytes, timeline_of
from dpscope.analysis.traces.reading.table import COLUMN_KINDS, Table
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.quantities import MOST_COUNT
from dpscope.profiling.store.errors import DpscopeError, unreadable
from dpscope.profiling.store.files import atomic_path
from dpscope.profiling.store.ownership import PARTIAL_KEY

FORMAT_VERSION = 10  # increase it when a column is redefined; one that is added or removed shows in the schema
_RECORD = "record"  # a `RankRecord` as msgpack
_TIMELINE = "timeline"  # its bytes, none where a rank has none
_LISTS = [(table, list_type(columns)) for table, columns in COLUMNS.items()]
_SCHEMA = pa.schema(
    [
        (_RECORD, pa.binary()),
        *_LISTS,
        (_TIMELINE, pa.binary()),
    ]
)


class RankRecord(msgspec.Struct, frozen=True):
    """What a partial holds of a rank besides its tables."""

    origin: Origin
    summary: TraceSummary
    findings: tuple[Finding, ...] = ()


class Unread(msgspec.Struct, frozen=True, order=True):
    """A trace that could not be read, and why."""

    file: str
    message: str


class _Head(msgspec.Struct):
    schema_version: int
    unread: list[Unread] = []


@dataclass(frozen=True)
class Partial:
    """Ranks, and their tables by name."""

    ranks: Sequence[RankRecord]
    tables: Mapping[str, RankRows]
    timelines: Sequence[bytes]  # of each rank, b"" for none; no element where they were not read
    unread: tuple[Unread, ...] = ()

    def take(self, places: Sequence[int]) -> "Partial":
        """The ranks at these places, in this order."""
        chosen = np.array(places, dtype=np.int64)
        timelines = [self.timelines[place] for place in places] if self.timelines else ()
        return Partial(
            ranks=[self.ranks[place] for place in places],
            tables={name: rows.take(chosen) for name, rows in self.tables.items()},
            timelines=timelines,
            unread=self.unread,
        )

    def order(self) -> list[int]:
        """Places of the ranks by number, unknown ones last."""

        def key(place: int) -> tuple[bool, int, str, Origin]:
            summary = self.ranks[place].summary
            return summary.rank is None, summary.rank or 0, summary.source, self.ranks[place].origin

        return sorted(range(len(self.ranks)), key=key)

    def each_once(self) -> list[int]:
        """As `order`, with always the same one of the ranks that several partials hold of one trace: the last."""
        once: dict[object, int] = {}
        for place in self.order():
            origin = self.ranks[place].origin
            trace = (
                self.ranks[place].summary.rank,
                Path(origin.file).name,
                origin.size_bytes,
                origin.modified_ns,
            )
            once.pop(trace, None)
            once[trace] = place
        return list(once.values())

    def to_ranks(self) -> RankTables:
        """As what reading the traces gives; without timelines where they were not read."""
        return RankTables(
            **{name: rows.table for name, rows in self.tables.items()},
            summaries=tuple(one.summary for one in self.ranks),
            findings=tuple(finding for one in self.ranks for finding in one.findings),
            collective_owner=self.tables["collectives"].owners,
            timelines=tuple(map(timeline_of, self.timelines)),
        )


def of_trace(ranks: Sequence[RankTables], origin: Origin | None, read_on: str | None = None) -> Partial:
    """What was read of one trace; `read_on` is the host that did, if the trace was on it."""
    tables = {}
    for name, columns in COLUMNS.items():
        each = [getattr(one, name) for one in ranks]
        tables[name] = RankRows.of_ranks(each, columns)
    records = []
    for one in ranks:
        (summary,) = one.summaries
        known = origin or Origin(summary.source)
        records.append(
            RankRecord(
                known,
                replace(summary, read_on=read_on),
                one.findings,
            )
        )
    timelines = [timeline_bytes(one.timelines[0]) for one in ranks]
    return Partial(records, tables, timelines)


NO_RANKS = of_trace((), None)


def join_partials(parts: Sequence[Partial], unread: Sequence[Unread] = ()) -> Partial:
    """The ranks of these partials, one after the other; `unread` are further traces that could not be read."""
    parts = [NO_RANKS, *parts]  # has the columns where the others are none
    ranks = [rank for part in parts for rank in part.ranks]
    read = {rank.origin.file for rank in ranks}
    missing = {one for part in parts for one in part.unread if one.file not in read}
    return Partial(
        ranks=ranks,
        tables={name: RankRows.joined([part.tables[name] for part in parts]) for name in COLUMNS},
        timelines=[timeline for part in parts for timeline in part.timelines],
        unread=tuple(sorted(missing.union(unread))),
    )


def write_partial(partial: Partial, place: Path) -> None:
    """Write a partial whole or not at all; raises DpscopeError if it cannot be written."""
    import pyarrow.parquet as pq

    head = _Head(FORMAT_VERSION, list(partial.unread))
    records = [msgspec.msgpack.encode(one) for one in partial.ranks]
    arrays = [
        texts(records, pa.binary()),
        *(to_lists(partial.tables[table], columns) for table, columns in COLUMNS.items()),
        texts(partial.timelines, pa.binary()),
    ]
    rows = pa.Table.from_arrays(arrays, schema=_SCHEMA)
    # Statistics and Arrow's own schema would be half of the file.
    small = {
        "compression": "zstd",
        "compression_level": 9,
        "write_statistics": False,
        "store_schema": False,
    }
    try:
        with (
            atomic_path(place) as temporary,
            pq.ParquetWriter(temporary, _SCHEMA, write_page_checksum=True, **small) as writer,
        ):
            writer.write_table(rows)
            writer.add_key_value_metadata({PARTIAL_KEY: msgspec.json.encode(head).decode()})
    except OSError as error:
        # A full disk has a text, Arrow's own errors have none.
        reason = error.strerror or error
        raise DpscopeError(f"cannot write {place}: {reason}; choose another folder with -o") from error


def read_partial(path: Path, with_timelines: bool = True) -> Partial:
    """Read a partial; raises DpscopeError for other or damaged files and for another version of the format."""
    names = [name for name in _SCHEMA.names if with_timelines or name != _TIMELINE]
    decode = msgspec.msgpack.Decoder(RankRecord).decode
    with _damage_in_a_line(path):
        head, rows = _content(path, names)
        partial = Partial(
            ranks=list(map(decode, rows[_RECORD].to_pylist())),
            tables={name: from_lists(rows[name].combine_chunks(), columns) for name, columns in COLUMNS.items()},
            timelines=rows[_TIMELINE].to_pylist() if with_timelines else (),
            unread=tuple(head.unread),
        )
        for timeline in partial.timelines:
            timeline_of(timeline)
    for name, table in partial.tables.items():
        if reason := _unsound(table.table):
            raise DpscopeError(f"{path}: {name}.{reason}, which no trace gives; reduce its traces again, or omit it")
    return partial


def read_timelines(path: Path) -> list[StepTimeline | None]:
    """The drawn step of each rank in a partial; raises as `read_partial`."""
    with _damage_in_a_line(path):
        _, rows = _content(path, [_TIMELINE])
        return [timeline_of(timeline) for timeline in rows[_TIMELINE].to_pylist()]


@contextmanager
def _damage_in_a_line(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise DpscopeError(unreadable(path, error)) from error
    except (OSError, ArithmeticError, TypeError, ValueError, pa.ArrowException) as error:
        # msgspec's are ValueErrors
        raise DpscopeError(
            f"{path} is not a complete partial of dpscope reduce; reduce its traces again, or omit it"
        ) from error


def _content(path: Path, names: list[str]) -> tuple[_Head, pa.Table]:
    """The head and some columns of a file of this version."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        metadata = file.metadata.metadata or {}
        mark = metadata.get(PARTIAL_KEY.encode(), b"")
        head = msgspec.json.decode(mark, type=_Head)
        if head.schema_version != FORMAT_VERSION:
            raise DpscopeError(
                f"{path} is a partial of version {head.schema_version}, and this dpscope reads {FORMAT_VERSION}; reduce its "
                "traces again, or read it with the dpscope that wrote it"
            )
        rows = file.read(names, use_threads=False).replace_schema_metadata(None)
    expected = pa.schema([_SCHEMA.field(name) for name in names])
    if not rows.schema.equals(expected):
        raise DpscopeError(f"{path} was written by another dpscope: its columns differ; reduce its traces again")
    return head, rows


_MAY_BE_NEGATIVE = frozenset(
    {"start_us", "end_us", "ready_us", "queue_us"}
)  # on a trace's clock, or between two clocks
_DIGESTS = frozenset({"kernel_class"})


def _unsound(table: Table) -> str:
    """A number that cannot have been measured, in words; empty without any. A duration may be rounded below 0."""
    for name in table.names:
        if COLUMN_KINDS[name] not in ("real", "whole") or name in _DIGESTS:
            continue
        known = table.known(name)
        values = table[name][known]
        least = -float(MOST_COUNT) if name in _MAY_BE_NEGATIVE else -1.0
        wrong = values[(values <= least) | (values > MOST_COUNT)]
        if len(wrong):
            return f"{name} is {wrong[0]:g}"
    return ""
