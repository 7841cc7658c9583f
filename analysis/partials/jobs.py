"""Partials analysed: any number of them joined to the jobs whose ranks they hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow

from dpscope.analysis.partials.found import SUFFIX, partials_among
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.jobs import find_jobs
from dpscope.analysis.traces.ranks.partial import Partial, join_partials, read_partial, read_timelines
from dpscope.analysis.traces.ranks.timeline import StepTimeline
from dpscope.analysis.traces.ranks.trace_analysis import (
    JobAnalyses,
    Paths,
    analyze_job,
    as_paths,
    not_read,
    require_one_job,
)
from dpscope.profiling.store.errors import DpscopeError


def analyze_partials(paths: Paths) -> Job:
    """The result of `analyze_traces` for the traces in these partials, regardless of their number, order and joining.

    Raises DpscopeError if there are no partials, if one cannot be read, or if they belong to different jobs.
    """
    ((_, analysis),) = _each_job(paths, "this analysis")
    return analysis


def analyze_partial_jobs(paths: Paths) -> JobAnalyses:
    """The same for each job by name, as `analyze_jobs` does; jobs are named after the folders of their partials."""
    return dict(_each_job(paths))


def _each_job(paths: Paths, one_alone: str = "") -> Iterator[tuple[str, Job]]:
    """Each job's name and analysis; `one_alone` names what is made of one job and refused for several."""
    whole, places = _read(paths)
    kept = whole.each_once()
    found = find_jobs(
        [whole.ranks[rank].summary for rank in kept],
        [places[rank].file for rank in kept],
        [not_read(one.message) for one in whole.unread],
    )
    if one_alone:
        require_one_job(found.jobs, paths, one_alone)
    ranks_of = {name: [kept[trace] for trace in traces] for name, traces in found.jobs.items()}
    jobs = {name: whole.take(ranks) for name, ranks in ranks_of.items()}
    del whole
    for name, ranks in ranks_of.items():
        timelines = partial(_timelines, [places[rank] for rank in ranks])
        yield name, analyze_job(jobs.pop(name).to_ranks(), found.of(name), timelines)


@dataclass(frozen=True)
class _Place:
    """Where a rank is stored: its partial, and its place in it."""

    file: Path
    place: int


def _read(paths: Paths) -> tuple[Partial, list[_Place]]:
    """The ranks of all partials without their timelines, and the place of each."""
    files = partials_among(paths)
    if not files:
        named = ", ".join(map(str, as_paths(paths)))
        raise DpscopeError(f"{named} contains no partial (*{SUFFIX}); write one with dpscope reduce TRACES -o FOLDER")
    parts = [read_partial(file, with_timelines=False) for file in files]
    places: list[_Place] = []
    for file, part in zip(files, parts, strict=True):
        places += [_Place(file, place) for place in range(len(part.ranks))]
    whole = join_partials(parts)
    del parts  # half of all memory at thousands of ranks
    pyarrow.default_memory_pool().release_unused()
    if not whole.ranks:
        raise DpscopeError(f"{files[0]} contains no rank: none of its traces could be read")
    return whole, places


def _timelines(places: Sequence[_Place], ranks: Sequence[int]) -> list[StepTimeline | None]:
    """The drawn steps of these ranks, of which `places` has each one's."""
    drawn = [places[rank] for rank in ranks]
    read = {file: read_timelines(file) for file in {one.file for one in drawn}}
    return [read[one.file][one.place] for one in drawn]
