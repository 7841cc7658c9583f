"""One traced step of one rank as intervals to draw: compute, communication, copies, DataParallel's
phases.

The step is the middle one of those with a complete window, so that every rank of a job picks the
same. Times are microseconds after the trace's start. Small on purpose: it travels from the process
that reads the trace to the report.
"""

import zlib
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec
import numpy as np
from msgspec.structs import replace

from dpscope.analysis.traces.reading.event_table import BoolColumn, EventTable, IntColumn
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.breakdown import cpu_compute
from dpscope.analysis.traces.steps.data_parallel import PHASES, is_data_parallel, launch_phases
from dpscope.analysis.traces.steps.event_kind import (
    COMMUNICATION_KINDS,
    DEVICE_KINDS,
    Kind,
    named_annotations,
)
from dpscope.analysis.traces.steps.intervals import Intervals
from dpscope.profiling.records import range_names as phases
from dpscope.profiling.store.errors import DpscopeError

MOST_TO_DRAW = 32  # ranks: up to so many all are at hand, of which a page draws the first
_CHOSEN = 8
_LATE = 3  # that most waiting is for


def drawn_ranks(ranks: Sequence[int | None], caused: Table) -> list[int]:
    """Indices into `ranks`, in order: all, or of many those that most waiting is for, by
    `waits_by_pair`, and others spread over all.
    """
    if len(ranks) <= MOST_TO_DRAW:
        return list(range(len(ranks)))
    late = caused.group("late_rank", in_order=True)
    latest = late.first[np.argsort(-late.sums(caused["wait_us"]), kind="stable")]
    place = {rank: index for index, rank in enumerate(ranks)}
    chosen = [place[rank] for rank in caused["late_rank"][latest[:_LATE]].tolist()]
    spread = np.linspace(len(ranks) - 1, 0, _CHOSEN).astype(int).tolist()
    return sorted(list(dict.fromkeys([*chosen, *spread]))[:_CHOSEN])


MOST_INTERVALS = 600  # of one kind on one device
MOST_NAMED = 40  # compute events that are drawn with their names, the longest
MOST_COPIES = 200
MOST_PHASE_MARKS = 40  # of one phase on one device
_LONGEST_NAME = 120


Window = tuple[float, float]
Spans = tuple[Window, ...]  # start and end, disjoint and in order


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of time with a name (as the trace has it: untrusted), and bytes where it moves
    some.
    """

    start_us: float
    end_us: float
    name: str
    bytes: int | None = None


class DeviceTimeline(msgspec.Struct, frozen=True, array_like=True):
    """What one device did in the step; `device` is None on a CPU timeline.

    `compute`, `communication` and `exposed` (communication without compute) are unions inside the
    step's window, at most MOST_INTERVALS each: gaps up to `closed_gap_us` are drawn as if they were
    filled. `dp_phases` has stretches with the index of their replica, None on a device.
    """

    device: int | None
    compute: Spans
    communication: Spans
    exposed: Spans
    closed_gap_us: float
    named: tuple[Mark, ...] = ()
    copies: tuple[Mark, ...] = ()  # between devices
    host_copies: tuple[Mark, ...] = ()
    dp_phases: tuple[tuple[int | None, Mark], ...] = ()


class StepTimeline(msgspec.Struct, frozen=True, array_like=True):
    """One step of one rank; `ranges` are dpscope's own on the host; `zero_ns` and `host` are of its
    clock, as in `Trace`.
    """

    rank: int | None
    zero_ns: int
    host: str | None
    step: int | None
    start_us: float
    end_us: float
    devices: tuple[DeviceTimeline, ...]
    ranges: tuple[Mark, ...] = ()


def step_timeline(attribution: Attribution) -> StepTimeline | None:
    """The middle whole step of a trace, or the middle one of those without a recorded start; None
    for a trace without steps.
    """
    if not len(attribution.events):
        return None
    events = attribution.events
    steps = attribution.steps
    if attribution.on_device:
        starts = attribution.windows.start_us
        ends = attribution.windows.end_us
        whole = attribution.windows.whole
    else:
        starts = np.maximum(steps.start_us, events.start_us.min())
        ends = np.minimum(steps.end_us, events.end_us.max())
        # in the last one of several the tracer was stopped
        whole = np.arange(len(steps)) < max(len(steps) - 1, 1)
    timed = ends > starts  # which no missing time is
    candidates = np.flatnonzero(timed & whole)
    if not len(candidates):
        candidates = np.flatnonzero(timed)
    if not len(candidates):
        return None
    index = int(candidates[len(candidates) // 2])
    window = (float(starts[index]), float(ends[index]))
    draw = _device_timelines if attribution.on_device else _cpu_timeline
    return StepTimeline(
        rank=attribution.trace.rank,
        zero_ns=attribution.trace.zero_ns,
        host=attribution.trace.host,
        step=attribution.steps.numbers[index],
        start_us=window[0],
        end_us=window[1],
        devices=tuple(draw(attribution, index, window)),
        ranges=tuple(_host_ranges(attribution, index, window)),
    )


def thinned(spans: Intervals, most: int) -> tuple[Intervals, float]:
    """At most `most` intervals, by closing the smallest gaps, and the largest gap that was closed
    (0.0: none).
    """
    if len(spans) <= most:
        return spans, 0.0
    starts, ends = spans.T
    gaps = starts[1:] - ends[:-1]
    closed_us = float(np.sort(gaps)[len(spans) - most - 1])
    return intervals.between_gaps(starts, ends, np.flatnonzero(gaps > closed_us)), closed_us


def _device_timelines(
    attribution: Attribution, index: int, window: Window
) -> Iterator[DeviceTimeline]:
    events = attribution.events
    launched = attribution.in_steps(*DEVICE_KINDS)
    phase = launch_phases(attribution) if is_data_parallel(attribution) else None
    for device in np.unique(events.device[launched]).tolist():
        of_device = launched & attribution.occupies(device)
        compute = of_device & attribution.rows(Kind.COMPUTE)
        communicates = of_device & attribution.rows(*COMMUNICATION_KINDS)
        host_copies = of_device & attribution.rows(Kind.HOST_COPY)
        # named where they are recorded
        copies = of_device & attribution.rows(Kind.PEER_COPY) & (events.device == device)
        computed = intervals.of_events(events, compute)
        moved = intervals.of_events(events, communicates)
        marks = () if phase is None else _phase_marks(events, of_device, phase, window)
        yield DeviceTimeline(
            device,
            *_unions(computed, moved, window),
            named=_longest(events, _within(events, compute, window), MOST_NAMED),
            copies=_longest(events, _within(events, copies, window), MOST_COPIES),
            host_copies=_longest(events, _within(events, host_copies, window), MOST_NAMED),
            dp_phases=tuple(marks),
        )


def _phase_marks(
    events: EventTable, of_device: BoolColumn, phase: IntColumn, window: Window
) -> Iterator[tuple[int | None, Mark]]:
    """Where the work of a device ran that was launched in each of DataParallel's phases."""
    for code, name in enumerate(PHASES):
        launched = intervals.of_events(events, of_device & (phase == code))
        in_phase = intervals.clip(launched, *window)
        for start, end in thinned(in_phase, MOST_PHASE_MARKS)[0].tolist():
            yield None, Mark(start, end, name)


def _cpu_timeline(attribution: Attribution, index: int, window: Window) -> Iterator[DeviceTimeline]:
    events = attribution.events
    in_step = attribution.step == index
    moved = intervals.of_events(
        events, in_step & attribution.rows(Kind.COLLECTIVE, Kind.HOST_RANGE)
    )
    operators = _within(events, attribution.rows(Kind.COMPUTE), window)
    replicas: list[tuple[int | None, Mark]] = []
    ranges = in_step & named_annotations(events, f"{phases.PREFIX}dp_")
    for row in np.flatnonzero(ranges).tolist():
        base, _, replica = events.name_of(row).partition("#")
        if base in phases.DP_PHASES:
            mark = _mark(events, row, base.removeprefix(f"{phases.PREFIX}dp_"))
            replicas.append((int(replica) if replica.isdigit() else None, mark))
    yield DeviceTimeline(
        None,
        *_unions(cpu_compute(attribution), moved, window),
        named=_longest(events, events.outermost(operators), MOST_NAMED),
        dp_phases=tuple(replicas),
    )


def _mark(events: EventTable, row: int, name: str, size: int | None = None) -> Mark:
    return Mark(float(events.start_us[row]), float(events.end_us[row]), name, size)


def _unions(
    compute: Intervals, moved: Intervals, window: Window
) -> tuple[Spans, Spans, Spans, float]:
    """What a device computed, communicated and exposed in the window, and the largest gap that was
    closed for drawing it.
    """
    compute = intervals.clip(compute, *window)
    moved = intervals.clip(moved, *window)
    exposed = intervals.difference(moved, compute)
    return _drawn([compute, moved, exposed], MOST_INTERVALS)


def _drawn(unions: Sequence[Intervals], most: int) -> tuple[Spans, Spans, Spans, float]:
    """At most so many intervals of each of three unions, and the largest gap that was closed for
    it.
    """
    drawn: list[Spans] = []
    closed_us = 0.0
    for union in unions:
        spans, gap_us = thinned(union, most)
        drawn.append(tuple((start, end) for start, end in spans.tolist()))
        closed_us = max(closed_us, gap_us)
    compute, communication, exposed = drawn
    return compute, communication, exposed, closed_us


def coarser(device: DeviceTimeline, most_spans: int, most_named: int) -> DeviceTimeline:
    """The same with fewer intervals of each kind and fewer named events, the longest ones."""
    unions = [
        np.array(spans).reshape(-1, 2)
        for spans in (device.compute, device.communication, device.exposed)
    ]
    compute, communication, exposed, gap_us = _drawn(unions, most_spans)
    longest = sorted(device.named, key=lambda mark: mark.start_us - mark.end_us)[:most_named]
    return replace(
        device,
        compute=compute,
        communication=communication,
        exposed=exposed,
        closed_gap_us=max(device.closed_gap_us, gap_us),
        named=tuple(sorted(longest, key=lambda mark: mark.start_us)),
    )


def _within(events: EventTable, rows: BoolColumn, window: Window) -> IntColumn:
    """Those of the marked rows that run in the window."""
    return np.flatnonzero(rows & (events.start_us < window[1]) & (events.end_us > window[0]))


def _longest(events: EventTable, rows: IntColumn, most: int) -> tuple[Mark, ...]:
    longest = rows[np.argsort(-events.duration_us[rows], kind="stable")[:most]]
    marks = []
    for row in sorted(longest.tolist()):
        name = events.name_of(row)
        size = int(events.bytes[row])
        if len(name) > _LONGEST_NAME:
            name = f"{name[: _LONGEST_NAME - 1]}…"
        marks.append(_mark(events, row, name, size if size >= 0 else None))
    return tuple(marks)


def _host_ranges(attribution: Attribution, index: int, window: Window) -> Iterator[Mark]:
    """The step's own ranges on the CPU side; on a device's timeline they show when work was
    launched, not when it ran.
    """
    events, steps = attribution.events, attribution.steps
    ranges = named_annotations(events, phases.PREFIX)
    if attribution.on_device:
        start_us = events.start_us
        ranges &= (start_us >= steps.start_us[index]) & (start_us < steps.end_us[index])
        rows = np.flatnonzero(ranges)
    else:
        rows = _within(events, ranges & (attribution.step == index), window)
    for row in rows.tolist():
        name = events.name_of(row)
        if name in phases.STEP_PHASES:
            yield _mark(events, row, name.removeprefix(phases.PREFIX))


_decoder = cache(lambda: msgspec.msgpack.Decoder(StepTimeline))


def timeline_bytes(timeline: StepTimeline | None) -> bytes:
    """A timeline as msgpack, compressed, since a job may have thousands; nothing for none."""
    return b"" if timeline is None else zlib.compress(msgspec.msgpack.encode(timeline))


def timeline_of(content: bytes) -> StepTimeline | None:
    """The timeline that `timeline_bytes` was given. Raises DpscopeError where it was damaged
    since.
    """
    if not content:
        return None
    try:
        return _decoder().decode(zlib.decompress(content))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise DpscopeError(
            "the step to draw that is stored with a rank is damaged; reduce its traces again"
        ) from error
