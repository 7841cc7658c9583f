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
from typing import Any, TypeVar

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
from dpscope.analysis.traces.ranks.process_pool import FileOutcome, FileProgress, files_as_read
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
        return _share_of_task(environment)
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise DpscopeError(f"--share {text}: use auto, or K/N with K from 1 to N, such as 3/16")
    return Share(int(found[1]) - 1, int(found[2]))


def _share_of_task(environment: Mapping[str, str]) -> Share:
    for index_name, count_name in _TASKS:
        index, count = environment.get(index_name, ""), environment.get(count_name, "")
        if index.isdecimal() and count.isdecimal() and int(index) < int(count):
            return Share(int(index), int(count))
    named = ", ".join(" and ".join(pair) for pair in _TASKS)
    raise DpscopeError(f"--share auto: none of {named} is set; start dpscope with srun or mpirun, or use --share K/N")


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
    place = _place(Path(out), share)
    check_overwritable(place)
    if partials := partials_among(paths):
        return _join(partials, place)
    files = find_traces(paths)
    chosen = files if share is None else share.among(files)
    work = _Work(chosen, place, host=None if share is not None else socket.gethostname())
    return work.done(limits, executor, jobs, progress)


def _cut_short(partial: Partial) -> tuple[str, ...]:
    rows = partial.rows
    return tuple(rows.column("file").filter(rows.column("cut_short")).to_pylist())


def _place(out: Path, share: Share | None) -> Path:
    # A share's file is named by its number, since another host may continue it; otherwise by the host.
    if out.suffix == SUFFIX:
        return out
    return out / f"{f'share-{share.name}' if share else socket.gethostname()}{SUFFIX}"


def _join(files: Sequence[Path], place: Path) -> Reduced:
    """Join the partials and any existing one at `place`."""
    known = {path.resolve(): path for path in [*files, *([place] if place.exists() else [])]}
    partials = [read_partial(path) for path in known.values()]
    merged = join_partials(partials)
    write_partial(merged, place)
    return Reduced(place, merged.rows.num_rows, 0, merged.rows.num_rows, merged.unread, _cut_short(merged))


class _Work:
    """The files of a call: rows known from an earlier call, and the rest, saved as they are read."""

    def __init__(self, files: Sequence[Path], place: Path, host: str | None) -> None:
        self._place, self._host = place, host
        self._unfinished = place.with_name(place.name + _UNFINISHED)
        self._stamps = {file: _stamp(file) for file in files}
        self._tables = self._known()
        self._kept = sum(table.num_rows for table in self._tables)
        known = {stamp for table in self._tables for stamp in _stamps_of(table)}
        self._missing = [file for file in files if self._stamps[file] not in known]
        self._unread: list[Unread] = []
        self._saving_s, self._saved_at = 0.0, time.monotonic()

    def _known(self) -> list[pa.Table]:
        """Rows of an earlier call whose traces are unchanged; raises DpscopeError if it has rows of other traces."""
        earlier = [*self._whole(), *self._saved()]
        if not earlier:
            return []
        rows = join_partials([Partial(table) for table in earlier]).rows
        stamps = _stamps_of(rows)
        files = {stamp[0] for stamp in self._stamps.values()}
        if gone := sorted({file for file, *_ in stamps} - files):
            raise DpscopeError(
                f"{self._place} already holds {counted(len(gone), 'trace')} not among these, such as {gone[0]}; "
                f"choose another file with -o NAME{SUFFIX}, or remove it"
            )
        now = set(self._stamps.values())
        return [rows.filter(pa.array([stamp in now for stamp in stamps]))]

    def _whole(self) -> list[pa.Table]:
        """The existing partial; raises DpscopeError if it cannot be read, in which case it is not overwritten."""
        if not self._place.exists():
            return []
        try:
            return [read_partial(self._place).rows]
        except DpscopeError as error:
            raise DpscopeError(
                f"{error}; it is the output file: remove it first, or choose another with -o NAME{SUFFIX}"
            ) from error

    def _saved(self) -> list[pa.Table]:
        """Rows saved by an unfinished call; none if another version saved them, so that their traces are read again."""
        if not self._unfinished.exists():
            return []
        check_overwritable(self._unfinished)
        with contextlib.suppress(DpscopeError):
            return [read_partial(self._unfinished).rows]
        return []

    def done(
        self, limits: ReadLimits, executor: Executor | None, jobs: int | None, progress: FileProgress | None
    ) -> Reduced:
        """Read the missing files and write the partial."""
        with closing(files_as_read(self._missing, limits, executor, jobs)) as answers:
            for count, (index, outcome) in enumerate(answers, 1):
                self._take(self._missing[index], outcome)
                if progress is not None:
                    progress(count, len(self._missing))
                if count < len(self._missing):
                    self._save()
        whole = self._partial()
        write_partial(whole, self._place)
        self._unfinished.unlink(missing_ok=True)
        read = len(self._missing) - len(self._unread)
        return Reduced(self._place, whole.rows.num_rows, read, self._kept, whole.unread, _cut_short(whole))

    def _take(self, file: Path, outcome: FileOutcome) -> None:
        if isinstance(outcome, DpscopeError):
            self._unread.append(Unread(str(file), str(outcome)))
        else:
            self._tables.append(_with_origin(to_rows(outcome), self._stamps[file], self._host))

    def _save(self) -> None:
        """Save the rows so far for a later call, unless saving takes more than a tenth of the time."""
        began = time.monotonic()
        if began - self._saved_at < _MOST_OF_TIME * self._saving_s:
            return
        write_partial(self._partial(), self._unfinished)
        self._saved_at = time.monotonic()
        self._saving_s = self._saved_at - began

    def _partial(self) -> Partial:
        rows = pa.concat_tables(self._tables) if self._tables else PARTIAL_SCHEMA.empty_table()
        return Partial(rows_in_order(rows).combine_chunks(), tuple(self._unread))


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
    columns: list[list[Any]] = [
        rows.column(name).to_pylist() for name in ("file", "size_bytes", "modified_ns", "reader")
    ]
    return list(zip(*columns, strict=True))


def _with_origin(rows: pa.Table, stamp: _Stamp, host: str | None) -> pa.Table:
    """The rows of a file with MADE_FROM's columns."""
    worlds = [one.parallelism.world_size for one in summaries_of(rows)]
    columns = [*([value] * rows.num_rows for value in (*stamp, host)), worlds]
    for field, values in zip(MADE_FROM, columns, strict=True):
        rows = rows.append_column(field, pa.array(values, field.type))
    return rows
