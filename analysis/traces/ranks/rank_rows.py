"""Ranks as rows of one Arrow table: what a partial and a cache file hold.

A row is one process's trace: what it shows of itself, its small tables as lists of structs, its findings. No row refers to
another, so that rows of any number of files are joined by putting them together, in whatever order and tree.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpscope.analysis.traces.data_parallel import phases as dp_phases
from dpscope.analysis.traces.ranks.parallelism import ParallelismEvidence
from dpscope.analysis.traces.ranks.rank_tables import (
    TABLES,
    RankTables,
    TraceIdentity,
    TraceSummary,
)
from dpscope.analysis.traces.ranks.timeline import StepTimeline, timeline_bytes, timeline_of
from dpscope.analysis.traces.reading.event_table import IntColumn
from dpscope.analysis.traces.reading.table import COLUMN_KINDS, UNKNOWN, Column, Kind, Table, Words, is_known
from dpscope.analysis.traces.steps import breakdown, collectives, kernel_times
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.quantities import MOST_COUNT, Count

_COLUMNS: dict[str, tuple[str, ...]] = {
    "steps": breakdown.COLUMNS,
    "collectives": collectives.COLUMNS,
    "dp_phases": dp_phases.COLUMNS,
    "exposed": breakdown.EXPOSED_COLUMNS,
    "copies": dp_phases.COPY_COLUMNS,
    "kernels": kernel_times.COLUMNS,
}
"""A rank's tables and their columns; `rank` belongs to the row and is in no list."""

TIMELINE = "timeline"
READ_ON = "reduced_on"  # a column of partials alone
_ARROW: dict[Kind, pa.DataType] = {"word": pa.string(), "truth": pa.bool_(), "real": pa.float64(), "whole": pa.int64()}
_FINDING = pa.struct([(name, pa.string()) for name in ("severity", "code", "message", "next_step")])


def _list(kind: pa.DataType) -> pa.DataType:
    """With its elements named as Parquet names them, so that a file needs only its own schema."""
    return pa.list_(pa.field("element", kind))


_TABLE_SCHEMAS = {
    name: pa.schema([(column, _ARROW[COLUMN_KINDS[column]]) for column in columns if column != "rank"])
    for name, columns in _COLUMNS.items()
}
_OWN = {
    "source": pa.string(),
    "rank": pa.int64(),
    "host": pa.string(),
    "zero_ns": pa.int64(),
    "on_device": pa.bool_(),
    "communication_shown": pa.bool_(),
    "cut_short": pa.bool_(),
}
SCHEMA = pa.schema(
    [
        *_OWN.items(),
        ("evidence", pa.binary()),  # msgpack: _Evidence
        ("findings", _list(_FINDING)),
        *((name, _list(pa.struct(list(schema)))) for name, schema in _TABLE_SCHEMAS.items()),
        (TIMELINE, pa.binary()),
    ]
)


@dataclass(frozen=True)
class _Evidence:
    """The parts of a summary without a column."""

    range_counts: dict[str, dict[Count | None, Count]]
    parallelism: ParallelismEvidence
    reduction_ends_us: dict[int | None, list[float]]
    identity: TraceIdentity  # source, rank and host are columns
    device_name: str | None = None


def to_rows(ranks: Sequence[RankTables]) -> pa.Table:
    """A row for each of these tables of one rank, SCHEMA."""
    return pa.Table.from_batches([_row(one) for one in ranks], SCHEMA)


def _row(one: RankTables) -> pa.RecordBatch:
    (summary,), (timeline,) = one.summaries, one.timelines
    identity = {one.name: getattr(summary, one.name) for one in fields(TraceIdentity)}
    without_columns = TraceIdentity(**{**identity, "source": "", "rank": None, "host": None})
    evidence = msgspec.to_builtins(
        _Evidence(
            summary.range_counts, summary.parallelism, summary.reduction_ends_us, without_columns, summary.device_name
        )
    )
    evidence["parallelism"]["asked_kinds"].sort()  # a set has another order in every process
    columns: dict[str, pa.Array] = {name: pa.array([getattr(summary, name)], kind) for name, kind in _OWN.items()}
    columns["evidence"] = pa.array([msgspec.msgpack.encode(evidence)], pa.binary())
    columns["findings"] = pa.array([msgspec.to_builtins(one.findings)], SCHEMA.field("findings").type)
    columns[TIMELINE] = pa.array([timeline_bytes(timeline)], pa.binary())
    for name, schema in _TABLE_SCHEMAS.items():
        cells = []
        for own in schema:
            column: Column = getattr(one, name).column(own.name)
            words = isinstance(column, Words)
            cells.append(
                pa.array(column.tolist() if words else column, own.type, mask=None if words else ~is_known(column))
            )
        rows = pa.StructArray.from_arrays(cells, fields=list(schema))
        columns[name] = pa.ListArray.from_arrays(
            pa.array([0, len(rows)], pa.int32()), rows, type=SCHEMA.field(name).type
        )
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


_MOMENTS = ("start_us", "end_us", "ready_us", "queue_us")  # on a trace's clock, or a distance between two clocks
_DIGESTS = ("kernel_class",)
_ROUNDING_US = 1.0


def unsound(rows: pa.Table) -> str:
    """A number of these rows that cannot have been measured, in words; empty without any."""
    columns = {name: rows.column(name) for name in ("rank", "world_size") if name in rows.column_names}
    for table, schema in _TABLE_SCHEMAS.items():
        if table in rows.column_names:
            cells = _one_array(rows.column(table)).flatten().flatten()
            numbers = {own.name: values for own, values in zip(schema, cells, strict=True) if own.name not in _DIGESTS}
            columns |= {
                f"{table}.{name}": one for name, one in numbers.items() if COLUMN_KINDS[name] in ("real", "whole")
            }
    for name, values in columns.items():
        least = -MOST_COUNT if name.endswith(_MOMENTS) else -_ROUNDING_US if name.endswith("_us") else 0
        for end in pc.min_max(values).as_py().values():
            if end is not None and not math.isnan(end) and not least <= end <= MOST_COUNT:
                return f"{name} is {end:g}"
    return ""


def join_rows(rows: pa.Table) -> RankTables:
    """The ranks of these rows, which are in order; without timelines where the rows have none."""
    tables = {name: _table_of(rows, name) for name in TABLES}
    return RankTables(
        **{name: table for name, (table, _) in tables.items()},
        summaries=summaries_of(rows),
        findings=findings_of(rows),
        collective_owner=tables["collectives"][1],
        timelines=tuple(timelines_of(rows)) if TIMELINE in rows.column_names else (),
    )


def _table_of(rows: pa.Table, name: str) -> tuple[Table, IntColumn]:
    """One table of all rows, in their order, and the index of the row that each line is of."""
    lists = _one_array(rows.column(name))
    owner = lists.value_parent_indices().to_numpy(zero_copy_only=False).astype(np.int64)
    cells = dict(zip(_TABLE_SCHEMAS[name].names, lists.flatten().flatten(), strict=True))
    ranks = _one_array(rows.column("rank")).take(pa.array(owner))
    columns = {column: ranks if column == "rank" else cells[column] for column in _COLUMNS[name]}
    return Table({column: _column(values, COLUMN_KINDS[column]) for column, values in columns.items()}), owner


def _column(values: pa.Array, kind: Kind) -> Column:
    if kind == "word":
        coded = values.dictionary_encode()
        words = [*coded.dictionary.to_pylist(), None]
        return Words.coded(coded.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False), words)
    if kind == "real":
        return np.asarray(values.fill_null(np.nan).to_numpy(zero_copy_only=False))
    return np.asarray(values.cast(pa.int64()).fill_null(UNKNOWN).to_numpy(zero_copy_only=False))


def summaries_of(rows: pa.Table) -> tuple[TraceSummary, ...]:
    """The summary of each row's trace."""
    decode = msgspec.msgpack.Decoder(_Evidence).decode
    found = []
    names = [name for name in ("evidence", *_OWN, READ_ON) if name in rows.column_names]
    for own in rows.select(names).to_pylist():
        evidence, read_on = vars(decode(own.pop("evidence"))), own.pop(READ_ON, None)
        found.append(TraceSummary(**vars(evidence.pop("identity")) | evidence | own, read_on=read_on))
    return tuple(found)


def findings_of(rows: pa.Table) -> tuple[Finding, ...]:
    """The findings of all rows' traces."""
    return tuple(msgspec.convert(one, Finding) for found in rows["findings"].to_pylist() for one in found)


def timelines_of(rows: pa.Table) -> list[StepTimeline | None]:
    """The drawn step of each row."""
    return [timeline_of(one) for one in rows.column(TIMELINE).to_pylist()]


def renamed(rows: pa.Table, now: str, then: str) -> pa.Table:
    """With another path of their traces, in their sources and in what was found."""
    sources = [one.replace(now, then) for one in rows.column("source").to_pylist()]
    findings = [
        [{key: text.replace(now, then) for key, text in one.items()} for one in found]
        for found in rows.column("findings").to_pylist()
    ]
    for name, values in (("source", sources), ("findings", findings)):
        place = SCHEMA.get_field_index(name)
        rows = rows.set_column(place, SCHEMA.field(name), pa.array(values, SCHEMA.field(name).type))
    return rows


def write_rows(rows: pa.Table, where: Any, metadata: Mapping[str, str] = MappingProxyType({})) -> None:
    """Rows as a Parquet file, a path or an open one; without statistics and Arrow's schema, which would be half of it."""
    import pyarrow.parquet as pq

    with pq.ParquetWriter(
        where,
        rows.schema,
        compression="zstd",
        compression_level=9,
        write_statistics=False,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(dict(metadata))


def _one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
