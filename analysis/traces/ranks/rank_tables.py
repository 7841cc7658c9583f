"""One trace file to the small tables of its ranks, what a worker process sends back; the tables of all ranks of a job."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from dpscope.analysis.traces.data_parallel import phases
from dpscope.analysis.traces.data_parallel.phases import collective_kinds, dp_phase_table, peer_copies
from dpscope.analysis.traces.ranks.parallelism import ParallelismEvidence, parallelism_evidence
from dpscope.analysis.traces.ranks.timeline import StepTimeline, step_timeline, timeline_bytes, timeline_of
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.analysis.traces.reading.event_table import IntColumn
from dpscope.analysis.traces.reading.reader import read_traces
from dpscope.analysis.traces.reading.table import Table, joined
from dpscope.analysis.traces.steps import breakdown, collectives, kernel_times
from dpscope.analysis.traces.steps.attribution import Attribution, attribute
from dpscope.analysis.traces.steps.breakdown import reduction_ends_us, step_tables
from dpscope.analysis.traces.steps.collectives import collective_table, range_counts
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, Kind
from dpscope.analysis.traces.steps.findings import attribution_findings, communication_lost
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.quantities import Count, Stamp

_KEPT_FILES, _KEPT_BYTES = 32, 256 << 10  # of compressed traces: those of short runs
_SINCE_1970_NS = 10**18  # smaller times count from another moment, such as the host's start, and are not compared

Group = tuple[str, tuple[int, ...]]
"""A process group's name and its ranks."""


@dataclass(frozen=True)
class TraceSummary:
    """What one process's trace shows besides its tables; None where it does not record it.

    `start_ns` and `end_ns` are those of its first and last event since 1970.
    """

    source: str
    rank: Count | None = None
    world_size: Count | None = None
    host: str | None = None
    process_id: Count | None = None
    groups: tuple[Group, ...] = ()
    start_ns: Stamp | None = None
    end_ns: Stamp | None = None
    first_step: Count | None = None
    last_step: Count | None = None
    content: str | None = None  # digest of its events; None without events
    on_device: bool = False
    range_counts: dict[str, dict[Count | None, Count]] = field(default_factory=dict)
    """Of dpscope's own ranges: name -> step -> how many."""
    parallelism: ParallelismEvidence = field(default_factory=ParallelismEvidence)
    # False: it must have communicated, or computed on devices, and nothing of it is there.
    communication_shown: bool = True
    # Step -> when DDP had copied the last gradient out of its bucket, each time that it reduced.
    reduction_ends_us: dict[int | None, list[float]] = field(default_factory=dict)
    zero_ns: int = 0  # the trace's clock, as in `Trace`
    read_on: str | None = None  # the host that reduced the trace where it lay
    cut_short: bool = False  # the trace's file ends too early, or cannot be read to its end
    device_name: str | None = None  # of the first device that the trace lists


def trace_identity(attribution: Attribution) -> TraceSummary:
    """Which trace it is whose events have been read: of which process, job and time."""
    start_ns = end_ns = content = None
    trace, events = attribution.trace, attribution.trace.events
    if len(events):
        start_ns = trace.zero_ns + round(float(events.start_us.min()) * 1e3)
        if start_ns >= _SINCE_1970_NS:
            end_ns = trace.zero_ns + round(float(events.end_us.max()) * 1e3)
        digest = hashlib.blake2b(str(trace.zero_ns).encode(), digest_size=16)
        for column in (events.start_us, events.duration_us, events.category, events.name, events.thread):
            digest.update(np.ascontiguousarray(column).data)
        digest.update("\0".join(events.names).encode(errors="surrogatepass"))
        content = digest.hexdigest()
    numbers = [number for number in attribution.steps.numbers if number is not None]
    return TraceSummary(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        host=trace.host,
        process_id=trace.process_id,
        groups=tuple((group.name, group.ranks) for group in trace.process_groups),
        start_ns=start_ns if end_ns is not None else None,
        end_ns=end_ns,
        first_step=min(numbers, default=None),
        last_step=max(numbers, default=None),
        content=content,
    )


COLUMNS: dict[str, tuple[str, ...]] = {
    "steps": breakdown.COLUMNS,
    "collectives": collectives.COLUMNS,
    "dp_phases": phases.COLUMNS,
    "exposed": breakdown.EXPOSED_COLUMNS,
    "copies": phases.COPY_COLUMNS,
    "kernels": kernel_times.COLUMNS,
}
"""The tables of a rank and their columns, as its trace gives them and as files keep them."""


@dataclass(frozen=True)
class RankTables:
    """What the trace of one rank shows, or those of several ranks, their rows one below the other in the order of `summaries`.

    Tables are keyed by (rank, device, step); unknown values are missing.
    """

    steps: Table  # step_tables
    collectives: Table  # collective_table
    dp_phases: Table  # dp_phase_table; empty for a job that is none of `nn.DataParallel`
    exposed: Table  # step_tables
    copies: Table  # peer_copies
    kernels: Table  # kernel_times
    summaries: tuple[TraceSummary, ...]
    findings: tuple[Finding, ...]
    collective_owner: IntColumn  # the summary that each collective is of
    timelines: tuple[StepTimeline | None, ...]  # of each, one whole step to draw; empty where they are not at hand


def rank_order(ranks: Sequence[int | None], sources: Sequence[str]) -> list[int]:
    """Places of traces by rank, unknown ranks last; those of the same rank by their source."""
    return sorted(
        range(len(ranks)),
        key=lambda one: (ranks[one] is None, ranks[one] or 0, sources[one]),
    )


def join_ranks(ranks: Sequence[RankTables]) -> RankTables:
    """Tables of one rank each, joined by `rank_order`."""
    summaries = [one.summaries[0] for one in ranks]
    order = rank_order([one.rank for one in summaries], [one.source for one in summaries])
    ranks = [ranks[place] for place in order]
    return RankTables(
        **{name: joined([getattr(one, name) for one in ranks]) for name in COLUMNS},
        summaries=tuple(summaries[place] for place in order),
        findings=tuple(finding for one in ranks for finding in one.findings),
        collective_owner=np.repeat(np.arange(len(ranks)), [len(one.collectives) for one in ranks]),
        timelines=tuple(one.timelines[0] for one in ranks),
    )


def read_attributed(path: Path, limits: ReadLimits) -> Sequence[Attribution]:
    """The traces of every rank in a file with their events attributed; raises DpscopeError as `read_traces` does.

    Those of small files are kept in this process: a replay needs the same traces after their tables have been made.
    """
    try:
        status = path.stat()
    except OSError:
        status = None  # which reading it reports
    if status is None or status.st_size > _KEPT_BYTES:
        return _attributed.__wrapped__(path, limits)
    return _attributed(path, limits, (status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=_KEPT_FILES)
def _attributed(path: Path, limits: ReadLimits, written: tuple[int, int] = (0, 0)) -> Sequence[Attribution]:
    return [attribute(trace) for trace in read_traces(path, limits)]


def named_collectives(attribution: Attribution) -> Table:
    """`collective_table`, DataParallel's named by their phases where nothing else names them."""
    return collective_table(attribution, collective_kinds(attribution))


def rank_tables(attribution: Attribution) -> RankTables:
    """The tables of one rank."""
    trace, own = attribution.trace, named_collectives(attribution)
    steps, exposed = step_tables(attribution)
    idle_device = attribution.on_device and not attribution.rows(Kind.COMPUTE, *COMMUNICATION_KINDS).any()
    summary = replace(
        trace_identity(attribution),
        on_device=attribution.on_device,
        range_counts=range_counts(attribution),
        parallelism=parallelism_evidence(attribution),
        communication_shown=not idle_device and not communication_lost(attribution),
        reduction_ends_us=reduction_ends_us(attribution),
        zero_ns=trace.zero_ns,
        cut_short=trace.cut_short,
        device_name=next(iter(trace.device_names), None),
    )
    return RankTables(
        steps=steps,
        collectives=own,
        dp_phases=dp_phase_table(attribution),
        exposed=exposed,
        copies=peer_copies(attribution),
        kernels=kernel_times.kernel_times(attribution),
        summaries=(summary,),
        findings=(*trace.findings, *attribution_findings(attribution)),
        collective_owner=np.zeros(len(own), dtype=np.int64),
        timelines=(timeline_of(timeline_bytes(step_timeline(attribution))),),  # to the nanosecond, as it is stored
    )
