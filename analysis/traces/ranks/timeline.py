"""One traced step of one rank as intervals to draw: compute, communication, copies, DataParallel's phases.

The step is the middle one of those with a complete window, so that every rank of a job picks the same. Times are
microseconds after the trace's start. Small on purpose: it travels from the process that reads the trace to the report.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from dpscope.analysis.traces.data_parallel.launches import PHASES, launch_phases
from dpscope.analysis.traces.data_parallel.phases import is_data_parallel
from dpscope.analysis.traces.reading.event_table import BoolColumn, EventTable, IntColumn
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.breakdown import cpu_compute
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, DEVICE_KINDS, Kind, named_annotations
from dpscope.analysis.traces.steps.intervals import Intervals
from dpscope.profiling.records import range_names as phases

MOST_TO_DRAW = 32  # ranks: up to so many all are at hand, of which a page draws the first
_CHOSEN = 8
_LATE = 3  # that most waiting is for


def drawn_ranks(ranks: Sequence[int | None], steps: Table, caused: Table) -> list[int]:
    """Indices into `ranks`, in order: all, or of many the first, the last, the latest, who waits most and least, the middle.

    `steps` are those of `with_waits`, `caused` that of `waits_by_pair`. What is left of _CHOSEN is spread over all ranks.
    """
    if len(ranks) <= MOST_TO_DRAW:
        return list(range(len(ranks)))
    late, own = _by_wait(caused, "late_rank"), _by_wait(steps, "rank")[::-1]
    chosen = [ranks[0], *late[:_LATE]]
    if len(own):
        chosen += [own[-1], own[len(own) // 2], own[0]]
    place = {rank: index for index, rank in enumerate(ranks)}
    wanted = [place[rank] for rank in chosen if rank in place]
    spread = np.linspace(len(ranks) - 1, 0, _CHOSEN).astype(int).tolist()
    return sorted(list(dict.fromkeys([*wanted, *spread]))[:_CHOSEN])


def _by_wait(table: Table, rank: str) -> list[int]:
    """Known ranks by the mean of `wait_us` over their rows, the largest first."""
    known = table.take(table.known("wait_us") & table.known(rank))
    ranks = known.group(rank, in_order=True)
    order = np.argsort(-ranks.means(known["wait_us"]), kind="stable")
    found: list[int] = known[rank][ranks.first[order]].tolist()
    return found


MOST_INTERVALS = 600  # of one kind on one device
MOST_NAMED = 40  # compute events that are drawn with their names, the longest
MOST_COPIES = 200
MOST_PHASE_MARKS = 40  # of one phase on one device
_LONGEST_NAME = 120


Spans = tuple[tuple[float, float], ...]  # start and end, disjoint and in order


@dataclass(frozen=True)
class Mark:
    """A stretch of time with a name (as the trace has it: untrusted), and bytes where it moves some."""

    start_us: float
    end_us: float
    name: str
    bytes: int | None = None


@dataclass(frozen=True)
class DeviceTimeline:
    """What one device did in the step; `device` is None on a CPU timeline.

    `compute`, `communication` and `exposed` (communication without compute) are unions inside the step's window, at most
    MOST_INTERVALS each: gaps up to `closed_gap_us` are drawn as if they were filled. `dp_phases` has stretches with the
    index of their replica, None on a device.
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


@dataclass(frozen=True)
class StepTimeline:
    """One step of one rank; `ranges` are dpscope's own on the host: forward, backward, optimizer, ...

    `zero_ns` and `host` are those of its clock, as in `Trace`.
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
    """The middle whole step of a trace, or the middle one of those without a recorded start; None for a trace without steps."""
    if not len(attribution.events):
        return None
    events, steps, windows = attribution.events, attribution.steps, attribution.windows
    if attribution.on_device:
        starts, ends, whole = windows.start_us, windows.end_us, windows.whole
    else:
        starts, ends = np.maximum(steps.start_us, events.start_us.min()), np.minimum(steps.end_us, events.end_us.max())
        whole = np.ones(len(steps), dtype=bool)
    known = np.isfinite(starts) & np.isfinite(ends) & (ends > starts)
    candidates = np.flatnonzero(whole & known if (whole & known).any() else known)
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
    """At most `most` intervals, by closing the smallest gaps, and the largest gap that was closed (0.0: none)."""
    if len(spans) <= most:
        return spans, 0.0
    gaps = spans[1:, 0] - spans[:-1, 1]
    closed_us = float(np.sort(gaps)[len(spans) - most - 1])
    opens = np.concatenate(([True], gaps > closed_us))
    closes = np.concatenate((opens[1:], [True]))
    return np.stack((spans[opens, 0], spans[closes, 1]), axis=1), closed_us


def _device_timelines(attribution: Attribution, index: int, window: tuple[float, float]) -> Iterator[DeviceTimeline]:
    events = attribution.events
    launched = attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0)
    by_phase = launch_phases(attribution).phase if is_data_parallel(attribution) else None
    for device in np.unique(events.device[launched]).tolist():
        own = launched & (events.device == device)
        compute = own & attribution.rows(Kind.COMPUTE)
        peers = np.flatnonzero(_within(events, own & attribution.rows(Kind.PEER_COPY), window))
        others = np.flatnonzero(_within(events, own & attribution.rows(Kind.HOST_COPY), window))
        in_phase = () if by_phase is None else tuple(_launched_in(events, by_phase, own, window))
        yield _timeline(
            int(device),
            intervals.of_events(events, compute),
            intervals.of_events(events, own & attribution.rows(*COMMUNICATION_KINDS)),
            window,
            named=_longest(events, np.flatnonzero(_within(events, compute, window)), MOST_NAMED),
            copies=_longest(events, peers, MOST_COPIES),
            host_copies=_longest(events, others, MOST_NAMED),
            dp_phases=tuple((None, mark) for mark in in_phase),
        )


def _cpu_timeline(attribution: Attribution, index: int, window: tuple[float, float]) -> Iterator[DeviceTimeline]:
    events = attribution.events
    in_step = attribution.step == index
    communication = in_step & attribution.rows(Kind.COLLECTIVE, Kind.HOST_RANGE)
    operators = np.flatnonzero(_within(events, attribution.rows(Kind.COMPUTE), window))
    yield _timeline(
        None,
        cpu_compute(attribution),
        intervals.of_events(events, communication),
        window,
        named=_longest(events, _outermost(events, operators), MOST_NAMED),
        dp_phases=tuple(_replica_ranges(events, in_step)),
    )


def _timeline(
    device: int | None,
    compute: Intervals,
    communication: Intervals,
    window: tuple[float, float],
    named: tuple[Mark, ...],
    copies: tuple[Mark, ...] = (),
    host_copies: tuple[Mark, ...] = (),
    dp_phases: tuple[tuple[int | None, Mark], ...] = (),
) -> DeviceTimeline:
    computed, moved = intervals.clip(compute, *window), intervals.clip(communication, *window)
    exposed = intervals.difference(moved, computed)
    drawn, gaps_us = zip(*(thinned(spans, MOST_INTERVALS) for spans in (computed, moved, exposed)), strict=True)
    return DeviceTimeline(
        device,
        compute=_spans(drawn[0]),
        communication=_spans(drawn[1]),
        exposed=_spans(drawn[2]),
        closed_gap_us=max(gaps_us),
        named=named,
        copies=copies,
        host_copies=host_copies,
        dp_phases=dp_phases,
    )


def coarser(device: DeviceTimeline, most_spans: int, most_named: int) -> DeviceTimeline:
    """The same with fewer intervals of each kind and fewer named events, the longest ones."""
    kept = [
        thinned(np.array(spans).reshape(-1, 2), most_spans)
        for spans in (device.compute, device.communication, device.exposed)
    ]
    named = sorted(device.named, key=lambda mark: mark.start_us - mark.end_us)[:most_named]
    return replace(
        device,
        compute=_spans(kept[0][0]),
        communication=_spans(kept[1][0]),
        exposed=_spans(kept[2][0]),
        closed_gap_us=max(device.closed_gap_us, *(gap_us for _, gap_us in kept)),
        named=tuple(sorted(named, key=lambda mark: mark.start_us)),
    )


def _spans(rows: Intervals) -> Spans:
    return tuple((start, end) for start, end in rows.tolist())


def _within(events: EventTable, rows: BoolColumn, window: tuple[float, float]) -> BoolColumn:
    return rows & (events.start_us < window[1]) & (events.end_us > window[0])


def _outermost(events: EventTable, rows: IntColumn) -> IntColumn:
    """The outermost operators of each thread."""
    kept = []
    for thread in np.unique(events.thread[rows]):
        own = rows[events.thread[rows] == thread]
        own = own[np.lexsort((-events.end_us[own], events.start_us[own]))]
        reach = np.maximum.accumulate(events.end_us[own])
        kept.append(own[np.concatenate(([True], events.end_us[own][1:] > reach[:-1]))])
    return np.concatenate(kept) if kept else rows


def _longest(events: EventTable, rows: IntColumn, most: int) -> tuple[Mark, ...]:
    chosen = np.sort(rows[np.argsort(-events.duration_us[rows], kind="stable")[:most]])
    return tuple(
        Mark(
            float(events.start_us[row]),
            float(events.end_us[row]),
            _short(events.names[events.name[row]]),
            int(events.bytes[row]) if events.bytes[row] >= 0 else None,
        )
        for row in chosen.tolist()
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _launched_in(
    events: EventTable, by_phase: IntColumn, own: BoolColumn, window: tuple[float, float]
) -> Iterator[Mark]:
    """DataParallel's phases on a device: where the work launched in each of them ran."""
    for code, name in enumerate(PHASES):
        spans, _ = thinned(
            intervals.clip(intervals.of_events(events, own & (by_phase == code)), *window), MOST_PHASE_MARKS
        )
        for start, end in spans.tolist():
            yield Mark(start, end, name)


def _replica_ranges(events: EventTable, in_step: BoolColumn) -> Iterator[tuple[int | None, Mark]]:
    """dp-host's ranges with the index of their replica."""
    for row in np.flatnonzero(in_step & named_annotations(events, f"{phases.PREFIX}dp_")).tolist():
        base, _, replica = events.names[events.name[row]].partition("#")
        if base in phases.DP_PHASES:
            name = base.removeprefix(f"{phases.PREFIX}dp_")
            own = int(replica) if replica.isdigit() else None
            yield own, Mark(float(events.start_us[row]), float(events.end_us[row]), name)


def _host_ranges(attribution: Attribution, index: int, window: tuple[float, float]) -> Iterator[Mark]:
    """The step's own ranges on the CPU side; on a device's timeline they show when work was launched, not when it ran."""
    events = attribution.events
    found = named_annotations(events, phases.PREFIX)
    if attribution.on_device:
        steps = attribution.steps
        found &= (events.start_us >= steps.start_us[index]) & (events.start_us < steps.end_us[index])
    else:
        found = _within(events, found & (attribution.step == index), window)
    for row in np.flatnonzero(found).tolist():
        name = events.names[events.name[row]]
        if name in phases.STEP_PHASES:
            yield Mark(float(events.start_us[row]), float(events.end_us[row]), name.removeprefix(phases.PREFIX))


_Marks = list[tuple[int, int, str, int | None]]


class _Device(msgspec.Struct, array_like=True):
    device: int | None
    compute: list[int]
    communication: list[int]
    exposed: list[int]
    closed_gap_us: float
    named: _Marks
    copies: _Marks
    host_copies: _Marks
    replicas: list[int | None]  # of dp_phases
    dp_phases: _Marks


class _Step(msgspec.Struct, array_like=True):
    rank: int | None
    zero_ns: int
    host: str | None
    step: int | None
    window: list[int]
    devices: list[_Device]
    ranges: _Marks


def timeline_bytes(timeline: StepTimeline | None) -> bytes | None:
    """A timeline as msgpack, times as whole nanoseconds, each as its distance from the one before; None for none.

    Traces state nanoseconds at best, so that a timeline loses nothing that a page could show.
    """
    if timeline is None:
        return None
    step = _Step(
        timeline.rank,
        timeline.zero_ns,
        timeline.host,
        timeline.step,
        _steps(((timeline.start_us, timeline.end_us),)),
        [_device(one) for one in timeline.devices],
        _marks(timeline.ranges),
    )
    return msgspec.msgpack.encode(step)


def timeline_of(content: bytes | None) -> StepTimeline | None:
    """The timeline that `timeline_bytes` was given, its times to the nanosecond."""
    if content is None:
        return None
    step = msgspec.msgpack.decode(content, type=_Step)
    ((start_us, end_us),) = _spans_of_steps(step.window)
    return StepTimeline(
        rank=step.rank,
        zero_ns=step.zero_ns,
        host=step.host,
        step=step.step,
        start_us=start_us,
        end_us=end_us,
        devices=tuple(_drawn(one) for one in step.devices),
        ranges=_drawn_marks(step.ranges),
    )


def _device(one: DeviceTimeline) -> _Device:
    return _Device(
        one.device,
        _steps(one.compute),
        _steps(one.communication),
        _steps(one.exposed),
        one.closed_gap_us,
        _marks(one.named),
        _marks(one.copies),
        _marks(one.host_copies),
        [replica for replica, _ in one.dp_phases],
        _marks(tuple(mark for _, mark in one.dp_phases)),
    )


def _drawn(one: _Device) -> DeviceTimeline:
    return DeviceTimeline(
        one.device,
        compute=_spans_of_steps(one.compute),
        communication=_spans_of_steps(one.communication),
        exposed=_spans_of_steps(one.exposed),
        closed_gap_us=one.closed_gap_us,
        named=_drawn_marks(one.named),
        copies=_drawn_marks(one.copies),
        host_copies=_drawn_marks(one.host_copies),
        dp_phases=tuple(zip(one.replicas, _drawn_marks(one.dp_phases), strict=True)),
    )


def _steps(spans: Spans) -> list[int]:
    """Starts and ends in order, each less the one before."""
    times_ns = np.rint(np.array(spans, dtype=float).ravel() * 1e3).astype(np.int64)
    steps: list[int] = np.diff(times_ns, prepend=0).tolist()
    return steps


def _spans_of_steps(steps: list[int]) -> Spans:
    times = (np.cumsum(np.array(steps, dtype=np.int64)) / 1e3).reshape(-1, 2)
    return tuple((start, end) for start, end in times.tolist())


def _marks(marks: tuple[Mark, ...]) -> _Marks:
    steps = _steps(tuple((mark.start_us, mark.end_us) for mark in marks))
    return [
        (start, length, mark.name, mark.bytes)
        for start, length, mark in zip(steps[::2], steps[1::2], marks, strict=True)
    ]


def _drawn_marks(marks: _Marks) -> tuple[Mark, ...]:
    flat: list[Any] = [step for start, length, _, _ in marks for step in (start, length)]
    return tuple(
        Mark(start_us, end_us, name, size)
        for (start_us, end_us), (_, _, name, size) in zip(_spans_of_steps(flat), marks, strict=True)
    )
