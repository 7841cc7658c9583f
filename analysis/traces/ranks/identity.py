"""What one process's trace records of its job: rank, world size, groups, host, process id, times, steps, content."""

import hashlib
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.traces.steps.attribution import Attribution

_SINCE_1970_NS = 10**18  # smaller times count from another moment, such as the host's start, and are not compared

Group = tuple[str, tuple[int, ...]]
"""A process group's name and its ranks."""


@dataclass(frozen=True)
class TraceIdentity:
    """None where the trace does not record it; `start_ns` and `end_ns` are those of its first and last event since 1970."""

    source: str
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    process_id: int | None = None
    groups: tuple[Group, ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    content: str | None = None  # digest of its events; None without events


def trace_identity(attribution: Attribution) -> TraceIdentity:
    """The identity of one trace whose events have been read."""
    start_ns = end_ns = content = None
    trace, events = attribution.trace, attribution.trace.events
    if len(events):
        start_ns = trace.zero_ns + round(float(events.start_us.min()) * 1e3)
        end_ns = trace.zero_ns + round(float(events.end_us.max()) * 1e3)
        digest = hashlib.blake2b(str(trace.zero_ns).encode(), digest_size=16)
        for column in (events.start_us, events.duration_us, events.category, events.name, events.thread):
            digest.update(np.ascontiguousarray(column).data)
        digest.update("\0".join(events.names).encode(errors="surrogatepass"))
        content = digest.hexdigest()
    dated = start_ns is not None and start_ns >= _SINCE_1970_NS
    numbers = [number for number in attribution.steps.numbers if number is not None]
    return TraceIdentity(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        host=trace.host,
        process_id=trace.process_id,
        groups=tuple((group.name, group.ranks) for group in trace.process_groups),
        start_ns=start_ns if dated else None,
        end_ns=end_ns if dated else None,
        first_step=min(numbers, default=None),
        last_step=max(numbers, default=None),
        content=content,
    )
