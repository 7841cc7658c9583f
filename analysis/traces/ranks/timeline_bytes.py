"""A drawn step as few bytes: times as whole nanoseconds, each as its distance from the one before, which are small numbers.

Traces state nanoseconds at best, so that a timeline loses nothing that a page could show.
"""

from typing import Any

import msgspec
import numpy as np

from dpscope.analysis.traces.ranks.timeline import DeviceTimeline, Mark, Spans, StepTimeline

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
    """A timeline as msgpack; None for none."""
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
    ((start_us, end_us),) = _spans(step.window)
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
        compute=_spans(one.compute),
        communication=_spans(one.communication),
        exposed=_spans(one.exposed),
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


def _spans(steps: list[int]) -> Spans:
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
        for (start_us, end_us), (_, _, name, size) in zip(_spans(flat), marks, strict=True)
    )
