"""Partials, *.dpscope: ranks reduced near the data, as Parquet with a row per rank; any number of them joined to one job.

A row is one of `rank_rows.SCHEMA` and its origin. The file's metadata hold the version of the schema and the traces that could
not be read. Nothing is pickled: any Parquet reader can show the tables, and reading a file never executes its content.
"""

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from dpscope.analysis.partials.found import SUFFIX, partials_among
from dpscope.analysis.traces.ranks import rank_rows
from dpscope.analysis.traces.ranks.jobs import find_jobs
from dpscope.analysis.traces.ranks.kept_tables import reader_version
from dpscope.analysis.traces.ranks.process_pool import FileProgress, files_as_read
from dpscope.analysis.traces.ranks.rank_rows import READ_ON, SCHEMA, TIMELINE, summaries_of
from dpscope.analysis.traces.ranks.rank_tables import TABLES, rank_order
from dpscope.analysis.traces.ranks.timeline import StepTimeline
from dpscope.analysis.traces.ranks.trace_analysis import (
    JobAnalyses,
    Paths,
    TraceAnalysis,
    analyze_job,
    as_paths,
    find_traces,
    none_read,
    not_read,
    require_one_job,
)
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.store.errors import DpscopeError, unreadable
from dpscope.profiling.store.files import atomic_path
from dpscope.profiling.store.ownership import PARTIAL_KEY, check_overwritable

PARTIAL_VERSION = 9  # increase it when a column is redefined; one that is added or removed shows in the schema
_STAMP = {  # which trace a row is of: the same file, unchanged, and read by the same code, has the same rows
    "file": pa.string(),  # path of the trace when it was read
    "size_bytes": pa.int64(),
    "modified_ns": pa.int64(),
    "reader": pa.string(),  # version of the code that read it
}
_Stamp = tuple[str, int, int, str]
_MADE_FROM = pa.schema(
    [
        *_STAMP.items(),
        (READ_ON, pa.string()),  # host that read it, if the trace was on that host; else NA
        ("world_size", pa.int64()),
    ]
)
PARTIAL_SCHEMA = pa.schema([*SCHEMA, *_MADE_FROM])


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
            rank_rows.write_rows(partial.rows, temporary, {PARTIAL_KEY: head})
    except OSError as error:
        raise DpscopeError(f"cannot write {place}: {error.strerror or error}; choose another folder with -o") from error


def read_partial(path: Path, columns: Sequence[str] = tuple(PARTIAL_SCHEMA.names)) -> Partial:
    """Read a partial; raises DpscopeError for other or damaged files and for another schema version."""
    import pyarrow.parquet as pq

    damaged = f"{path} is not a complete partial of dpscope reduce; reduce its traces again, or omit it"
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            head = msgspec.json.decode((file.metadata.metadata or {}).get(PARTIAL_KEY.encode(), b""), type=_Head)
            if head.schema_version != PARTIAL_VERSION:
                age, action = ("an older", "reduce its traces again")
                if head.schema_version > PARTIAL_VERSION:
                    age, action = ("a newer", "use the newer dpscope, or reduce the traces again with this one")
                raise DpscopeError(
                    f"{path} was written by {age} dpscope (partials of version {head.schema_version}; this one reads "
                    f"{PARTIAL_VERSION}); {action}"
                )
            rows = file.read(columns, use_threads=False).replace_schema_metadata(None)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise DpscopeError(unreadable(path, error)) from error
    except (OSError, pa.ArrowException, msgspec.MsgspecError) as error:
        raise DpscopeError(damaged) from error
    if not rows.schema.equals(pa.schema([PARTIAL_SCHEMA.field(name) for name in columns])):
        raise DpscopeError(f"{path} was written by another dpscope: its columns differ; reduce its traces again")
    try:
        _decode(rows)
    except (ArithmeticError, TypeError, ValueError) as error:  # msgspec's are ValueErrors
        raise DpscopeError(damaged) from error
    if reason := rank_rows.unsound(rows):
        raise DpscopeError(f"{path}: {reason}, which no trace gives; reduce its traces again, or omit it")
    return Partial(rows, tuple(head.unread))


def _decode(rows: pa.Table) -> None:
    """Raise an exception for a part of these rows that is no longer what was written."""
    if "evidence" in rows.column_names:
        rank_rows.summaries_of(rows)
        rank_rows.findings_of(rows)
    if TIMELINE in rows.column_names:
        rank_rows.timelines_of(rows)


def analyze_partials(paths: Paths) -> TraceAnalysis:
    """The result of `analyze_traces` for the traces in these partials, regardless of their number, order and joining.

    Raises DpscopeError if there are no partials, if one cannot be read, or if they belong to different jobs.
    """
    ((_, analysis),) = _each_job(paths, "this analysis")
    return analysis


def analyze_partial_jobs(paths: Paths) -> JobAnalyses:
    """The same for each job by name, as `analyze_jobs` does; jobs are named after the folders of their partials."""
    return dict(_each_job(paths))


def _each_job(paths: Paths, one_alone: str = "") -> Iterator[tuple[str, TraceAnalysis]]:
    """Each job's name and analysis; `one_alone` names what is made of one job and refused for several."""
    files = partials_among(paths)
    if not files:
        named = ", ".join(map(str, as_paths(paths)))
        raise DpscopeError(f"{named} contains no partial (*{SUFFIX}); write one with dpscope reduce TRACES -o FOLDER")
    partials = [read_partial(file, [name for name in PARTIAL_SCHEMA.names if name != TIMELINE]) for file in files]
    rows = pa.concat_tables([one.rows for one in partials])
    if not rows.num_rows:
        raise DpscopeError(f"{files[0]} contains no rank: none of its traces could be read")
    place_of = [(file, row) for file, one in zip(files, partials, strict=True) for row in range(one.rows.num_rows)]
    kept = _each_once(rows)
    identified = rows.drop_columns([*TABLES, "findings"]).take(pa.array(kept))
    unread = [not_read(one.message) for one in _unread(partials, rows)]
    del partials
    found = find_jobs(summaries_of(identified), [place_of[row][0] for row in kept], unread)
    if one_alone:
        require_one_job(found.jobs, paths, one_alone)
    for name, traces in found.jobs.items():
        chosen = [kept[trace] for trace in traces]
        ordered = rows.take(pa.array(chosen))
        if len(found.jobs) == 1:
            rows = rows.schema.empty_table()  # frees half of all memory at thousands of ranks
        job = rank_rows.join_rows(ordered)
        del ordered  # its numbers are copied: a quarter of all memory
        pa.default_memory_pool().release_unused()
        yield name, analyze_job(job, found.of(name), partial(_timelines, [place_of[row] for row in chosen]))


def _timelines(place_of: Sequence[tuple[Path, int]], ranks: Sequence[int]) -> list[StepTimeline | None]:
    """The drawn steps of these ranks; `place_of` has each one's partial, and its row in it."""
    places = [place_of[rank] for rank in ranks]
    read = {file: read_partial(file, [TIMELINE]).rows for file in {file for file, _ in places}}
    columns = [read[file].slice(row, 1) for file, row in places]
    return rank_rows.timelines_of(pa.concat_tables(columns)) if places else []


def _join_partials(partials: Sequence[Partial]) -> Partial:
    rows = pa.concat_tables([one.rows for one in partials])
    return Partial(rows.take(pa.array(_each_once(rows), pa.int64())).combine_chunks(), _unread(partials, rows))


def _each_once(rows: pa.Table) -> list[int]:
    """Indices of rows by rank, with always the same one of the rows of one trace (name, size, modification time, rank)."""
    columns = (rows.column(name).to_pylist() for name in ("rank", "source", *_STAMP))
    keys: list[tuple[Any, ...]] = list(zip(*columns, strict=True))
    order = sorted(range(len(keys)), key=lambda one: (keys[one][0] is None, keys[one][0] or 0, *keys[one][1:]))
    last = {(rank, Path(file).name, size, time): one for one in order for rank, _, file, size, time, _ in (keys[one],)}
    kept = set(last.values())
    return [one for one in order if one in kept]


def _unread(partials: Sequence[Partial], rows: pa.Table) -> tuple[Unread, ...]:
    """Each trace that no partial could read, once."""
    read = set(rows.column("file").to_pylist())
    return tuple(sorted({one for partial in partials for one in partial.unread if one.file not in read}))


_Item = TypeVar("_Item")
_TASKS = (
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)  # set for each task by srun, Open MPI's mpirun, and MPICH's and Intel's mpirun


@dataclass(frozen=True)
class Share:
    """Share `index` (from 0) of `of`."""

    index: int
    of: int

    @property
    def name(self) -> str:
        """The share in file names, such as 3of16."""
        return f"{self.index + 1}of{self.of}"

    def among(self, items: Sequence[_Item]) -> list[_Item]:
        """Every `of`-th item; the shares of one sequence hold each of its items once."""
        return list(items[self.index :: self.of])


def read_share(text: str, environment: Mapping[str, str] = os.environ) -> Share:
    """Parse `--share`: K/N, or auto, by the launcher's environment variables. Raises DpscopeError where neither is there."""
    if text == "auto":
        for index_name, count_name in _TASKS:
            index, count = environment.get(index_name, ""), environment.get(count_name, "")
            if index.isdecimal() and count.isdecimal() and int(index) < int(count):
                return Share(int(index), int(count))
        named = ", ".join(" and ".join(pair) for pair in _TASKS)
        raise DpscopeError(
            f"--share auto: none of {named} is set; start dpscope with srun or mpirun, or use --share K/N"
        )
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)  # int() refuses thousands of digits with an error of its own
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise DpscopeError(f"--share {text}: use auto, or K/N with K from 1 to N, such as 3/16")
    return Share(int(found[1]) - 1, int(found[2]))


_UNFINISHED = ".unfinished"  # suffix of the file with what an unfinished call has read so far
_MOST_OF_TIME = 10  # time between saves, as a multiple of the time that saving took


@dataclass(frozen=True)
class Reduced:
    """What a call wrote: how many traces it read and kept from before; those unreadable or cut short."""

    __repr__ = short_repr

    path: Path
    ranks: int
    read: int
    kept: int
    unread: tuple[Unread, ...]
    cut_short: tuple[str, ...]  # files that end too early, or cannot be read to their end


def reduce_traces(
    paths: Paths,
    out: str | Path,
    share: Share | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: FileProgress | None = None,
) -> Reduced:
    """Write one partial of traces (or of this task's `share` of them), or of partials; `out` is a folder or *.dpscope.

    Traces already in `out` with the same size, modification time and reader are not read again, even if the earlier call was
    killed. Files are read in `jobs` local processes, or by `executor`, whose workers must see the same paths. Raises
    DpscopeError if there is nothing to reduce, none of it can be read, or the partial cannot be written. A share of which
    nothing can be read is written all the same: joined with the others it tells of the traces that are missing.
    """
    place = Path(out)
    if place.suffix != SUFFIX:  # a share's file is named by its number, since another host may continue it
        place /= f"{f'share-{share.name}' if share else socket.gethostname()}{SUFFIX}"
    check_overwritable(place)
    if partials := partials_among(paths):
        every = {path.resolve(): path for path in [*partials, *([place] if place.exists() else [])]}
        whole = _join_partials([read_partial(path) for path in every.values()])
        return _written(whole, place, 0, whole.rows.num_rows)
    files = find_traces(paths)
    stamps = {file: _stamp(file) for file in (files if share is None else share.among(files))}
    unfinished = place.with_name(place.name + _UNFINISHED)
    tables = _known(place, unfinished, set(stamps.values()))
    known = {stamp for table in tables for stamp in _stamps_of(table)}
    kept = sum(table.num_rows for table in tables)
    missing = [file for file, stamp in stamps.items() if stamp not in known]
    host = socket.gethostname() if share is None else None
    unread: list[Unread] = []

    def read_so_far() -> Partial:
        rows = pa.concat_tables(tables) if tables else PARTIAL_SCHEMA.empty_table()
        order = rank_order(*(rows.column(name).to_pylist() for name in ("rank", "source")))
        return Partial(rows.take(pa.array(order, pa.int64())).combine_chunks(), tuple(unread))

    saving_s, saved_at = 0.0, time.monotonic()
    with closing(files_as_read(missing, limits, executor, jobs)) as answers:
        for count, (index, outcome) in enumerate(answers, 1):
            if isinstance(outcome, DpscopeError):
                unread.append(Unread(str(missing[index]), str(outcome)))
            else:
                tables.append(_with_origin(rank_rows.to_rows(outcome), stamps[missing[index]], host))
            if progress is not None:
                progress(count, len(missing))
            began = time.monotonic()
            if tables and count < len(missing) and began - saved_at >= _MOST_OF_TIME * saving_s:  # for a later call
                write_partial(read_so_far(), unfinished)
                saved_at = time.monotonic()
                saving_s = saved_at - began
    if unread and share is None and not any(table.num_rows for table in tables):
        raise none_read(min(unread).message)
    made = _written(read_so_far(), place, len(missing) - len(unread), kept)
    unfinished.unlink(missing_ok=True)
    return made


def _written(partial: Partial, place: Path, read: int, kept: int) -> Reduced:
    write_partial(partial, place)
    rows = partial.rows
    cut_short = rows.column("file").filter(rows.column("cut_short")).to_pylist()
    return Reduced(place, rows.num_rows, read, kept, partial.unread, tuple(cut_short))


def _known(place: Path, unfinished: Path, now: set[_Stamp]) -> list[pa.Table]:
    """Rows of an earlier call whose traces are unchanged, also of an unfinished one.

    Raises DpscopeError if the existing partial cannot be read or has rows of other traces: it is not overwritten then. What
    another version saved of an unfinished call is ignored, so that its traces are read again.
    """
    earlier: list[Partial] = []
    if place.exists():
        try:
            earlier.append(Partial(read_partial(place).rows))
        except DpscopeError as error:
            raise DpscopeError(
                f"{error}; it is the output file: remove it first, or choose another with -o NAME{SUFFIX}"
            ) from error
    if unfinished.exists():
        check_overwritable(unfinished)
        with contextlib.suppress(DpscopeError):
            earlier.append(Partial(read_partial(unfinished).rows))
    if not earlier:
        return []
    rows = _join_partials(earlier).rows
    stamps = _stamps_of(rows)
    if gone := sorted({file for file, *_ in stamps} - {file for file, *_ in now}):
        raise DpscopeError(
            f"{place} already holds {counted(len(gone), 'trace')} not among these, such as {gone[0]}; "
            f"choose another file with -o NAME{SUFFIX}, or remove it"
        )
    return [rows.filter(pa.array([stamp in now for stamp in stamps]))]


def _stamp(file: Path) -> _Stamp:
    """What a row depends on; for a file without a status, a stamp that matches no row."""
    path = str(file.absolute())
    with contextlib.suppress(OSError):
        stat = file.stat()
        return path, stat.st_size, stat.st_mtime_ns, reader_version()
    return path, -1, -1, ""


def _stamps_of(rows: pa.Table) -> list[_Stamp]:
    return list(zip(*(rows.column(name).to_pylist() for name in _STAMP), strict=True))


def _with_origin(rows: pa.Table, stamp: _Stamp, host: str | None) -> pa.Table:
    """The rows of a file with their origin."""
    worlds = [one.parallelism.world_size for one in summaries_of(rows)]
    columns = [*([value] * rows.num_rows for value in (*stamp, host)), worlds]
    for field, values in zip(_MADE_FROM, columns, strict=True):
        rows = rows.append_column(field, pa.array(values, field.type))
    return rows
