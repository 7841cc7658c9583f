"""From the trace files of one job to its tables: steps, collectives, findings. What the command line calls."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dpscope.analysis.attribution import Attribution, attribute, attribution_findings
from dpscope.analysis.collectives import collectives
from dpscope.analysis.expected_traffic import peer_copies, range_counts
from dpscope.analysis.rank_matching import MatchedCollectives, match_ranks
from dpscope.analysis.step_breakdown import step_breakdown
from dpscope.analysis.trace_chunks import DEFAULT_MAX_BYTES
from dpscope.analysis.trace_reader import read_trace
from dpscope.profiling.run_store import DpscopeError
from dpscope.profiling.run_types import Finding

_TRACE_NAME = re.compile(r"\.json(\.gz)?$")


@dataclass(frozen=True)
class TraceSummary:
    """What one file said, beside its tables."""

    source: str
    rank: int | None
    on_device: bool
    range_counts: dict[str, dict[int | None, int]]  # dpscope's own ranges: name -> step -> how many
    copy_bytes: pd.DataFrame  # peer copies: device, step, bytes, count


@dataclass(frozen=True)
class TraceAnalysis:
    """`steps`: step_breakdown's columns, all ranks; `collectives`: matched rows; both keyed by (rank, device, step)."""

    steps: pd.DataFrame
    collectives: pd.DataFrame
    summaries: tuple[TraceSummary, ...]
    findings: tuple[Finding, ...]


def analyze_traces(paths: Sequence[Path], max_bytes: int = DEFAULT_MAX_BYTES) -> TraceAnalysis:
    """Read the traces of one job, a file per process. Raises DpscopeError when none can be read."""
    files, findings = find_traces(paths)
    named = {path for path in paths if not path.is_dir()}
    steps: list[pd.DataFrame] = []
    rank_tables: list[pd.DataFrame] = []
    summaries: list[TraceSummary] = []
    for file in files:
        try:
            attribution = attribute(read_trace(file, max_bytes))
        except DpscopeError as error:
            if file in named:
                raise
            findings.append(_not_read(str(error)))
            continue
        findings += [*attribution.trace.findings, *attribution_findings(attribution)]
        steps.append(step_breakdown(attribution))
        rank_tables.append(collectives(attribution))
        summaries.append(_summary(attribution))
    if not steps:
        raise DpscopeError(f"no trace could be read: {findings[0].message}; name torch.profiler traces")
    matched = _match(rank_tables, summaries)
    return TraceAnalysis(
        steps=pd.concat(steps, ignore_index=True),
        collectives=matched.table,
        summaries=tuple(summaries),
        findings=(*findings, *matched.findings),
    )


def find_traces(paths: Sequence[Path]) -> tuple[list[Path], list[Finding]]:
    """Trace files among the paths: files as named, folders searched for `*.json` and `*.json.gz`.

    Raises DpscopeError when a path does not exist or a folder holds none.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if _TRACE_NAME.search(file.name) and file.is_file())
            if not inside:
                raise DpscopeError(f"{path} holds no trace: no *.json or *.json.gz in it; name a folder with traces")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise DpscopeError(f"{path} does not exist; name trace files, a folder of them, or a run folder")
    return found, []


def _not_read(message: str) -> Finding:
    return Finding(
        severity="warning",
        code="file_not_read",
        message=message,
        next_step="move files that are no traces out of the folder, or name the traces one by one",
    )


def _match(rank_tables: list[pd.DataFrame], summaries: list[TraceSummary]) -> MatchedCollectives:
    """Match the ranks; files that claim the same rank are of different jobs, and are not matched at all."""
    counts = Counter(summary.rank for summary in summaries)
    twice = sorted(str(rank) for rank, count in counts.items() if count > 1)
    if not twice:
        return match_ranks(rank_tables)
    apart = [match_ranks([table]) for table in rank_tables]
    finding = Finding(
        severity="warning",
        code="ranks_not_unique",
        message=f"several files are of rank {', '.join(twice)}: they are of different jobs, or do not tell their rank; "
        "their collectives were not matched",
        next_step="name the traces of one job, as <node>_<rank>.pt.trace.json.gz where the files do not tell the rank",
    )
    return MatchedCollectives(pd.concat([part.table for part in apart], ignore_index=True), 0, (finding,))


def _summary(attribution: Attribution) -> TraceSummary:
    return TraceSummary(
        source=attribution.trace.source,
        rank=attribution.trace.rank,
        on_device=attribution.on_device,
        range_counts=range_counts(attribution),
        copy_bytes=peer_copies(attribution),
    )
