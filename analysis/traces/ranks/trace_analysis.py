"""From the trace files of one job to its tables: steps, collectives, findings. What the command line calls."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpscope.analysis.traces.ranks.exposed_parts import exposed_parts, with_waits
from dpscope.analysis.traces.ranks.job import NO_TABLES, Job, Tables, join_tables
from dpscope.analysis.traces.ranks.jobs import FoundJobs, find_jobs, windows_of
from dpscope.analysis.traces.ranks.matching import RankOrigin, match_windows
from dpscope.analysis.traces.ranks.parallelism import parallelism_finding, traced_strategy
from dpscope.analysis.traces.ranks.process_pool import FileProgress, read_files
from dpscope.analysis.traces.ranks.rank_tables import COLUMNS, RankTables, TraceSummary, join_ranks
from dpscope.analysis.traces.ranks.step_findings import far_longer_steps, idle_findings, uneven_steps
from dpscope.analysis.traces.ranks.timeline import MOST_TO_DRAW, StepTimeline, drawn_ranks
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.finding import Finding, counted, listed
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import natural_order

Paths = str | Path | Sequence[str | Path] | Sequence[Path]

_NAMED_JOBS = 3
_TRACE_NAME = re.compile(r"\.json(\.gz)?$")


JobAnalyses = dict[str, Job]


def analyze_traces(
    paths: Paths,
    limits: ReadLimits = DEFAULT_LIMITS,
    executor: Executor | None = None,
    progress: FileProgress | None = None,
) -> Job:
    """Read the traces of one job, a file per process or several ranks in one; a path or several, of files and folders.

    Large files are read in parallel by processes of this machine, or by `executor` (its workers must see the same paths);
    `progress` is called with (files done, files in all). Raises DpscopeError when none can be read, or one that was named
    and not found in a folder, and where the traces are of several jobs.
    """
    ranks, found = _read(paths, limits, executor, progress)
    require_one_job(found.jobs, paths, "this analysis")
    return _each_job(ranks, found)[""]


def analyze_jobs(
    paths: Paths, limits: ReadLimits = DEFAULT_LIMITS, progress: FileProgress | None = None
) -> JobAnalyses:
    """As `analyze_traces` of each job whose traces are among the paths, by its name as in `find_jobs`; one job's is ``""``."""
    return _each_job(*_read(paths, limits, None, progress))


def require_one_job(jobs: Mapping[str, object], paths: Paths, what: str) -> None:
    """Raise DpscopeError naming the jobs where there are several; `what` takes one."""
    if (count := len(jobs)) > 1:
        hold = "hold" if len(as_paths(paths)) > 1 else "holds"
        named = listed(list(jobs), _NAMED_JOBS)
        raise DpscopeError(
            f"{', '.join(map(str, as_paths(paths)))} {hold} the traces of {count} jobs ({named}): {what} takes one job; "
            "name that job's folder or files"
        )


def _read(
    paths: Paths, limits: ReadLimits, executor: Executor | None, progress: FileProgress | None
) -> tuple[list[RankTables], FoundJobs]:
    """The ranks of the files that could be read, and their jobs; raises as `analyze_traces`."""
    files, named = find_traces(paths), {path for path in as_paths(paths) if not os.path.isdir(path)}
    ranks: list[tuple[RankTables, Path]] = []
    unread: list[Finding] = []
    for file, outcome in zip(files, read_files(files, limits, executor, progress), strict=True):
        if not isinstance(outcome, DpscopeError):
            ranks += [(one, file) for one in outcome]
        elif file in named:
            raise outcome
        else:
            unread.append(not_read(str(outcome)))
    if not ranks:
        raise none_read(unread[0].message)
    summaries, places = [one.summaries[0] for one, _ in ranks], [file for _, file in ranks]
    return [one for one, _ in ranks], find_jobs(summaries, places, unread)


def _each_job(ranks: Sequence[RankTables], found: FoundJobs) -> JobAnalyses:
    return {
        name: analyze_job(
            join_ranks([ranks[place] for place in places]),
            found.of(name),
        )
        for name, places in found.jobs.items()
    }


def analyze_job(
    job: RankTables,
    findings: Sequence[Finding],
    timelines: Callable[[Sequence[int]], Sequence[StepTimeline | None]] | None = None,
) -> Job:
    """The analysis of a job's ranks; `findings` are of the files, and go first.

    `timelines` gives the drawn steps of ranks by their places, once it is known which are drawn; default: the job's own.
    """
    tables, matching = job_tables(job)
    steps, ranks = tables.steps, [one.rank for one in job.summaries]
    communication_known = all(one.communication_shown for one in job.summaries)
    analysis = Job(
        **_facts(job.summaries, tables.collectives),
        tables=tables,
        summaries=job.summaries,
        communication_known=communication_known,
        findings=(
            *findings,
            *job.findings,
            *matching,
            *idle_findings(steps, communication_known=communication_known),
            *uneven_steps(steps),
            *far_longer_steps(steps),
            *parallelism_finding(
                [one.parallelism for one in job.summaries],
                tables.collectives,
            ),
        ),
    )
    many = len(ranks) > MOST_TO_DRAW  # else no rank is chosen by its waits, which take time to compute
    chosen = drawn_ranks(ranks, steps, analysis.waits_caused) if many else range(len(ranks))
    drawn = [job.timelines[place] for place in chosen] if timelines is None else timelines(chosen)
    return replace(
        analysis,
        timelines=tuple((0, one) for one in drawn if one is not None),
    )


def _facts(summaries: Sequence[TraceSummary], collectives: Table) -> dict[str, Any]:
    """Ranks and devices as the traces show them; a trace that shows neither is of one process."""
    evidence = [one.parallelism for one in summaries]
    ranks = [one.rank for one in summaries if one.rank is not None]
    sizes = [one.world_size for one in evidence if one.world_size is not None]
    largest_group, read = int(collectives["group_size"].max(initial=0)), len(evidence)
    processes = max(
        [
            read,
            *sizes,
            *(rank + 1 for rank in ranks),
            largest_group,
        ]
    )
    ranks_read = counted(read, "rank") if processes == read else f"{read} of {counted(processes, 'rank')}"
    return {
        "name": f"traces of {ranks_read}" if processes > 1 else "trace of one process",
        "strategy": traced_strategy(evidence, collectives),
        "devices": max(processes, *(one.devices for one in evidence)),
        "processes": processes,
    }


def read_kept(files: Sequence[Path]) -> RankTables:
    """The ranks of a run's own files, whose tables are kept. Raises DpscopeError for a file that cannot be read."""
    from dpscope.analysis.traces.ranks.kept_tables import read_files_once

    found: list[RankTables] = []
    for outcome in read_files_once(files):
        if isinstance(outcome, DpscopeError):
            raise outcome
        found += outcome
    return join_ranks(found)


def job_tables(job: RankTables, repeat: int = 0) -> tuple[Tables, tuple[Finding, ...]]:
    """The tables of ranks as those of a job's repeat, their collectives matched; and what was found in matching them."""
    windows = windows_of(job.summaries)  # a process may have been traced several times
    origins = [
        RankOrigin(
            one.rank if one.rank is not None else -1,
            one.zero_ns,
            one.host,
        )
        for one in job.summaries
    ]
    matched = match_windows(job.collectives, job.collective_owner, windows, origins)
    collectives = matched.table
    parts = exposed_parts(collectives, job.exposed)
    tables = {name: getattr(job, name) for name in COLUMNS}
    tables |= {
        "collectives": collectives,
        "exposed_parts": parts,
        "steps": with_waits(job.steps, collectives, parts),
    }
    whole = replace(
        NO_TABLES,
        **{name: table.assign(repeat=repeat) for name, table in tables.items()},
    )
    return join_tables([whole]), matched.findings  # with all columns, where nothing was recorded too


def as_paths(paths: Paths) -> list[Path]:
    """One path or several, as Path."""
    return [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def find_traces(paths: Paths) -> list[Path]:
    """Trace files among the paths: files as named, folders searched for `*.json` and `*.json.gz`.

    What cannot be searched inside a folder is among them, and its reader reports why. Raises DpscopeError when a path does not
    exist or a folder holds none.
    """
    found: list[Path] = []
    for path in as_paths(paths):
        if os.path.isdir(path):
            inside = _inside(path)
            if not inside:
                raise DpscopeError(f"{path} holds no trace: no *.json or *.json.gz in it; name a folder with traces")
            found += sorted(inside, key=natural_order)
        elif _unless_hidden(path.exists):
            found.append(path)
        else:
            raise DpscopeError(f"{path} does not exist; name trace files, a folder of them, or a run folder")
    return found


def _inside(folder: Path) -> list[Path]:
    found: list[Path] = []
    for parent, _, names in os.walk(
        folder,
        onerror=lambda error: found.append(Path(error.filename)),
    ):
        files = [Path(parent, name) for name in names if _TRACE_NAME.search(name)]
        found.extend(file for file in files if _unless_hidden(file.is_file))
    return found


def _unless_hidden(check: Callable[[], bool]) -> bool:
    """The check of a path, or True where the permissions of its folder prevent it: its reader reports that."""
    try:
        return check()
    except OSError:
        return True


def not_read(message: str) -> Finding:
    return TraceCode.FILE_NOT_READ.finding(message=message)


def none_read(message: str) -> DpscopeError:
    """For files of which none could be read; `message` is why one of them could not."""
    return DpscopeError(f"no trace could be read: {message}; name torch.profiler traces")
