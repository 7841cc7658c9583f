"""A file of traces, of torch.profiler, which Kineto writes, or an export of Nsight Systems, to the
small tables of its ranks.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from dpscope.analysis.traces.ranks.parallelism import parallelism_evidence
from dpscope.analysis.traces.ranks.rank_tables import (
    RankRecord,
    RankTables,
    TraceSummary,
    join_ranks,
    of_rank,
)
from dpscope.analysis.traces.ranks.timeline import step_timeline, timeline_bytes
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.analysis.traces.reading.event_table import Trace
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.reading.traces import read_traces
from dpscope.analysis.traces.steps.attribution import Attribution, attribute
from dpscope.analysis.traces.steps.breakdown import reduction_ends_us, step_tables
from dpscope.analysis.traces.steps.collectives import collective_table, range_counts
from dpscope.analysis.traces.steps.data_parallel import (
    collective_kinds,
    dp_phase_table,
    peer_copies,
)
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, Kind
from dpscope.analysis.traces.steps.findings import attribution_findings, communication_lost
from dpscope.analysis.traces.steps.kernel_times import kernel_times
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError

_KEPT_FILES, _KEPT_BYTES = 32, 256 << 10  # of compressed traces: those of short runs
# smaller times count from another moment, such as the host's start, and are not compared
_SINCE_1970_NS = 10**18
_NOT_WHOLE = {TraceCode.TRACE_TOO_LARGE.code, TraceCode.TRACE_CUT_SHORT.code}


def trace_identity(attribution: Attribution) -> TraceSummary:
    """Which trace it is whose events have been read: of which process, job and time."""
    start_ns = end_ns = content = None
    trace, events = attribution.trace, attribution.trace.events
    if len(events):
        first_ns = trace.zero_ns + round(float(events.start_us.min()) * 1e3)
        if first_ns >= _SINCE_1970_NS:
            start_ns = first_ns
            end_ns = trace.zero_ns + round(float(events.end_us.max()) * 1e3)
        digest = hashlib.blake2b(str(trace.zero_ns).encode(), digest_size=16)
        for column in (
            events.start_us,
            events.duration_us,
            events.category,
            events.name,
            events.thread,
        ):
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
        start_ns=start_ns,
        end_ns=end_ns,
        first_step=min(numbers, default=None),
        last_step=max(numbers, default=None),
        content=content,
    )


def read_attributed(path: Path, limits: ReadLimits) -> Iterable[Attribution]:
    """The traces in a file with their events attributed; raises DpscopeError as `read_traces` does.

    Those of small files are kept in this process: a replay needs the same traces after their tables
    have been made. Of large ones each is read when it is its turn.
    """
    try:
        status = path.stat()
    except OSError:
        status = None  # which reading it reports
    if status is None or status.st_size > _KEPT_BYTES:
        return map(attribute, read_traces(path, limits))
    return _attributed(path, limits, (status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=_KEPT_FILES)
def _attributed(
    path: Path, limits: ReadLimits, written: tuple[int, int] = (0, 0)
) -> Sequence[Attribution]:
    return list(map(attribute, read_traces(path, limits)))


def named_collectives(attribution: Attribution) -> Table:
    """`collective_table`, DataParallel's named by their phases where nothing else names them."""
    return collective_table(attribution, collective_kinds(attribution))


def _why_empty(trace: Trace) -> str:
    for finding in trace.findings:
        if finding.code in _NOT_WHOLE:
            return f"{finding.message}; {finding.next_step}"
    return (
        "trace while steps run; the training may have ended before the profiler's schedule "
        "reached its active steps"
    )


def rank_tables(attribution: Attribution) -> RankTables:
    """The tables of one rank; raises DpscopeError for a trace without an event."""
    trace = attribution.trace
    if not len(trace.events) and not trace.unread:
        raise DpscopeError(f"{trace.source} holds no event with a duration: {_why_empty(trace)}")
    steps, exposed = step_tables(attribution)
    idle_device = (
        attribution.on_device and not attribution.rows(Kind.COMPUTE, *COMMUNICATION_KINDS).any()
    )
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
        format=trace.format,
        environment=trace.environment,
    )
    record = RankRecord(
        summary,
        findings=(*trace.findings, *attribution_findings(attribution)),
        timeline=timeline_bytes(step_timeline(attribution)),
    )
    return of_rank(
        record,
        steps=steps,
        collectives=named_collectives(attribution),
        dp_phases=dp_phase_table(attribution),
        exposed=exposed,
        copies=peer_copies(attribution),
        kernels=kernel_times(attribution),
    )


def read(path: Path, limits: ReadLimits) -> RankTables:
    """The tables of the ranks in a file; raises DpscopeError as `read_traces` does."""
    return join_ranks([rank_tables(rank) for rank in read_attributed(path, limits)])
