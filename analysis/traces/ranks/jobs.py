"""Which traces belong to one job: the one place that decides it, from what the traces record and
where they lie.

Traces are of one job where recorded world size and times agree. Times are compared on one host's
clock; hosts' clocks may differ. Traces that agree and claim the same rank are
separated by folder and host. Successive recordings of one process are one job. Whatever cannot be
separated stands alone, since nothing may be averaged over jobs.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any

from dpscope.analysis.traces.ranks.rank_tables import TraceSummary
from dpscope.profiling.records.finding import Finding, counted, grouped, listed
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.files import natural_order

# traces of one job overlap in time on one clock; so much is allowed for the profiler's start
_ONE_CLOCK_NS = 2 * 10**9
_TWO_CLOCKS_NS = 3600 * 10**9  # by which clocks of two hosts may differ
_NAMED_FILES = 4

Indices = list[int]


@dataclass(frozen=True)
class FoundJobs:
    """Indices of the traces of each job, by its name; a single job is called ``""``. `findings` by
    the same names.
    """

    jobs: dict[str, Indices]
    findings: dict[str, list[Finding]] = field(default_factory=dict)

    def of(self, name: str) -> list[Finding]:
        """The findings on a job's files."""
        return self.findings.get(name, [])


@dataclass(frozen=True, kw_only=True)
class _Trace(TraceSummary):
    """A trace with its index among all, and the absolute folder of its file."""

    index: int
    folder: str

    @property
    def process(self) -> tuple[str | None, int, int | None] | None:
        if self.process_id is None:
            return None
        return self.host, self.process_id, self.rank


def _indexed(trace: TraceSummary, index: int, folder: str) -> _Trace:
    return _Trace(**vars(trace), index=index, folder=folder)


_Part = list[_Trace]


def find_jobs(
    traces: Sequence[TraceSummary], places: Sequence[Path], findings: Sequence[Finding] = ()
) -> FoundJobs:
    """The jobs among traces; `places` are the files that hold them, whose folders name the jobs.

    A job is named by the folder that contains its files, ``.`` if these lie next to the others'
    folders. A single trace in a folder with a job of several, but not of that job, is left out with
    a finding. `findings` are on files of no job: the first job has them, so that they are reported
    once.
    """
    every = []
    for index, (summary, place) in enumerate(zip(traces, places, strict=True)):
        folder = os.path.dirname(os.path.abspath(place))
        every.append(_indexed(summary, index, folder))
    originals, copies = _without_copies(every)
    jobs: list[_Part] = []
    not_unique: list[_Part] = []  # their traces stand alone: nothing may be averaged over jobs
    for part in _divided(originals):
        if _is_one_job(part):
            jobs.append(part)
        else:
            not_unique.append(part)
            jobs += [[trace] for trace in part]
    jobs, strays = _without_strays(sorted(jobs, key=_begin))
    # each finding with a trace of the job that it is about
    about = [(original, _is_copy(copy, original)) for copy, original in copies]
    about += [(job[0], _is_of_another_job(stray, job)) for stray, job in strays]
    about += [(part[0], _are_not_unique(part)) for part in not_unique]
    about += [(job[0], _is_one_of_several(job)) for job in _side_by_side(jobs)]
    named = _named(jobs)
    indices = {name: [trace.index for trace in job] for name, job in named.items()}
    return FoundJobs(indices, _by_job(indices, about, findings))


def _by_job(
    jobs: dict[str, Indices], about: list[tuple[_Trace, Finding]], findings: Sequence[Finding]
) -> dict[str, list[Finding]]:
    """The findings by the job of the trace that each is about; the first job has those about none."""
    first = next(iter(jobs))
    job_of: dict[int, str] = {}
    for name, indices in jobs.items():
        job_of |= dict.fromkeys(indices, name)
    by_job = grouped((job_of.get(trace.index, first), finding) for trace, finding in about)
    by_job[first] = [*findings, *by_job.get(first, ())]
    return by_job


def _without_copies(traces: _Part) -> tuple[_Part, list[tuple[_Trace, _Trace]]]:
    """Each trace once, and the copies of one that was there before, each with it."""
    originals: dict[object, _Trace] = {}
    copies = []
    for trace in traces:
        original = originals.setdefault(_identity(trace), trace)
        if original is not trace:
            copies.append((trace, original))
    return list(originals.values()), copies


def _divided(part: _Part) -> list[_Part]:
    """By all that separates jobs."""
    parts = [part]
    for split in (_by_world_size, _by_time, _by_folder, _by_host):
        pieces = map(split, parts)
        parts = list(chain.from_iterable(pieces))
    return parts


def _begin(part: _Part) -> tuple[int, int]:
    return _span_ns(part)[0], part[0].index


def _identity(trace: _Trace) -> object:
    """The same for files that hold the same trace."""
    content = trace.index if trace.content is None else trace.content
    return trace.rank, content


def _side_by_side(jobs: list[_Part]) -> list[_Part]:
    """The jobs that share a folder with another one."""
    jobs_in: Counter[str] = Counter()
    for job in jobs:
        jobs_in.update(_folders(job))
    shared = {folder for folder, count in jobs_in.items() if count > 1}
    return [job for job in jobs if not shared.isdisjoint(_folders(job))]


def _folders(job: _Part) -> set[str]:
    return {trace.folder for trace in job}


def _is_one_of_several(job: _Part) -> Finding:
    traces = counted(len(job), "trace")
    named = f"{_files(job)}{_recorded(job)}"
    return TraceCode.SEVERAL_JOBS.finding(f"{traces} in a folder with those of other jobs: {named}")


def _is_copy(copy: _Trace, original: _Trace) -> Finding:
    which = "the same trace"
    if original.rank is not None:
        which = f"{which} of rank {original.rank}"
    message = f"{copy.source} holds {which} as {original.source}: it is counted once"
    return TraceCode.FILE_NOT_READ.finding(message, "remove the copy")


def _is_of_another_job(stray: _Trace, job: _Part) -> Finding:
    message = f"{stray.source} was left out, since it is of another job{_recorded([stray])}; the others{_recorded(job)}"
    return TraceCode.TRACE_OF_ANOTHER_JOB.finding(message)


def _are_not_unique(part: _Part) -> Finding:
    ranks = Counter(trace.rank for trace in part)
    alike = []
    for rank, times in ranks.items():
        if rank is None:
            alike.append(f"{times} of no rank")
        elif times > 1:
            alike.append(f"{times} of rank {rank}")
    files = f"{counted(len(part), 'file')} ({_files(part)})"
    alike_counts = ", ".join(sorted(alike))
    return TraceCode.SEVERAL_JOBS.finding(
        f"of {files} {alike_counts} cannot be distinguished: nothing recorded shows which are of one job, "
        "so that each is analysed by itself"
    )


def _recorded(part: _Part) -> str:
    """What traces record that tells jobs apart, to follow a noun."""
    begin_ns, _ = _span_ns(part)
    facts: dict[str, set[object]] = {
        "world size": {trace.world_size for trace in part},
        "host": {trace.host for trace in part},
        "begin (UTC)": {_moment(begin_ns)},
    }
    recorded = []
    for name, values in facts.items():
        known = sorted(str(value) for value in values - {None})
        if known:
            recorded.append(f"{name} {', '.join(known)}")
    if not recorded:
        return ""
    return f" ({', '.join(recorded)})"


def _moment(since_1970_ns: int) -> str | None:
    if not since_1970_ns:
        return None
    moment = datetime.fromtimestamp(since_1970_ns / 1e9, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def recordings_of(traces: Sequence[TraceSummary]) -> list[Indices]:
    """One job's traces by recording, in order of time: each process once in each; one recording
    unless a process is there twice.
    """
    if len({trace.rank for trace in traces}) == len(traces):
        return [list(range(len(traces)))]
    every = []
    for index, trace in enumerate(traces):
        every.append(_indexed(trace, index, folder=""))
    # by their times, else by the numbers of their steps, which a process counts onwards
    if all(trace.start_ns is not None for trace in every):
        recordings = _stretches_joined([[trace] for trace in every], 0)
    else:
        by_first_step = grouped((trace.first_step or 0, trace) for trace in every)
        recordings = [recording for _, recording in sorted(by_first_step.items())]
    return [[trace.index for trace in recording] for recording in recordings]


def _by_world_size(part: _Part) -> list[_Part]:
    return _grouped(part, lambda trace: trace.world_size)


def _by_host(part: _Part) -> list[_Part]:
    return [part] if _is_one_job(part) else _grouped(part, lambda trace: trace.host)


def _grouped(part: _Part, key: Callable[[_Trace], Any]) -> list[_Part]:
    """By a recorded value; traces that record none go with the others where there is one value,
    else by themselves.
    """
    by_value = grouped((key(trace), trace) for trace in part)
    recorded = by_value.keys() - {None}
    if len(recorded) < 2:
        return [part]
    return list(by_value.values())


def _by_time(part: _Part) -> list[_Part]:
    """By times that overlap, host by host; hosts that each have one stretch of time are one job's,
    however far their clocks.
    """
    if any(trace.start_ns is None for trace in part):
        return [part]
    stretches: list[_Part] = []
    by_host = grouped((trace.host, trace) for trace in part).values()
    for on_host in by_host:
        stretches += _on_one_clock(on_host)
    if len(by_host) > 1:
        limit_ns = _TWO_CLOCKS_NS if len(stretches) == len(by_host) else _ONE_CLOCK_NS
        stretches = _stretches_joined(stretches, limit_ns)
    return [_in_order(stretch) for stretch in stretches]


def _on_one_clock(traces: _Part) -> list[_Part]:
    """Those that overlap, and later recordings of their processes."""
    jobs: list[_Part] = []
    for stretch in _stretches_joined([[trace] for trace in traces], _ONE_CLOCK_NS):
        continued = next((job for job in jobs if _are_later_recordings(job, stretch)), None)
        if continued is None:
            jobs.append(stretch)
        else:
            continued += stretch
    return jobs


def _span_ns(part: _Part) -> tuple[int, int]:
    starts = [trace.start_ns or 0 for trace in part]
    ends = [trace.end_ns or 0 for trace in part]
    return min(starts), max(ends)


def _in_order(part: Iterable[_Trace]) -> _Part:
    return sorted(part, key=lambda trace: trace.index)


def _stretches_joined(parts: list[_Part], limit_ns: int) -> list[_Part]:
    """Parts joined where they overlap, or lie no farther apart than the limit."""
    joined: list[_Part] = []
    last_ns = 0
    by_time = sorted(parts, key=lambda part: (*_span_ns(part), part[0].index))
    for part in by_time:
        start_ns, end_ns = _span_ns(part)
        if joined and start_ns - last_ns <= limit_ns:
            joined[-1] += part
        else:
            joined.append(list(part))
        last_ns = max(last_ns, end_ns)
    return [_in_order(part) for part in joined]


def _are_later_recordings(earlier: _Part, later: _Part) -> bool:
    """Whether all are of processes that were traced before, with later steps."""
    last_step: dict[object, int] = {}
    for trace in earlier:
        if trace.process is not None and trace.last_step is not None:
            before = last_step.get(trace.process, 0)
            last_step[trace.process] = max(trace.last_step, before)
    for trace in later:
        if trace.process not in last_step or trace.first_step is None:
            return False
        if trace.first_step <= last_step[trace.process]:
            return False
    return True


def _is_one_job(part: _Part) -> bool:
    """Whether each rank is there once, or several times as recordings of one process with steps of
    different numbers.
    """
    by_time = sorted(part, key=lambda trace: (trace.start_ns or 0, trace.first_step or 0))
    by_rank = grouped((trace.rank, trace) for trace in by_time)
    for of_rank in by_rank.values():
        for earlier, later in pairwise(of_rank):
            if not _are_later_recordings([earlier], [later]):
                return False
    return True


def _by_folder(part: _Part, depth: int = 1) -> list[_Part]:
    """By the folders that hold them, as few levels deep as make ranks differ."""
    deepest = max(len(Path(trace.folder).parts) for trace in part)
    if _is_one_job(part) or depth > deepest:
        return [part]
    inside = grouped((Path(trace.folder).parts[:depth], trace) for trace in part)
    pieces = []
    for within in inside.values():
        pieces += _by_folder(within, depth + 1)
    return pieces


def _without_strays(parts: list[_Part]) -> tuple[list[_Part], list[tuple[_Trace, _Part]]]:
    """The jobs, and single traces that lie among the files of a job of several, each with that
    job.
    """
    largest_first = sorted(parts, key=len, reverse=True)
    jobs: list[_Part] = []
    strays: list[tuple[_Trace, _Part]] = []
    for part in parts:
        around = next(job for job in largest_first if part[0].folder in _folders(job))
        if len(part) == 1 and len(around) > 1:
            strays.append((part[0], around))
        else:
            jobs.append(part)
    return jobs, strays


def _named(jobs: list[_Part]) -> dict[str, _Part]:
    """Each job by its folder; jobs of one folder by their number in order of time, single traces by
    file.
    """
    if len(jobs) == 1:
        return {"": jobs[0]}
    folders = [os.path.commonpath(_folders(job)) for job in jobs]
    top = os.path.commonpath(folders)
    names: list[str] = []
    numbers: Counter[str] = Counter()
    for job, folder in zip(jobs, folders, strict=True):
        name = os.path.relpath(folder, top)
        if folders.count(folder) > 1:
            numbers[folder] += 1
            last = f"job {numbers[folder]}"
            if len(job) == 1:
                last = Path(job[0].source).name
            name = os.path.normpath(os.path.join(name, last))
        names.append(name)
    named = dict(zip(distinct_names(names), jobs, strict=True))
    in_order = sorted(named, key=lambda name: natural_order(Path(name)))
    return {name: named[name] for name in in_order}


def distinct_names(names: Sequence[str]) -> list[str]:
    """The names in order; one that was there before gets a number with which it equals no other.

    >>> distinct_names(["host1", "host1", "host1 (2)"])
    ['host1', 'host1 (3)', 'host1 (2)']
    """
    distinct: list[str] = []
    for name in names:
        if name in distinct:
            taken = {*names, *distinct}
            numbered = (f"{name} ({number})" for number in count(2))
            name = next(text for text in numbered if text not in taken)
        distinct.append(name)
    return distinct


def _files(part: _Part) -> str:
    names = [Path(trace.source).name for trace in part]
    return listed(names, _NAMED_FILES)
