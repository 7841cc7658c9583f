"""Reduce traces to a partial, near the data: existing rows are kept, and unreadable traces are reported but do not stop it."""

import contextlib
import functools
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from dpscope.analysis.partials.file import (
    MADE_FROM,
    PARTIAL_SCHEMA,
    Partial,
    Unread,
    join_partials,
    read_partial,
    write_partial,
)
from dpscope.analysis.partials.found import SUFFIX, partials_among
from dpscope.analysis.traces.ranks.kept_tables import reader_version
from dpscope.analysis.traces.ranks.process_pool import FileProgress, files_as_read
from dpscope.analysis.traces.ranks.rank_rows import rows_in_order, summaries_of, to_rows
from dpscope.analysis.traces.ranks.trace_analysis import Paths, find_traces
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.ownership import check_overwritable

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
    """Parse `--share`: K/N, from 1/N to N/N, or auto, which uses the launcher's environment variables.

    Raises DpscopeError for any other text, and for auto without these variables.
    """
    if text == "auto":
        for index_name, count_name in _TASKS:
            index, count = environment.get(index_name, ""), environment.get(count_name, "")
            if index.isdecimal() and count.isdecimal() and int(index) < int(count):
                return Share(int(index), int(count))
        named = ", ".join(" and ".join(pair) for pair in _TASKS)
        raise DpscopeError(
            f"--share auto: none of {named} is set; start dpscope with srun or mpirun, or use --share K/N"
        )
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise DpscopeError(f"--share {text}: use auto, or K/N with K from 1 to N, such as 3/16")
    return Share(int(found[1]) - 1, int(found[2]))


_UNFINISHED = ".unfinished"  # suffix of the file with what an unfinished call has read so far
_MOST_OF_TIME = 10  # time between saves, as a multiple of the time that saving took
_Stamp = tuple[str, int, int, str]  # file, size_bytes, modified_ns, reader


@dataclass(frozen=True)
class Reduced:
    """The result of a call: the partial; the numbers of traces read and kept from before; those unreadable or cut short."""

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
    DpscopeError if there is nothing to reduce or the partial cannot be written.
    """
    place = Path(out)
    if place.suffix != SUFFIX:  # a share's file is named by its number, since another host may continue it
        place /= f"{f'share-{share.name}' if share else socket.gethostname()}{SUFFIX}"
    check_overwritable(place)
    if partials := partials_among(paths):
        every = {path.resolve(): path for path in [*partials, *([place] if place.exists() else [])]}
        whole = join_partials([read_partial(path) for path in every.values()])
        write_partial(whole, place)
        return _reduced(place, whole, 0, whole.rows.num_rows)
    files = find_traces(paths)
    chosen = files if share is None else share.among(files)
    unfinished = place.with_name(place.name + _UNFINISHED)
    stamps = {file: _stamp(file) for file in chosen}
    tables = _known(place, unfinished, set(stamps.values()))
    known = {stamp for table in tables for stamp in _stamps_of(table)}
    kept = sum(table.num_rows for table in tables)
    missing = [file for file in chosen if stamps[file] not in known]
    host = socket.gethostname() if share is None else None
    unread: list[Unread] = []
    saving_s, saved_at = 0.0, time.monotonic()
    with closing(files_as_read(missing, limits, executor, jobs)) as answers:
        for count, (index, outcome) in enumerate(answers, 1):
            if isinstance(outcome, DpscopeError):
                unread.append(Unread(str(missing[index]), str(outcome)))
            else:
                tables.append(_with_origin(to_rows(outcome), stamps[missing[index]], host))
            if progress is not None:
                progress(count, len(missing))
            began = time.monotonic()
            if count < len(missing) and began - saved_at >= _MOST_OF_TIME * saving_s:  # for a later call
                write_partial(_partial(tables, unread), unfinished)
                saved_at = time.monotonic()
                saving_s = saved_at - began
    whole = _partial(tables, unread)
    write_partial(whole, place)
    unfinished.unlink(missing_ok=True)
    return _reduced(place, whole, len(missing) - len(unread), kept)


def _reduced(place: Path, whole: Partial, read: int, kept: int) -> Reduced:
    rows = whole.rows
    cut_short = rows.column("file").filter(rows.column("cut_short")).to_pylist()
    return Reduced(place, rows.num_rows, read, kept, whole.unread, tuple(cut_short))


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
    rows = join_partials(earlier).rows
    stamps = _stamps_of(rows)
    if gone := sorted({file for file, *_ in stamps} - {file for file, *_ in now}):
        raise DpscopeError(
            f"{place} already holds {counted(len(gone), 'trace')} not among these, such as {gone[0]}; "
            f"choose another file with -o NAME{SUFFIX}, or remove it"
        )
    return [rows.filter(pa.array([stamp in now for stamp in stamps]))]


def _partial(tables: Sequence[pa.Table], unread: Sequence[Unread]) -> Partial:
    rows = pa.concat_tables(tables) if tables else PARTIAL_SCHEMA.empty_table()
    return Partial(rows_in_order(rows).combine_chunks(), tuple(unread))


@functools.cache
def _reader() -> str:
    return reader_version()


def _stamp(file: Path) -> _Stamp:
    """What a row depends on; for a file without a status, a stamp that matches no row."""
    path = str(file.absolute())
    with contextlib.suppress(OSError):
        stat = file.stat()
        return path, stat.st_size, stat.st_mtime_ns, _reader()
    return path, -1, -1, ""


def _stamps_of(rows: pa.Table) -> list[_Stamp]:
    names = ("file", "size_bytes", "modified_ns", "reader")
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))


def _with_origin(rows: pa.Table, stamp: _Stamp, host: str | None) -> pa.Table:
    """The rows of a file with MADE_FROM's columns."""
    worlds = [one.parallelism.world_size for one in summaries_of(rows)]
    columns = [*([value] * rows.num_rows for value in (*stamp, host)), worlds]
    for field, values in zip(MADE_FROM, columns, strict=True):
        rows = rows.append_column(field, pa.array(values, field.type))
    return rows
