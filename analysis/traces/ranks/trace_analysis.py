"""From the trace files of one job to its tables: steps, collectives, findings. What the command line calls."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from dpscope.analysis.traces.ranks.decisive import decisive_findings, step_cost
from dpscope.analysis.traces.ranks.idle_findings import idle_findings
from dpscope.analysis.traces.ranks.kept_tables import read_files_once
from dpscope.analysis.traces.ranks.matching import MatchedCollectives, match_ranks
from dpscope.analysis.traces.ranks.parallelism import parallelism_finding
from dpscope.analysis.traces.ranks.process_pool import FileProgress, read_files
from dpscope.analysis.traces.ranks.rank_tables import RankTables, TraceSummary
from dpscope.analysis.traces.ranks.step_waits import step_waits
from dpscope.analysis.traces.ranks.unknown_groups import RankOrigin
from dpscope.analysis.traces.reading.chunks import DEFAULT_MAX_BYTES
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import natural_order

Paths = str | Path | Sequence[str | Path] | Sequence[Path]

_TRACE_NAME = re.compile(r"\.json(\.gz)?$")


@dataclass(frozen=True)
class TraceAnalysis:
    """The tables of all ranks, in the order of ranks, and what there is to say about them.

    `steps`: step_breakdown's columns; `collectives`: matched rows; `dp_phases`: empty for a job that is none of
    `nn.DataParallel`; `exposed`: where communication is exposed, exposed_stretches' columns. All keyed by (rank, device, step).
    """

    steps: pd.DataFrame
    collectives: pd.DataFrame
    dp_phases: pd.DataFrame
    exposed: pd.DataFrame
    summaries: tuple[TraceSummary, ...]
    file_findings: tuple[Finding, ...]  # of what each file shows and lacks, and whether the files fit together
    job_findings: tuple[Finding, ...]  # of what the job's steps are spent on

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All there is to say."""
        return self.file_findings + self.job_findings

    @property
    def cut_short(self) -> list[str]:
        """The traces whose file ends too early, or cannot be read to its end."""
        return [summary.source for summary in self.summaries if summary.cut_short]

    @cached_property
    def steps_with_waits(self) -> pd.DataFrame:
        """`steps` with each row's transfer_us, wait_us and exposed_wait_us; a step without matched collectives has none."""
        waits = step_waits(self.collectives, self.exposed)
        return self.steps.merge(waits, on=["rank", "device", "step"], how="left")


def analyze_traces(
    paths: Paths,
    max_bytes: int = DEFAULT_MAX_BYTES,
    executor: Executor | None = None,
    progress: FileProgress | None = None,
) -> TraceAnalysis:
    """Read the traces of one job, a file per process or several ranks in one; a path or several, of files and folders.

    Large files are read in parallel by processes of this machine, or by `executor` (its workers must see the same paths);
    `progress` is called with (files done, files in all). Raises DpscopeError when none can be read, or one that was named
    and not found in a folder.
    """
    files, findings = find_traces(paths)
    named = {path for path in as_paths(paths) if not path.is_dir()}
    ranks: list[RankTables] = []
    for file, outcome in zip(files, read_files(files, max_bytes, executor, progress), strict=True):
        if not isinstance(outcome, DpscopeError):
            ranks += outcome
        elif file in named:
            raise outcome
        else:
            findings.append(_not_read(str(outcome)))
    if not ranks:
        raise DpscopeError(f"no trace could be read: {findings[0].message}; name torch.profiler traces")
    analysis = _analysis(ranks, findings)
    return replace(analysis, job_findings=_job_findings(analysis))


def analyze_kept(files: Sequence[Path], place_of: Callable[[Path], Path]) -> TraceAnalysis:
    """As `analyze_traces` of a run's own files, whose tables are kept at `place_of` each, so that none is read twice.

    Without findings of the job: a run says these of its cells.
    """
    ranks: list[RankTables] = []
    for outcome in read_files_once(files, place_of, DEFAULT_MAX_BYTES):
        if isinstance(outcome, DpscopeError):
            raise outcome
        ranks += outcome
    return _analysis(ranks, [])


def _analysis(ranks: list[RankTables], findings: list[Finding]) -> TraceAnalysis:
    """The ranks' tables as one; `findings` are of the files, and go first."""
    ranks.sort(key=lambda one: (one.summary.rank is None, one.summary.rank))
    summaries = [one.summary for one in ranks]
    origins = [RankOrigin(one.rank if one.rank is not None else -1, one.zero_ns, one.host) for one in summaries]
    matched = match_unique_ranks([one.collectives for one in ranks], [one.rank for one in summaries], origins)
    findings += [finding for one in ranks for finding in one.findings]
    steps = pd.concat([one.steps for one in ranks], ignore_index=True)
    findings += matched.findings
    exposed = _joined([one.exposed for one in ranks])
    return TraceAnalysis(
        steps=steps,
        collectives=matched.table,
        dp_phases=_joined([one.dp_phases for one in ranks]),
        exposed=exposed,
        summaries=tuple(summaries),
        file_findings=tuple(findings),
        job_findings=(),
    )


def _job_findings(found: TraceAnalysis) -> tuple[Finding, ...]:
    cost = step_cost(found.steps, found.collectives, found.exposed)
    return (
        *idle_findings(found.steps),
        *decisive_findings(cost, several_ranks=len(found.summaries) > 1),
        *parallelism_finding([one.parallelism for one in found.summaries], found.collectives),
    )


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)


def as_paths(paths: Paths) -> list[Path]:
    """One path or several, as Path."""
    return [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def find_traces(paths: Paths) -> tuple[list[Path], list[Finding]]:
    """Trace files among the paths: files as named, folders searched for `*.json` and `*.json.gz`.

    Raises DpscopeError when a path does not exist or a folder holds none.
    """
    found: list[Path] = []
    for path in as_paths(paths):
        if path.is_dir():
            named = (file for file in path.rglob("*") if _TRACE_NAME.search(file.name) and file.is_file())
            inside = sorted(named, key=natural_order)
            if not inside:
                raise DpscopeError(f"{path} holds no trace: no *.json or *.json.gz in it; name a folder with traces")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise DpscopeError(f"{path} does not exist; name trace files, a folder of them, or a run folder")
    return found, []


def _not_read(message: str) -> Finding:
    return TraceCode.FILE_NOT_READ.finding(message=message)


def match_unique_ranks(
    rank_tables: list[pd.DataFrame], ranks: Sequence[int | None], origins: Sequence[RankOrigin]
) -> MatchedCollectives:
    """Match the ranks; files that claim the same rank are of different jobs, and are not matched at all."""
    counts = Counter(ranks)
    twice = sorted(str(rank) for rank, count in counts.items() if count > 1)
    if not twice:
        return match_ranks(rank_tables, origins)
    apart = [match_ranks([table]) for table in rank_tables]
    finding = TraceCode.RANKS_NOT_UNIQUE.finding(
        message=f"several files are of rank {', '.join(twice)}: they are of different jobs, or do not tell their rank; "
        "their collectives were not matched"
    )
    return MatchedCollectives(pd.concat([part.table for part in apart], ignore_index=True), 0, (finding,))
