"""Files of reduced ranks, *.dpscope: Parquet with a row per rank, `rank_rows.SCHEMA` and its origin; any number joined to a job.

Its metadata hold the version of the schema and the traces that could not be read. Nothing is pickled: any Parquet reader can
show the tables, and reading a file never executes its content.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from dpscope.analysis.partials.found import SUFFIX, partials_among
from dpscope.analysis.traces.ranks.jobs import find_jobs
from dpscope.analysis.traces.ranks.rank_rows import (
    READ_ON,
    SCHEMA,
    TIMELINE,
    join_rows,
    summaries_of,
    timelines_of,
    write_rows,
)
from dpscope.analysis.traces.ranks.rank_tables import TABLES
from dpscope.analysis.traces.ranks.timeline import StepTimeline
from dpscope.analysis.traces.ranks.trace_analysis import (
    JobAnalyses,
    Paths,
    TraceAnalysis,
    analyze_job,
    as_paths,
    each_job,
    not_read,
    require_one_job,
)
from dpscope.profiling.records.finding import Finding
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


def _head(path: Path, content: bytes | None) -> _Head:
    """The file's metadata; raises DpscopeError unless it is a partial of this version."""
    try:
        head = msgspec.json.decode(content or b"", type=_Head)
    except msgspec.MsgspecError as error:
        raise _damaged(path) from error
    if head.schema_version != PARTIAL_VERSION:
        age, action = ("an older", "reduce its traces again")
        if head.schema_version > PARTIAL_VERSION:
            age, action = ("a newer", "use the newer dpscope, or reduce the traces again with this one")
        raise DpscopeError(
            f"{path} was written by {age} dpscope (partials of version {head.schema_version}; this one reads "
            f"{PARTIAL_VERSION}); {action}"
        )
    return head


def _damaged(path: Path) -> DpscopeError:
    return DpscopeError(f"{path} is not a complete partial of dpscope reduce; reduce its traces again, or omit it")


_KEY = ("rank", "source", "file", "size_bytes", "modified_ns", "reader")  # sort order of rows


def analyze_partials(paths: Paths) -> TraceAnalysis:
    """The result of `analyze_traces` for the traces in these partials, regardless of their number, order and joining.

    Raises DpscopeError if there are no partials, if one cannot be read, or if they belong to different jobs.
    """
    found = _Found(paths)
    require_one_job(found.jobs.jobs, paths, "this analysis")
    return found.analysis("", found.unread)


def analyze_partial_jobs(paths: Paths) -> JobAnalyses:
    """The same for each job by name, as `analyze_jobs` does; jobs are named after the folders of their partials."""
    found = _Found(paths)
    return each_job(found.jobs, found.unread, found.analysis)


class _Found:
    """All partials among the paths: `rows` as read, `place_of` the file and the index in it of each row.

    `chosen` is one row per trace, `jobs` are indices into these; `unread` are findings on traces that no partial could read.
    """

    def __init__(self, paths: Paths) -> None:
        files = partials_among(paths)
        if not files:
            named = ", ".join(map(str, as_paths(paths)))
            raise DpscopeError(
                f"{named} contains no partial (*{SUFFIX}); write one with dpscope reduce TRACES -o FOLDER"
            )
        partials = [read_partial(file, timelines=False) for file in files]
        self.rows = pa.concat_tables([one.rows for one in partials])
        if not self.rows.num_rows:
            raise DpscopeError(f"{files[0]} contains no rank: none of its traces could be read")
        self.place_of = [
            (file, row) for file, one in zip(files, partials, strict=True) for row in range(one.rows.num_rows)
        ]
        self.chosen = _each_once(self.rows)
        self.unread = [not_read(one.message) for one in _unread(partials, self.rows)]
        identified = self.rows.drop_columns([*TABLES, "findings"]).take(pa.array(self.chosen))
        identities = [one.identity for one in summaries_of(identified)]
        self.jobs = find_jobs(identities, [self.place_of[row][0] for row in self.chosen])

    def analysis(self, name: str, unread: Sequence[Finding]) -> TraceAnalysis:
        """The analysis of one job's rows."""
        chosen = [self.chosen[place] for place in self.jobs.jobs[name]]
        ordered = self.rows.take(pa.array(chosen))
        if len(self.jobs.jobs) == 1:
            self.rows = self.rows.schema.empty_table()  # frees half of all memory at thousands of ranks

        def timelines(indices: Sequence[int]) -> list[StepTimeline | None]:
            places = [self.place_of[chosen[index]] for index in indices]
            read = {file: timeline_column(file) for file in {file for file, _ in places}}
            return timelines_of(pa.concat_tables([read[file].slice(row, 1) for file, row in places])) if places else []

        job = join_rows(ordered)
        del ordered  # its numbers are copied: a quarter of all memory
        pa.default_memory_pool().release_unused()
        return analyze_job(job, [*unread, *self.jobs.of(name)], timelines)


def timeline_column(path: Path) -> pa.Table:
    """The drawn steps of a partial's rows alone."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.read([TIMELINE], use_threads=False)


def join_partials(partials: Sequence[Partial]) -> Partial:
    """Join several partials into one."""
    rows = pa.concat_tables([one.rows for one in partials])
    return Partial(rows.take(pa.array(_each_once(rows), pa.int64())).combine_chunks(), _unread(partials, rows))


def _each_once(rows: pa.Table) -> list[int]:
    """Indices of rows by rank, with always the same one of the rows of one trace (name, size, modification time, rank)."""
    keys: list[tuple[Any, ...]] = list(zip(*(rows.column(name).to_pylist() for name in _KEY), strict=True))
    order = sorted(range(len(keys)), key=lambda one: (keys[one][0] is None, keys[one][0] or 0, *keys[one][1:]))
    last = {(rank, Path(file).name, size, time): one for one in order for rank, _, file, size, time, _ in (keys[one],)}
    kept = set(last.values())
    return [one for one in order if one in kept]


def _unread(partials: Sequence[Partial], rows: pa.Table) -> tuple[Unread, ...]:
    """Each trace that no partial could read, once."""
    read = set(rows.column("file").to_pylist())
    return tuple(sorted({one for partial in partials for one in partial.unread if one.file not in read}))
