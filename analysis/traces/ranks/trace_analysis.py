"""From the trace files of one job to its tables: steps, collectives, findings. What the command
line calls.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpscope.analysis.traces.ranks.exposed_parts import exposed_parts, with_waits
from dpscope.analysis.traces.ranks.job import NO_TABLES, Job, Tables, join_tables
from dpscope.analysis.traces.ranks.jobs import Indices, find_jobs, recordings_of
from dpscope.analysis.traces.ranks.matching import MATCHED_COLUMNS, RankOrigin, match_recordings
from dpscope.analysis.traces.ranks.origin import origin_of
from dpscope.analysis.traces.ranks.parallelism import parallelism_finding, traced_strategy
from dpscope.analysis.traces.ranks.process_pool import FileProgress, read_files
from dpscope.analysis.traces.ranks.rank_tables import RankTables, TraceSummary, Unread, join_ranks
from dpscope.analysis.traces.ranks.readers import Paths, as_paths, find_files
from dpscope.analysis.traces.ranks.step_findings import (
    far_longer_steps,
    idle_findings,
    step_times_apart,
    uneven_steps,
)
from dpscope.analysis.traces.ranks.timeline import MOST_TO_DRAW, drawn_ranks
from dpscope.analysis.traces.ranks.whole_steps import whole_steps
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.finding import Finding, counted, listed
from dpscope.profiling.records.trace_codes import TraceCode, advised_for_export
from dpscope.profiling.store.errors import DpscopeError

_NAMED_JOBS = 3
_NAMED_FILES = 1  # of each

JobAnalyses = dict[str, Job]


def analyze_traces(
    paths: Paths, limits: ReadLimits = DEFAULT_LIMITS, progress: FileProgress | None = None
) -> Job:
    """Read the traces of one job, a file per process; a path or several, of files and folders.

    Large files are read in parallel by processes of this machine; `progress` is called with (files done, files in all). Raises
    DpscopeError when none can be read, or one that was named and not found in a folder, and where
    the traces are of several jobs.
    """
    ((_, job),) = _each_job(paths, limits, progress, one_alone="this analysis")
    return job


def analyze_jobs(
    paths: Paths, limits: ReadLimits = DEFAULT_LIMITS, progress: FileProgress | None = None
) -> JobAnalyses:
    """As `analyze_traces` of each job whose traces are among the paths, by its name as in
    `find_jobs`; one job's is ``""``.
    """
    return dict(_each_job(paths, limits, progress))


def require_one(jobs: JobAnalyses, what: str) -> None:
    """As `require_one_job` of jobs that were analysed."""
    sources: list[str] = []
    indices: dict[str, Indices] = {}
    for name, job in jobs.items():
        first = len(sources)
        sources += job.sources
        indices[name] = list(range(first, len(sources)))
    require_one_job(indices, sources, what)


def require_one_job(jobs: Mapping[str, Indices], files: Sequence[str | Path], what: str) -> None:
    """Raise DpscopeError naming the jobs, with their files, where there are several; `what` takes
    one.
    """
    if len(jobs) < 2:
        return
    named = []
    for job, indices in jobs.items():
        own = [str(files[index]) for index in indices]
        distinct = list(dict.fromkeys(own))
        named.append(f"{job} ({listed(distinct, _NAMED_FILES)})")
    raise DpscopeError(
        f"these are traces of {len(named)} jobs: {listed(named, _NAMED_JOBS)}; {what} takes one job: name its folder or files"
    )


def _each_job(
    paths: Paths, limits: ReadLimits, progress: FileProgress | None, one_alone: str = ""
) -> Iterator[tuple[str, Job]]:
    """Each job's name and analysis; `one_alone` names what is made of one job and refused for
    several.
    """
    whole, holders = _read(paths, limits, progress)
    kept = whole.each_once()
    grouped_traces = find_jobs(
        [whole.ranks[place].summary for place in kept],
        [holders[place] for place in kept],
        [not_read(file) for file in whole.unread],
    )
    if one_alone:
        files = [holders[place] for place in kept]
        require_one_job(grouped_traces.jobs, files, one_alone)
    jobs: dict[str, RankTables] = {}
    for name, traces in grouped_traces.jobs.items():
        jobs[name] = whole.take([kept[trace] for trace in traces])
    del whole  # at thousands of ranks as large as the analysis
    for name in list(jobs):
        yield name, analyze_job(jobs.pop(name), grouped_traces.of(name))


def _read(
    paths: Paths, limits: ReadLimits, progress: FileProgress | None
) -> tuple[RankTables, list[Path]]:
    """The ranks of the files that could be read, and each one's file; raises as
    `analyze_traces`.
    """
    traces = find_files(paths)
    named = {path for path in as_paths(paths) if not os.path.isdir(path)}
    parts: list[RankTables] = []
    holders: list[Path] = []
    unread: list[Unread] = []
    outcomes = read_files(traces.files, limits, progress, traces.reader)
    read = zip(traces.files, outcomes, strict=True)
    for file, outcome in read:
        if not isinstance(outcome, DpscopeError):
            parts.append(outcome)
            holders += [file] * len(outcome.ranks)
        elif file in named:
            raise outcome
        else:
            unread.append(Unread(str(file), str(outcome)))
    whole = join_ranks(parts, unread)
    # a partial may lie next to the traces that it was made of
    reduced = {rank.origin.content for rank in whole.ranks}
    others = []
    for file, reason in traces.unread.items():
        origin = origin_of(file)
        if origin is None or origin.content not in reduced:
            others.append(Unread(str(file), reason))
    whole = join_ranks([whole], others)
    if not whole.ranks:
        reason = (
            f"{traces.files[0]} contains no rank; name torch.profiler traces, or partials of them"
        )
        for unread_file in whole.unread[:1]:
            reason = unread_file.message
        raise none_read(reason)
    return whole, holders


def analyze_job(job: RankTables, findings: Sequence[Finding]) -> Job:
    """The analysis of a job's ranks; `findings` are of the files, and go first."""
    findings = (*findings, *job.findings)
    job, left_out = _with_communication(job)
    tables, matching = job_tables(job)
    steps, ranks = tables.steps, [summary.rank for summary in job.summaries]
    communication_known = all(summary.communication_shown for summary in job.summaries)
    findings = (
        *findings,
        *matching,
        *idle_findings(steps, communication_known=communication_known),
        *uneven_steps(steps),
        *far_longer_steps(steps),
        *parallelism_finding(
            [summary.parallelism for summary in job.summaries], tables.collectives
        ),
    )
    if not _by_profiler(job):
        findings = tuple(map(advised_for_export, findings))
    analysis = Job(
        **_facts(job.summaries, tables.collectives),
        tables=tables,
        summaries=job.summaries,
        without_communication=left_out,
        communication_known=communication_known,
        findings=findings,
    )
    # else no rank is chosen by its waits, which take time to compute
    many = len(ranks) > MOST_TO_DRAW
    chosen = drawn_ranks(ranks, analysis.waits_caused) if many else range(len(ranks))
    return replace(analysis, timelines=tuple((0, timeline) for timeline in job.timelines(chosen)))


def _with_communication(job: RankTables) -> tuple[RankTables, tuple[TraceSummary, ...]]:
    """The ranks whose traces show their communication, and the others, which are left out; if none
    does, all ranks stay.
    """
    shown = []
    left_out = []
    for place, summary in enumerate(job.summaries):
        if summary.communication_shown:
            shown.append(place)
        else:
            left_out.append(summary)
    if not shown or not left_out:
        return job, ()
    return job.take(shown), tuple(left_out)


def _facts(summaries: Sequence[TraceSummary], collectives: Table) -> dict[str, Any]:
    """Ranks and devices as the traces show them; a trace that shows neither is of one process."""
    evidence = [summary.parallelism for summary in summaries]
    ranks = [summary.rank for summary in summaries if summary.rank is not None]
    sizes = [
        rank_evidence.world_size
        for rank_evidence in evidence
        if rank_evidence.world_size is not None
    ]
    largest_group, read = int(collectives["group_size"].max(initial=0)), len(evidence)
    processes = max([read, *sizes, *(rank + 1 for rank in ranks), largest_group])
    ranks_read = (
        counted(read, "rank") if processes == read else f"{read} of {counted(processes, 'rank')}"
    )
    return {
        "name": f"traces of {ranks_read}" if processes > 1 else "trace of one process",
        "strategy": traced_strategy(evidence, collectives),
        "devices": max(processes, *(rank_evidence.devices for rank_evidence in evidence)),
        "processes": processes,
    }


def read_kept(files: Sequence[Path]) -> RankTables:
    """The ranks of a run's own files, whose tables are kept. Raises DpscopeError for a file that
    cannot be read.
    """
    from dpscope.analysis.traces.ranks.kept_tables import read_files_once

    kept: list[RankTables] = []
    for outcome in read_files_once(files):
        if isinstance(outcome, DpscopeError):
            raise outcome
        kept.append(outcome)
    whole = join_ranks(kept)
    return whole.take(whole.order())


def job_tables(job: RankTables, repeat: int = 0) -> tuple[Tables, tuple[Finding, ...]]:
    """The tables of ranks as those of a job's repeat, their collectives matched; and what was found
    in matching them.
    """
    recordings = recordings_of(job.summaries)  # a process may have been traced several times
    origins = [
        RankOrigin(summary.rank if summary.rank is not None else -1, summary.zero_ns, summary.host)
        for summary in job.summaries
    ]
    matched = match_recordings(_with_sizes(job), job.places("collectives"), recordings, origins)
    collectives, apart = matched.rows, step_times_apart(whole_steps(job.tables["steps"]))
    if apart:
        compared = [
            name for name in MATCHED_COLUMNS if name not in ("match", "lower_bound_gb_per_s")
        ]
        collectives = collectives.assign(**dict.fromkeys(compared))
    parts = exposed_parts(collectives, job.tables["exposed"])
    tables = {
        **job.tables,
        "collectives": collectives,
        "exposed_parts": parts,
        "steps": with_waits(job.tables["steps"], collectives, parts),
    }
    whole = replace(
        NO_TABLES, **{name: table.assign(repeat=repeat) for name, table in tables.items()}
    )
    # with all columns, where nothing was recorded too
    return join_tables([whole]), (*matched.findings, *apart)


def _by_profiler(job: RankTables) -> bool:
    """Whether torch.profiler recorded all ranks."""
    return all(summary.format == TraceSummary.format for summary in job.summaries)


def _with_sizes(job: RankTables) -> Table:
    """The collectives; in exports that do not state how many ranks take part, those read that do.

    NCCL states it only where communicators are made, which a capture of some steps leaves out.
    """
    collectives = job.tables["collectives"]
    if _by_profiler(job):
        return collectives
    groups = collectives.group("group")
    ranks = groups.different(collectives["rank"])[groups.code]
    named = collectives.known("group")
    # next to named groups those without a name may be of any
    counts = (named | (not named.any())) & (ranks > 1)
    taken = np.where(counts & ~collectives.known("group_size"), ranks, collectives["group_size"])
    return collectives.assign(group_size=taken)


def not_read(file: Unread) -> Finding:
    """Those of several files that have the same reason are shown as one."""
    reason = file.message.removeprefix(f"{file.file}: ")
    about = ""
    if reason != file.message:
        about = file.file
    return TraceCode.FILE_NOT_READ.finding(reason, about=about)


def none_read(message: str) -> DpscopeError:
    """For files of which none could be read; `message` is why one of them could not."""
    return DpscopeError(f"no trace could be read: {message}")
