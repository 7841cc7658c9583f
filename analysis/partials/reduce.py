"""Traces to one partial, near the data: what is there already is kept, what cannot be read is told and does not end the rest."""

import contextlib
import functools
import socket
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpscope.analysis.partials.file import (
    MADE_FROM,
    PARTIAL_SCHEMA,
    Partial,
    Unread,
    read_partial,
    write_partial,
)
from dpscope.analysis.partials.found import SUFFIX, partials_among
from dpscope.analysis.partials.merge import join_partials
from dpscope.analysis.partials.share import Share
from dpscope.analysis.traces.ranks.kept_tables import reader_version
from dpscope.analysis.traces.ranks.process_pool import FileOutcome, FileProgress, files_as_read
from dpscope.analysis.traces.ranks.rank_rows import rows_in_order, summaries_of, to_rows
from dpscope.analysis.traces.ranks.trace_analysis import Paths, find_traces
from dpscope.analysis.traces.reading.limits import DEFAULT_LIMITS, ReadLimits
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.ownership import check_overwritable

_UNFINISHED = ".unfinished"  # beside the partial, what a call that has not ended has read so far
_MOST_OF_TIME = 10  # what was read is saved again after so many times what saving it took
_Stamp = tuple[str, int, int, str]  # file, size_bytes, modified_ns, reader


@dataclass(frozen=True)
class Reduced:
    """What a call made: the partial, the traces it read now and those taken up from before, and those it could not read."""

    path: Path
    ranks: int
    read: int
    kept: int
    unread: tuple[Unread, ...]


def reduce_traces(
    paths: Paths,
    out: str | Path,
    share: Share | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: FileProgress | None = None,
) -> Reduced:
    """Write one partial of the traces, or of this task's `share` of them, or of partials; `out` is a folder or *.dpscope.

    Traces that `out` has already, unchanged in size, time and reader, are not read again, also after a call that was killed.
    Files are read by this machine's cores, `jobs` of them, or by `executor`, whose workers see the same paths. Raises
    DpscopeError where there is nothing to reduce, and where the partial cannot be written.
    """
    place = _place(Path(out), share)
    check_overwritable(place)
    if partials := partials_among(paths):
        return _join(partials, place)
    files, _ = find_traces(paths)
    own = files if share is None else share.among(files)
    work = _Work(own, place, host=None if share is not None else socket.gethostname())
    return work.done(limits, executor, jobs, progress)


def _place(out: Path, share: Share | None) -> Path:
    """Of a share its number names the file, since another host may take it up; else the host does."""
    if out.suffix == SUFFIX:
        return out
    return out / f"{f'share-{share.name}' if share else socket.gethostname()}{SUFFIX}"


def _join(files: Sequence[Path], place: Path) -> Reduced:
    """Partials, and what is at `place` already, as one."""
    known = {path.resolve(): path for path in [*files, *([place] if place.exists() else [])]}
    partials = [read_partial(path) for path in known.values()]
    merged = join_partials(partials)
    write_partial(merged, place)
    return Reduced(place, merged.rows.num_rows, 0, merged.rows.num_rows, merged.unread)


class _Work:
    """The files of one call: what of them is known from before, and the rest, read and saved as it comes."""

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
        """Rows of an earlier call whose traces are unchanged; raises DpscopeError where it has others."""
        earlier = [*self._whole(), *self._saved()]
        if not earlier:
            return []
        rows = join_partials([Partial(table) for table in earlier]).rows
        stamps = _stamps_of(rows)
        files = {stamp[0] for stamp in self._stamps.values()}
        if gone := sorted({file for file, *_ in stamps} - files):
            raise DpscopeError(
                f"{self._place} already holds {counted(len(gone), 'trace')} not among these, such as {gone[0]}; "
                f"name another file with -o NAME{SUFFIX}, or remove it"
            )
        now = set(self._stamps.values())
        return [rows.filter(pa.array([stamp in now for stamp in stamps]))]

    def _whole(self) -> list[pa.Table]:
        """What is at the place already; raises DpscopeError where it cannot be read, which is not overwritten."""
        if not self._place.exists():
            return []
        try:
            return [read_partial(self._place).rows]
        except DpscopeError as error:
            raise DpscopeError(
                f"{error}; it is where -o writes: remove it first, or name another file with -o NAME{SUFFIX}"
            ) from error

    def _saved(self) -> list[pa.Table]:
        """What a call that did not end has saved; nothing of another version, whose traces are read again."""
        if not self._unfinished.exists():
            return []
        check_overwritable(self._unfinished)
        with contextlib.suppress(DpscopeError):
            return [read_partial(self._unfinished).rows]
        return []

    def done(
        self, limits: ReadLimits, executor: Executor | None, jobs: int | None, progress: FileProgress | None
    ) -> Reduced:
        """Read what is missing and write the partial."""
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
        return Reduced(self._place, whole.rows.num_rows, read, self._kept, whole.unread)

    def _take(self, file: Path, outcome: FileOutcome) -> None:
        if isinstance(outcome, DpscopeError):
            self._unread.append(Unread(str(file), str(outcome)))
        else:
            self._tables.append(_with_origin(to_rows(outcome), self._stamps[file], self._host))

    def _save(self) -> None:
        """Put what is done where a next call finds it, unless that would take more than a tenth of the time."""
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
    """What a row depends on; of a file that cannot be asked none that any row has."""
    path = str(file.absolute())
    with contextlib.suppress(OSError):
        told = file.stat()
        return path, told.st_size, told.st_mtime_ns, _reader()
    return path, -1, -1, ""


def _stamps_of(rows: pa.Table) -> list[_Stamp]:
    columns: list[list[Any]] = [
        rows.column(name).to_pylist() for name in ("file", "size_bytes", "modified_ns", "reader")
    ]
    return list(zip(*columns, strict=True))


def _with_origin(rows: pa.Table, stamp: _Stamp, host: str | None) -> pa.Table:
    """The rows of one file with MADE_FROM's columns."""
    worlds = [one.parallelism.world_size for one in summaries_of(rows)]
    columns = [*([value] * rows.num_rows for value in (*stamp, host)), worlds]
    for field, values in zip(MADE_FROM, columns, strict=True):
        rows = rows.append_column(field, pa.array(values, field.type))
    return rows
