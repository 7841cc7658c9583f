"""From the trace files of one job to its tables: steps, collectives, findings. What the command line calls."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dpscope.analysis.traces.ranks.contention import Contentions, contentions, with_contention
from dpscope.analysis.traces.ranks.exposed_parts import (
    NotSplit,
    exposed_parts,
    why_not_split,
    with_waits,
)
from dpscope.analysis.traces.ranks.jobs import FoundJobs, find_jobs, windows_of
from dpscope.analysis.traces.ranks.lateness import waits_by_pair
from dpscope.analysis.traces.ranks.ledger import Ledger, ledger_of
from dpscope.analysis.traces.ranks.matching import RankOrigin, match_windows
from dpscope.analysis.traces.ranks.parallelism import parallelism_finding
from dpscope.analysis.traces.ranks.process_pool import FileProgress, read_files
from dpscope.analysis.traces.ranks.rank_tables import TABLES, RankTables, Tables, TraceSummary, join_ranks
from dpscope.analysis.traces.ranks.step_findings import far_longer_steps, idle_findings, uneven_steps
from dpscope.analysis.traces.ranks.timeline import MOST_TO_DRAW, StepTimeline, drawn_ranks
from dpscope.analysis.traces.ranks.whole_steps import far_longer_count, whole_steps
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.analysis.traces.reading.table import FrameOf, Table
from dpscope.profiling.records.finding import Finding, listed
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import natural_order

Paths = str | Path | Sequence[str | Path] | Sequence[Path]

_NAMED_JOBS = 3
_TRACE_NAME = re.compile(r"\.json(\.gz)?$")


@dataclass(frozen=True)
class TraceTables(Tables):
    """The tables of all ranks of a job, and what follows from them."""

    @cached_property
    def steps_with_waits(self) -> Table:
        """`steps` with the columns of `waits_by_step`; a step's exposed parts add up to its exposed_us."""
        return with_waits(self.steps, self.collectives, self.exposed_parts)

    @cached_property
    def exposed_parts(self) -> Table:
        return exposed_parts(self.collectives, self.exposed)

    @cached_property
    def whole_collectives(self) -> Table:
        """The collectives of steps with a whole window, which means are of."""
        return self.collectives.within(whole_steps(self.steps), ("rank", "step"))

    @cached_property
    def waits_caused(self) -> Table:
        """`waits_by_pair` of the whole steps."""
        return waits_by_pair(self.whole_collectives)


@dataclass(frozen=True)
class TraceAnalysis:
    """What the traces of one job's ranks show: tables, and findings about them."""

    __repr__ = short_repr

    tables: TraceTables
    summaries: tuple[TraceSummary, ...]
    file_findings: tuple[Finding, ...]  # of what each file shows and lacks, and whether the files fit together
    job_findings: tuple[Finding, ...]  # of what the job's steps are spent on
    timelines: tuple[StepTimeline, ...] = ()  # of the ranks that are drawn

    steps = FrameOf()  # a row per (rank, device, step)
    collectives = FrameOf()  # a row per collective of a rank, matched across ranks
    dp_phases = FrameOf()  # a row per (rank, device, step, phase) of `nn.DataParallel`
    exposed = FrameOf()  # where communication is exposed, a row per stretch of time
    copies = FrameOf()  # between devices, a row per (rank, device, step)
    kernels = FrameOf()  # how long kernels run next to communication and alone
    steps_with_waits = FrameOf()  # `steps` with what each step waits and transfers
    exposed_parts = FrameOf()  # what exposed communication is: transfer, wait or other, by kind and late rank
    waits_caused = FrameOf()  # a row per (late rank, waiting rank)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.file_findings + self.job_findings

    @property
    def on_device(self) -> bool:
        """Whether devices were traced, else the CPU alone."""
        return any(one.on_device for one in self.summaries)

    @property
    def communication_known(self) -> bool:
        """Whether every trace shows what it must have communicated."""
        return all(one.communication_shown for one in self.summaries)

    @property
    def cut_short(self) -> list[str]:
        """The traces whose file ends too early, or cannot be read to its end."""
        return [summary.source for summary in self.summaries if summary.cut_short]

    @cached_property
    def ledger(self) -> Ledger | None:
        """Where a step of the job goes; None without a traced step."""
        steps = self.tables.steps_with_waits
        found = ledger_of(whole_steps(steps), self.tables.exposed_parts)
        if found is None:
            return None
        return replace(with_contention(found, self.contentions), left_out_steps=far_longer_count(steps))

    @cached_property
    def contentions(self) -> Contentions:
        """How much longer kernels run next to communication than free ones of the same class."""
        return contentions(self.tables.kernels)

    @property
    def world_size(self) -> int | None:
        """Ranks of the job; None where no trace records them."""
        sizes = (one.parallelism.world_size for one in self.summaries)
        return max((size for size in sizes if size is not None), default=None)

    @property
    def not_split(self) -> NotSplit | None:
        """Why communication is not split into transfer and waiting; None where it is, at least in part."""
        collectives, ranks = self.tables.collectives, [one.rank for one in self.summaries]
        if collectives.known("transfer_us").any():
            return None
        return why_not_split(ranks, self.world_size, collectives, self.file_findings)


JobAnalyses = dict[str, TraceAnalysis]


def analyze_traces(
    paths: Paths,
    limits: ReadLimits = DEFAULT_LIMITS,
    executor: Executor | None = None,
    progress: FileProgress | None = None,
) -> TraceAnalysis:
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
        name: analyze_job(join_ranks([ranks[place] for place in places]), found.of(name))
        for name, places in found.jobs.items()
    }


def analyze_job(
    job: RankTables,
    findings: Sequence[Finding],
    timelines: Callable[[Sequence[int]], Sequence[StepTimeline | None]] | None = None,
) -> TraceAnalysis:
    """The analysis of a job's ranks; `findings` are of the files, and go first.

    `timelines` gives the drawn steps of ranks by their places, once it is known which are drawn; default: the job's own.
    """
    analysis = _analysis(job, findings)
    tables, summaries = analysis.tables, analysis.summaries
    job_findings = (
        *idle_findings(tables.steps, communication_known=analysis.communication_known),
        *uneven_steps(tables.steps),
        *far_longer_steps(lambda: tables.steps_with_waits, tables.steps),
        *parallelism_finding([one.parallelism for one in summaries], tables.collectives),
    )
    ranks = [one.rank for one in summaries]
    many = len(ranks) > MOST_TO_DRAW  # else no rank is chosen by its waits, which take time to compute
    chosen = drawn_ranks(ranks, tables.steps_with_waits, tables.waits_caused) if many else range(len(ranks))
    drawn = [job.timelines[place] for place in chosen] if timelines is None else timelines(chosen)
    return replace(analysis, job_findings=job_findings, timelines=tuple(one for one in drawn if one is not None))


def analyze_kept(files: Sequence[Path]) -> TraceAnalysis:
    """As `analyze_traces` of a run's own files, whose tables are kept; without findings of the job, which a run's cells have."""
    from dpscope.analysis.traces.ranks.kept_tables import read_files_once

    found: list[RankTables] = []
    for outcome in read_files_once(files):
        if isinstance(outcome, DpscopeError):
            raise outcome
        found += outcome
    job = join_ranks(found)
    return replace(_analysis(job, ()), timelines=tuple(one for one in job.timelines if one is not None))


def _analysis(job: RankTables, findings: Sequence[Finding]) -> TraceAnalysis:
    """The ranks' collectives matched; without findings of the job."""
    windows = windows_of(job.summaries)  # a process may have been traced several times
    origins = [RankOrigin(one.rank if one.rank is not None else -1, one.zero_ns, one.host) for one in job.summaries]
    matched = match_windows(job.collectives, job.collective_owner, windows, origins)
    return TraceAnalysis(
        tables=TraceTables(**{name: getattr(job, name) for name in TABLES} | {"collectives": matched.table}),
        summaries=job.summaries,
        file_findings=(*findings, *job.findings, *matched.findings),
        job_findings=(),
    )


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
    for parent, _, names in os.walk(folder, onerror=lambda error: found.append(Path(error.filename))):
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
