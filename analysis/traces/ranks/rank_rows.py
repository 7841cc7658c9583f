"""Ranks as rows of one Arrow table: what a worker sends back, what a partial holds, what a job's tables are joined from.

A row is one process's trace: what it said of itself, its small tables as lists of structs, its findings. No row refers to
another, so that rows of any number of files are joined by putting them together, in whatever order and tree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa

from dpscope.analysis.traces.data_parallel import phases as dp_phases
from dpscope.analysis.traces.ranks.identity import TraceIdentity
from dpscope.analysis.traces.ranks.parallelism import ParallelismEvidence
from dpscope.analysis.traces.ranks.rank_tables import RankTables, TraceSummary
from dpscope.analysis.traces.ranks.timeline import StepTimeline
from dpscope.analysis.traces.ranks.timeline_bytes import timeline_bytes, timeline_of
from dpscope.analysis.traces.steps import breakdown, collectives, exposed, kernel_times
from dpscope.profiling.records.finding import Finding

COPY_COLUMNS = ("device", "step", "bytes", "model_bytes", "count")
TABLES: dict[str, tuple[str, ...]] = {
    "steps": breakdown.COLUMNS,
    "collectives": collectives.COLUMNS,
    "dp_phases": dp_phases.COLUMNS,
    "exposed": exposed.COLUMNS,
    "copies": ("rank", *COPY_COLUMNS),
    "kernels": kernel_times.COLUMNS,
}
"""A rank's tables and their columns; `rank` is the row's own and stands in no list."""

TIMELINE = "timeline"
READ_ON = "reduced_on"  # a column of partials alone
_WORDS = frozenset({"kind", "moved_as", "group", "group_ranks", "phase", "operator"})
_TRUTHS = frozenset({"partial_window", "compute_stream", "overlapped"})
_SHARES = frozenset({"compute_done", "compiled_share"})
_KNOWN = {"exposed": ("start_us", "end_us"), "copies": ("device", "bytes", "model_bytes", "count")}  # never NA
_FINDING = pa.struct([(name, pa.string()) for name in ("severity", "code", "message", "next_step")])


def _list(kind: pa.DataType) -> pa.DataType:
    """With its elements named as Parquet names them, so that a file needs no other schema beside its own."""
    return pa.list_(pa.field("element", kind))


def _type(column: str) -> pa.DataType:
    if column in _WORDS:
        return pa.string()
    if column in _TRUTHS:
        return pa.bool_()
    return pa.float64() if column.endswith("_us") or column in _SHARES else pa.int64()


_TABLE_SCHEMAS = {
    name: pa.schema([(column, _type(column)) for column in columns if column != "rank"])
    for name, columns in TABLES.items()
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
_DTYPES = {
    pa.int64(): pd.Int64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.string(): pd.StringDtype(),
    pa.bool_(): pd.BooleanDtype(),
}


@dataclass(frozen=True)
class _Evidence:
    """What of a summary has no column of its own."""

    range_counts: dict[str, dict[int | None, int]]
    parallelism: ParallelismEvidence
    reduction_ends_us: dict[int | None, list[float]]
    identity: TraceIdentity  # source, rank and host are columns


def to_rows(ranks: Sequence[RankTables]) -> pa.Table:
    """A row for each rank, SCHEMA."""
    batches = [_row(one) for one in ranks]
    return pa.Table.from_batches(batches, SCHEMA)


def _row(one: RankTables) -> pa.RecordBatch:
    summary = one.summary
    identity = replace(summary.identity, source="", rank=None, host=None)
    evidence = msgspec.to_builtins(
        _Evidence(summary.range_counts, summary.parallelism, summary.reduction_ends_us, identity)
    )
    evidence["parallelism"]["asked_kinds"].sort()  # a set has another order in every process
    columns: dict[str, pa.Array] = {name: pa.array([getattr(summary, name)], kind) for name, kind in _OWN.items()}
    columns["evidence"] = pa.array([msgspec.msgpack.encode(evidence)], pa.binary())
    columns["findings"] = pa.array([msgspec.to_builtins(one.findings)], SCHEMA.field("findings").type)
    for name, schema in _TABLE_SCHEMAS.items():
        frame = getattr(one, name)
        cells = [_one_array(pa.array(frame[field.name], field.type, from_pandas=True)) for field in schema]
        rows = pa.StructArray.from_arrays(cells, fields=list(schema))
        offsets = pa.array([0, len(rows)], pa.int32())
        columns[name] = pa.ListArray.from_arrays(offsets, rows, type=SCHEMA.field(name).type)
    columns[TIMELINE] = pa.array([timeline_bytes(one.timeline)], pa.binary())
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def table_of(rows: pa.Table, name: str) -> tuple[pd.DataFrame, Any]:
    """One table of all rows, in their order, and the index of the row that each line is of (int64 array).

    Columns and types are those of the function that makes the table of one rank.
    """
    lists = _one_array(rows.column(name))
    owner = lists.value_parent_indices().to_numpy(zero_copy_only=False)
    batch = pa.RecordBatch.from_struct_array(lists.flatten())
    frame = batch.to_pandas(types_mapper=_DTYPES.get, use_threads=False)
    ranks = _one_array(rows.column("rank")).take(pa.array(owner))
    frame.insert(0, "rank", pd.array(ranks.to_pandas(types_mapper=_DTYPES.get), dtype="Int64"))
    for column in _KNOWN.get(name, ()):
        frame[column] = frame[column].astype(frame[column].dtype.name.lower())
    return frame, owner


def summaries_of(rows: pa.Table) -> tuple[TraceSummary, ...]:
    """What each row's trace said beside its tables."""
    decode = msgspec.msgpack.Decoder(_Evidence).decode
    own = [rows.column(name).to_pylist() for name in _OWN]
    read_on = rows.column(READ_ON).to_pylist() if READ_ON in rows.column_names else [None] * rows.num_rows
    evidence = (decode(one) for one in rows.column("evidence").to_pylist())
    return tuple(
        TraceSummary(
            **dict(zip(_OWN, values, strict=True)),
            range_counts=found.range_counts,
            parallelism=found.parallelism,
            reduction_ends_us=found.reduction_ends_us,
            identity=replace(found.identity, source=values[0], rank=values[1], host=values[2]),
            read_on=host,
        )
        for values, found, host in zip(zip(*own, strict=True), evidence, read_on, strict=True)
    )


def findings_of(rows: pa.Table) -> Iterator[tuple[Finding, ...]]:
    """The findings of each row."""
    for found in rows.column("findings").to_pylist():
        yield tuple(msgspec.convert(one, Finding) for one in found)


def timelines_of(rows: pa.Table) -> list[StepTimeline | None]:
    """The drawn step of each row."""
    return [timeline_of(one) for one in rows.column(TIMELINE).to_pylist()]


def renamed(rows: pa.Table, now: str, then: str) -> pa.Table:
    """With another path of their traces, in their sources and in what was found."""
    sources = [one.replace(now, then) for one in rows.column("source").to_pylist()]
    told = [
        [{key: text.replace(now, then) for key, text in one.items()} for one in found]
        for found in rows.column("findings").to_pylist()
    ]
    for name, values in (("source", sources), ("findings", told)):
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


def to_bytes(rows: pa.Table) -> bytes:
    """Rows as the content of a Parquet file."""
    sink = pa.BufferOutputStream()
    write_rows(rows, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def from_bytes(content: bytes) -> pa.Table:
    """The rows that `to_bytes` was given."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)


def _one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
