"""Partials: files of ranks' tables. `dpscope reduce` writes them, and they keep what was read of a
run's traces.

A file is Parquet with a row per rank: what is known of it, and its tables as lists of structs. No
row refers to another, so that rows of any number of files are joined by putting them together, in
whatever order and tree. The file's metadata hold the version of the format and the traces that
could not be read. Nothing is pickled: any Parquet reader can show the tables, and reading a file
never executes its content.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa

from dpscope.analysis.traces.ranks.arrow_lists import from_lists, list_type, texts, to_lists
from dpscope.analysis.traces.ranks.rank_tables import COLUMNS, RankRecord, RankTables, Unread
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.analysis.traces.reading.table import COLUMN_KINDS, Table
from dpscope.profiling.records.quantities import MOST_COUNT
from dpscope.profiling.store.errors import DpscopeError, unreadable
from dpscope.profiling.store.files import atomic_path
from dpscope.profiling.store.ownership import PARTIAL_KEY

# increase it when a column is redefined; one that is added or removed shows in the schema
FORMAT_VERSION = 12
_RECORD = "record"  # a `RankRecord` as msgpack
_LISTS = [(table, list_type(columns)) for table, columns in COLUMNS.items()]
_SCHEMA = pa.schema([(_RECORD, pa.binary()), *_LISTS])


class _Head(msgspec.Struct):
    schema_version: int
    unread: list[Unread] = []


def write_partial(ranks: RankTables, place: Path) -> None:
    """Write a partial whole or not at all; raises DpscopeError if it cannot be written."""
    import pyarrow.parquet as pq

    head = _Head(FORMAT_VERSION, list(ranks.unread))
    records = [msgspec.msgpack.encode(rank) for rank in ranks.ranks]
    arrays = [
        texts(records, pa.binary()),
        *(
            to_lists(ranks.tables[name], ranks.lengths[name], columns)
            for name, columns in COLUMNS.items()
        ),
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
        # an error of the system names its cause, such as a full disk; Arrow's own text helps nobody
        reason = error.strerror or "its file system does not take the file"
        raise DpscopeError(
            f"cannot write {place}: {reason}; choose another folder with -o"
        ) from error


def read_partial(path: Path) -> RankTables:
    """Read a partial; raises DpscopeError for other or damaged files and for another version of the
    format.
    """
    decode = msgspec.msgpack.Decoder(RankRecord).decode
    with _damage_in_a_line(path):
        head, rows = _content(path)
        tables = {
            name: from_lists(rows[name].combine_chunks(), columns)
            for name, columns in COLUMNS.items()
        }
        ranks = RankTables(
            ranks=list(map(decode, rows[_RECORD].to_pylist())),
            tables={name: table for name, (table, _) in tables.items()},
            lengths={name: lengths for name, (_, lengths) in tables.items()},
            unread=tuple(head.unread),
        )
    for name in COLUMNS:
        if reason := _unsound(ranks.tables[name]):
            raise DpscopeError(
                f"{path}: {name}.{reason}, which no trace gives; reduce its traces again, or omit it"
            )
    return ranks


def read(path: Path, limits: ReadLimits) -> RankTables:
    """`read_partial`, which was limited when its traces were read."""
    return read_partial(path)


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


def _content(path: Path) -> tuple[_Head, pa.Table]:
    """The head and the rows of a file of this version."""
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
        rows = file.read(use_threads=False).replace_schema_metadata(None)
    if not rows.schema.equals(_SCHEMA):
        raise DpscopeError(
            f"{path} was written by another dpscope: its columns differ; reduce its traces again"
        )
    return head, rows


_MAY_BE_NEGATIVE = frozenset(
    {"start_us", "end_us", "ready_us", "queue_us"}
)  # on a trace's clock, or between two clocks
_DIGESTS = frozenset({"kernel_class"})


def _unsound(table: Table) -> str:
    """A number that cannot have been measured, in words; empty without any. A duration may be
    rounded below 0.
    """
    for name in table.names:
        if COLUMN_KINDS[name] not in ("real", "whole") or name in _DIGESTS:
            continue
        values = table[name][table.known(name)]
        least = -float(MOST_COUNT) if name in _MAY_BE_NEGATIVE else -1.0
        wrong = values[(values <= least) | (values > MOST_COUNT)]
        if len(wrong):
            return f"{name} is {wrong[0]:g}"
    return ""
