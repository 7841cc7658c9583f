"""Any number and tree of partials as one job: each trace once, in an order that depends on nothing but the ranks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpscope.analysis.partials.file import SUFFIX, Partial, Unread, read_partial, read_timelines
from dpscope.analysis.traces.ranks.jobs import jobs_of
from dpscope.analysis.traces.ranks.rank_rows import timelines_of
from dpscope.analysis.traces.ranks.timeline import StepTimeline
from dpscope.analysis.traces.ranks.trace_analysis import (
    JobAnalyses,
    Paths,
    TraceAnalysis,
    analyze_rows,
    as_paths,
    not_read,
)
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError, unreadable
from dpscope.profiling.store.files import natural_order

_KEY = ("rank", "source", "file", "size_bytes", "modified_ns", "reader")  # what rows are sorted by


def find_partials(paths: Paths) -> list[Path]:
    """Partials among the paths: files as named, folders searched for *.dpscope; none where there are only traces.

    Raises DpscopeError for a folder that cannot be read.
    """
    found: list[Path] = []
    for path in as_paths(paths):
        if path.is_dir():
            try:
                next(path.iterdir(), None)
            except OSError as error:
                raise DpscopeError(unreadable(path, error)) from error
            found += sorted((file for file in path.rglob(f"*{SUFFIX}") if _may_be_partial(file)), key=natural_order)
        elif path.suffix == SUFFIX and _may_be_partial(path):
            found.append(path)
    return found


def _may_be_partial(file: Path) -> bool:
    """TensorBoard's event files of dpscope end likewise."""
    return file.is_file() and "tfevents" not in file.name and not file.name.startswith(".tmp-")


def partials_among(paths: Paths) -> list[Path]:
    """`find_partials`; raises DpscopeError where something else was named beside them."""
    found = find_partials(paths)
    others = [path for path in as_paths(paths) if not any(file == path or path in file.parents for file in found)]
    if found and others:
        raise DpscopeError(f"{found[0]} is a partial and {others[0]} is not: give only partials or only traces")
    return found


def analyze_partials(paths: Paths) -> TraceAnalysis:
    """What `analyze_traces` gives of the traces behind these partials, whatever their number, order and tree.

    Raises DpscopeError where there are none, for one that cannot be read, and for partials of different jobs.
    """
    found = _Found(paths)
    return found.analysis(found.chosen, found.unread(), alone=True)


def analyze_partial_jobs(paths: Paths) -> JobAnalyses:
    """The same of each job, by its name, as `analyze_jobs` has it: told apart by the folders in which their partials lie."""
    found = _Found(paths)
    of_all = found.rows.column("rank").to_pylist()
    ranks: dict[Path, list[int | None]] = {}
    for index in found.chosen:
        ranks.setdefault(found.file_of(index), []).append(of_all[index])
    jobs = jobs_of(ranks)
    if len(jobs) == 1:
        return {"": found.analysis(found.chosen, found.unread(), alone=True)}
    job_of = {file: name for name, files in jobs.items() for file in files}
    own: dict[str, list[int]] = {name: [] for name in jobs}
    for index in found.chosen:
        own[job_of[found.file_of(index)]].append(index)
    first = next(iter(jobs))  # traces that could not be read are said once
    return {name: found.analysis(own[name], found.unread() if name == first else [], alone=False) for name in jobs}


class _Found:
    """All partials among the paths: `rows` as they were read, `owner` of each the index of its file, `chosen` each rank once."""

    def __init__(self, paths: Paths) -> None:
        self.files = partials_among(paths)
        if not self.files:
            named = ", ".join(map(str, as_paths(paths)))
            raise DpscopeError(f"{named} holds no partial (*{SUFFIX}); write some with dpscope reduce TRACES -o FOLDER")
        self._partials = [read_partial(file, timelines=False) for file in self.files]
        sizes = [one.rows.num_rows for one in self._partials]
        self.rows = pa.concat_tables([one.rows for one in self._partials])
        if not self.rows.num_rows:
            raise DpscopeError(f"{self.files[0]} holds no rank: none of its traces could be read")
        self.owner = np.repeat(np.arange(len(self.files)), sizes)
        self._first = np.cumsum([0, *sizes])
        self.chosen = _each_once(self.rows)

    def unread(self) -> list[Finding]:
        """On each trace that no partial could read."""
        return [not_read(one.message) for one in _unread(self._partials, self.rows)]

    def file_of(self, index: int) -> Path:
        """The partial that holds a row."""
        return self.files[int(self.owner[index])]

    def analysis(self, chosen: Sequence[int], unread: Sequence[Finding], alone: bool) -> TraceAnalysis:
        """Of the rows `chosen`, one job's; raises DpscopeError where its partials are of jobs of different sizes.

        `alone`: nothing else will be asked, so that what was read is let go.
        """
        files, owner, first = self.files, self.owner, self._first
        if alone:
            check_one_job(files, self._partials)
        else:
            sizes = self.rows.column("world_size").to_pylist()
            _check_sizes({sizes[index]: self.file_of(index) for index in reversed(chosen)})

        def timelines(indices: Sequence[int]) -> list[StepTimeline | None]:
            wanted = [(int(owner[chosen[index]]), chosen[index]) for index in indices]
            read = {one: read_timelines(files[one]) for one in dict.fromkeys(one for one, _ in wanted)}
            drawn = [read[one].slice(row - int(first[one]), 1) for one, row in wanted]
            return timelines_of(pa.concat_tables(drawn)) if drawn else []

        ordered = self.rows.take(pa.array(chosen))
        if alone:
            self._partials, self.rows = [], ordered.slice(0, 0)  # half of all memory, at thousands of ranks
        return analyze_rows(ordered, unread, timelines)


def join_partials(partials: Sequence[Partial]) -> Partial:
    """Several partials as one."""
    rows = pa.concat_tables([one.rows for one in partials])
    return Partial(rows.take(pa.array(_each_once(rows), pa.int64())).combine_chunks(), _unread(partials, rows))


def _each_once(rows: pa.Table) -> list[int]:
    """Indices of rows by rank; of rows of one trace (name, size, time of change, rank) one, always the same."""
    columns: list[list[Any]] = [rows.column(name).to_pylist() for name in _KEY]
    keys = list(zip(*columns, strict=True))
    order = sorted(range(len(keys)), key=lambda one: (keys[one][0] is None, keys[one][0] or 0, *keys[one][1:]))
    last = {(rank, Path(file).name, size, time): one for one in order for rank, _, file, size, time, _ in (keys[one],)}
    kept = set(last.values())
    return [one for one in order if one in kept]


def _unread(partials: Sequence[Partial], rows: pa.Table) -> tuple[Unread, ...]:
    """Each trace that no partial could read, once."""
    read = set(rows.column("file").to_pylist())
    return tuple(sorted({one for partial in partials for one in partial.unread if one.file not in read}))


def check_one_job(files: Sequence[Path], partials: Sequence[Partial]) -> None:
    """Raise DpscopeError where partials are of jobs of different sizes."""
    sizes: dict[int | None, Path] = {}
    for file, partial in zip(files, partials, strict=True):
        for size in set(partial.rows.column("world_size").to_pylist()):
            sizes.setdefault(size, file)
    _check_sizes(sizes)


def _check_sizes(files: Mapping[int | None, Path]) -> None:
    """`files` by the size of their job, None where a trace does not tell it."""
    known = sorted((size, file) for size, file in files.items() if size is not None)
    if len(known) > 1:
        (one, first), (other, second), *_ = known
        raise DpscopeError(
            f"{first} is from a job of {one} processes, {second} from a job of {other}: name the partials of one job"
        )
