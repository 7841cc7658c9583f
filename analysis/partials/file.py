"""A file of reduced ranks, *.dpscope: Parquet with a row per rank, `rank_rows.SCHEMA` and the origin of each row.

Its metadata hold the version of the schema and the traces that could not be read. Nothing is pickled: any Parquet reader can
show the tables, and reading a file never executes its content.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from dpscope.analysis.traces.ranks.rank_rows import READ_ON, SCHEMA, TIMELINE, write_rows
from dpscope.profiling.store.errors import DpscopeError, unreadable
from dpscope.profiling.store.files import atomic_path
from dpscope.profiling.store.ownership import PARTIAL_KEY

PARTIAL_VERSION = 7  # increase it when a column is added, removed or redefined
MADE_FROM = pa.schema(
    [
        ("file", pa.string()),  # path of the trace when it was read
        ("size_bytes", pa.int64()),
        ("modified_ns", pa.int64()),
        ("reader", pa.string()),  # version of the code that read it
        (READ_ON, pa.string()),  # host that read it, if the trace was on that host; else NA
        ("world_size", pa.int64()),
    ]
)
PARTIAL_SCHEMA = pa.schema([*SCHEMA, *MADE_FROM])


class Unread(msgspec.Struct, frozen=True, order=True):
    """A trace that could not be read, and why."""

    file: str
    message: str


class _Head(msgspec.Struct):
    schema_version: int
    unread: list[Unread] = []


@dataclass(frozen=True)
class Partial:
    """The content of a file: `rows` have PARTIAL_SCHEMA without the columns that were not requested."""

    rows: pa.Table
    unread: tuple[Unread, ...] = ()


def write_partial(partial: Partial, place: Path) -> None:
    """Write a partial atomically; raises DpscopeError if it cannot be written."""
    head = msgspec.json.encode(_Head(PARTIAL_VERSION, sorted(partial.unread))).decode()
    try:
        with atomic_path(place) as temporary:
            write_rows(partial.rows, temporary, {PARTIAL_KEY: head})
    except OSError as error:
        raise DpscopeError(f"cannot write {place}: {error.strerror or error}; choose another folder with -o") from error


def read_partial(path: Path, timelines: bool = True) -> Partial:
    """Read a partial; raises DpscopeError for other or damaged files and for another schema version."""
    import pyarrow.parquet as pq

    columns = None if timelines else [name for name in PARTIAL_SCHEMA.names if name != TIMELINE]
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            head = _head(path, (file.metadata.metadata or {}).get(PARTIAL_KEY.encode()))
            rows = file.read(columns, use_threads=False).replace_schema_metadata(None)
    except OSError as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise DpscopeError(unreadable(path, error)) from error
        raise _damaged(path) from error
    except pa.ArrowException as error:
        raise _damaged(path) from error
    expected = PARTIAL_SCHEMA if timelines else pa.schema([PARTIAL_SCHEMA.field(name) for name in columns or []])
    if not rows.schema.equals(expected):
        raise _damaged(path)
    return Partial(rows, tuple(head.unread))


def read_timelines(path: Path) -> pa.Table:
    """Read only column TIMELINE, the drawn steps of a partial's rows."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.read([TIMELINE], use_threads=False)


def _head(path: Path, content: bytes | None) -> _Head:
    """The file's metadata; raises DpscopeError unless it is a partial of this version."""
    try:
        head = msgspec.json.decode(content or b"", type=_Head)
    except msgspec.MsgspecError as error:
        raise _damaged(path) from error
    if head.schema_version > PARTIAL_VERSION:
        raise DpscopeError(
            f"{path} was written by a newer dpscope (partials of version {head.schema_version}; this one reads "
            f"{PARTIAL_VERSION}); use the newer dpscope, or reduce the traces again with this one"
        )
    if head.schema_version < PARTIAL_VERSION:
        raise DpscopeError(
            f"{path} was written by an older dpscope (partials of version {head.schema_version}; this one reads "
            f"{PARTIAL_VERSION}); reduce its traces again"
        )
    return head


def _damaged(path: Path) -> DpscopeError:
    return DpscopeError(f"{path} is not a complete partial of dpscope reduce; reduce its traces again, or omit it")
