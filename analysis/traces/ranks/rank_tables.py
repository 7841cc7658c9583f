"""One trace file to the small tables of its ranks: what a worker process sends back."""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from dpscope.analysis.traces.data_parallel.peer_copies import peer_copies
from dpscope.analysis.traces.data_parallel.phases import collective_kinds, dp_phases
from dpscope.analysis.traces.ranks.identity import TraceIdentity, trace_identity
from dpscope.analysis.traces.ranks.parallelism import ParallelismEvidence, parallelism_evidence
from dpscope.analysis.traces.ranks.timeline import StepTimeline, step_timeline
from dpscope.analysis.traces.reading.event_table import Trace
from dpscope.analysis.traces.reading.limits import ReadLimits
from dpscope.analysis.traces.reading.reader import read_traces
from dpscope.analysis.traces.steps.attribution import Attribution, attribute
from dpscope.analysis.traces.steps.breakdown import reduction_ends_us, step_breakdown
from dpscope.analysis.traces.steps.collectives import collectives, range_counts
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, Kind
from dpscope.analysis.traces.steps.exposed import exposed_stretches
from dpscope.analysis.traces.steps.findings import attribution_findings, communication_lost
from dpscope.analysis.traces.steps.kernel_times import kernel_times
from dpscope.profiling.records.finding import Finding


@dataclass(frozen=True)
class TraceSummary:
    """What one process's trace said, beside its tables."""

    source: str
    rank: int | None
    on_device: bool
    range_counts: dict[str, dict[int | None, int]]  # dpscope's own ranges: name -> step -> how many
    parallelism: ParallelismEvidence
    communication_shown: bool = (
        True  # False: it must have communicated, or computed on devices, and nothing of it is there
    )
    reduction_ends_us: dict[int | None, list[float]] = field(
        default_factory=dict
    )  # step -> when DDP had copied the last gradient out of its bucket, each time that it reduced
    zero_ns: int = 0  # the trace's clock, as `Trace` tells it
    host: str | None = None
    read_on: str | None = None  # the host that reduced the trace where it lay
    cut_short: bool = False  # the trace's file ends too early, or cannot be read to its end
    identity: TraceIdentity = field(default_factory=lambda: TraceIdentity(""))


@dataclass(frozen=True)
class RankTables:
    """One rank's tables, each as the function of its name gives it."""

    steps: pd.DataFrame
    collectives: pd.DataFrame
    dp_phases: pd.DataFrame
    exposed: pd.DataFrame  # exposed_stretches
    copies: pd.DataFrame  # peer_copies
    kernels: pd.DataFrame  # kernel_times
    summary: TraceSummary
    findings: tuple[Finding, ...]
    timeline: StepTimeline | None = None  # one whole step to draw


def read_rank_tables(path: Path, limits: ReadLimits) -> list[RankTables]:
    """The tables of every rank in a file; raises DpscopeError as `read_traces` does."""
    return [rank_tables(trace) for trace in read_traces(path, limits)]


def named_collectives(attribution: Attribution) -> pd.DataFrame:
    """`collectives`, DataParallel's named by their phases where nothing else names them."""
    return collectives(attribution, collective_kinds(attribution))


def rank_tables(trace: Trace) -> RankTables:
    """The tables of one trace."""
    attribution = attribute(trace)
    return RankTables(
        steps=step_breakdown(attribution),
        collectives=named_collectives(attribution),
        dp_phases=dp_phases(attribution),
        exposed=exposed_stretches(attribution),
        copies=peer_copies(attribution),
        kernels=kernel_times(attribution),
        summary=_summary(attribution),
        findings=(*trace.findings, *attribution_findings(attribution)),
        timeline=step_timeline(attribution),
    )


def _summary(attribution: Attribution) -> TraceSummary:
    return TraceSummary(
        source=attribution.trace.source,
        rank=attribution.trace.rank,
        on_device=attribution.on_device,
        range_counts=range_counts(attribution),
        parallelism=parallelism_evidence(attribution),
        communication_shown=_communication_shown(attribution),
        reduction_ends_us=reduction_ends_us(attribution),
        zero_ns=attribution.trace.zero_ns,
        host=attribution.trace.host,
        cut_short=attribution.trace.cut_short,
        identity=trace_identity(attribution),
    )


def _communication_shown(attribution: Attribution) -> bool:
    idle_device = attribution.on_device and not attribution.rows(Kind.COMPUTE, *COMMUNICATION_KINDS).any()
    return not idle_device and not communication_lost(attribution)
