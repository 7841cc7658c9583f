"""Which step each event of a trace belongs to: on a device by its launch, on the CPU by its creation."""

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    Category,
    EventTable,
    FloatColumn,
    IntColumn,
    Trace,
    is_among,
)
from dpscope.analysis.traces.steps.engine_copies import with_engine_copies
from dpscope.analysis.traces.steps.event_kind import (
    DEVICE_KINDS,
    Kind,
    cpu_event_kinds,
    event_kinds,
    named_annotations,
    with_peer_calls,
)
from dpscope.analysis.traces.steps.gloo import ended_in_their_pass
from dpscope.analysis.traces.steps.windows import NO_STEP, Windows, windows_of

_IN_ORDER = 0.9  # of successive calls: threads may begin theirs in another order than they are numbered in
_STEP_NAME = re.compile(r"^ProfilerStep#(\d{1,18})$")


@dataclass(frozen=True)
class StepRanges:
    """The steps of a trace in time order; one step without a number when the trace has no ProfilerStep."""

    numbers: tuple[int | None, ...]
    start_us: FloatColumn
    end_us: FloatColumn

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def marked(self) -> bool:
        """Whether the trace marks steps; else there is one, as long as the trace."""
        return self.numbers != (None,)

    def index_at(self, times: FloatColumn) -> IntColumn:
        """Index of the step each time lies in, NO_STEP outside of all; NaN lies in none."""
        index = np.searchsorted(self.start_us, times, side="right").astype(np.int64) - 1
        inside = (index >= 0) & (times < self.end_us[np.maximum(index, 0)]) if len(self) else np.zeros_like(index, bool)
        return np.where(inside & np.isfinite(times), index, NO_STEP)


@dataclass(frozen=True)
class Attribution:
    """Per row of the event table: its kind, its launch and its step (an index into `steps`)."""

    trace: Trace
    steps: StepRanges
    kind: npt.NDArray[np.uint8]
    launch_row: IntColumn  # the runtime call that launched a device event, -1 for none
    launch_us: FloatColumn  # when; NaN for none
    step: IntColumn
    by_time: BoolColumn  # device events that no traced step launched, in the step during which they ran
    windows: Windows  # of each step on the devices

    @property
    def on_device(self) -> bool:
        """Whether this is a device's timeline, else the CPU's."""
        return self.trace.has_accelerator

    @property
    def events(self) -> EventTable:
        return self.trace.events

    def rows(self, *kinds: Kind) -> BoolColumn:
        """Rows of any of these kinds."""
        return is_among(self.kind, kinds)

    def by_step(self, mask: BoolColumn) -> list[IntColumn]:
        """For each step those of the marked rows that belong to it, in order: one pass, however many steps there are."""
        rows = np.flatnonzero(mask)
        rows = rows[np.argsort(self.step[rows], kind="stable")]
        bounds = np.searchsorted(self.step[rows], np.arange(len(self.steps) + 1))
        return [rows[begin:end] for begin, end in pairwise(bounds)]


def empty_steps(attribution: Attribution) -> IntColumn:
    """Indices of the marked steps of which the trace holds nothing: on a CPU no event but the step's own, on a device no work."""
    steps, events = attribution.steps, attribution.events
    if not steps.marked:
        return np.empty(0, dtype=np.int64)
    if attribution.on_device:
        known = np.isfinite(attribution.windows.end_us) | attribution.windows.hidden
        return np.flatnonzero(~known)
    rows = np.flatnonzero(~named_annotations(events, "ProfilerStep#"))
    starts, ends = steps.start_us[:, None], steps.end_us[:, None]
    begun = np.bincount(attribution.step[rows][attribution.step[rows] >= 0], minlength=len(steps)) > 0
    for index in np.flatnonzero(~begun).tolist():  # an event may have begun in an earlier step
        begun[index] = bool(((events.start_us[rows] < ends[index]) & (events.end_us[rows] > starts[index])).any())
    return np.flatnonzero(~begun)


def attribute(trace: Trace) -> Attribution:
    """Attribute every event of a trace.

    A device event belongs to the step in whose ProfilerStep range the runtime call of its correlation id lies. One
    without such a call (replayed graphs; work launched before the trace) goes to the step during which it ran, `by_time`,
    or to none where it ran outside of all. A CPU event belongs to the step in which it starts.
    """
    events = trace.events
    steps = step_ranges(events)
    if not trace.has_accelerator:
        events = ended_in_their_pass(events)
        trace = replace(trace, events=events)
        kind = cpu_event_kinds(events)
        none, never = np.full(len(events), -1, dtype=np.int64), np.full(len(events), np.nan)
        by_time = np.zeros(len(events), dtype=bool)
        step = steps.index_at(events.start_us)
        return Attribution(trace, steps, kind, none, never, step, by_time, windows_of(events, kind, none, len(steps)))
    kind = event_kinds(events)
    launch_row = _launch_rows(events, is_among(kind, DEVICE_KINDS))
    kind = with_peer_calls(events, kind, launch_row)
    if trace.world_size != 1:
        kind = with_engine_copies(events, kind, launch_row)
    launch_us = np.where(launch_row >= 0, events.start_us[np.maximum(launch_row, 0)], np.nan)
    launched = steps.index_at(launch_us)
    step, windows = _with_those_of_no_launch(events, kind, steps, launched)
    return Attribution(trace, steps, kind, launch_row, launch_us, step, (launched == NO_STEP) & (step >= 0), windows)


def _with_those_of_no_launch(
    events: EventTable, kind: npt.NDArray[np.uint8], steps: StepRanges, launched: IntColumn
) -> tuple[IntColumn, Windows]:
    """Steps of all events, device events that no step launched given to the one they ran in, and the steps' windows.

    Where no steps are marked all belong to the one there is. A step that launched nothing of its own takes what began
    during its range, and so gets a window; the rest goes by the windows. What was launched before the trace belongs to none.
    """
    rows = np.flatnonzero(is_among(kind, DEVICE_KINDS) & (launched == NO_STEP))
    if not len(rows):
        return launched, windows_of(events, kind, launched, len(steps))
    step = launched.copy()
    if not steps.marked:
        step[rows] = 0
        return step, windows_of(events, kind, step, len(steps))
    rows = rows[~_launched_before(events, rows)]
    silent = np.ones(len(steps), dtype=bool)
    silent[launched[is_among(kind, DEVICE_KINDS) & (launched >= 0)]] = False
    during = steps.index_at(events.start_us[rows])
    step[rows] = np.where((during >= 0) & silent[np.maximum(during, 0)], during, NO_STEP)
    windows = windows_of(events, kind, step, len(steps))
    rest = rows[step[rows] == NO_STEP]
    during = windows.index_of(events.end_us[rest])
    first = during == np.argmax(np.isfinite(windows.end_us))
    step[rest] = np.where(first & _began_before(events, rest, rows, kind, launched), NO_STEP, during)
    return step, windows


def _began_before(
    events: EventTable, rest: IntColumn, without: IntColumn, kind: npt.NDArray[np.uint8], launched: IntColumn
) -> BoolColumn:
    """Which of the events were launched before the trace: a stream works in order, and theirs lacks no later launch."""
    streams = np.stack((events.device, events.thread), axis=1)
    _, stream = np.unique(streams, axis=0, return_inverse=True)
    stream = stream.ravel()
    with_launch = np.flatnonzero(is_among(kind, DEVICE_KINDS) & (launched >= 0))
    last_without, first_with = np.full(len(events), -np.inf), np.full(len(events), np.inf)
    np.maximum.at(last_without, stream[without], events.start_us[without])
    np.minimum.at(first_with, stream[with_launch], events.start_us[with_launch])
    before = (last_without <= first_with) & np.isfinite(first_with)
    return np.asarray(before[stream[rest]], dtype=bool)


def _launched_before(events: EventTable, rows: IntColumn) -> BoolColumn:
    """Which of the device events were launched before the trace began: their correlation is below the first recorded call's.

    CUPTI numbers the calls of a process as they are made (CUpti_ActivityAPI, correlationId). Nothing is known where a trace's
    calls are not numbered in the order of their starts.
    """
    calls = np.flatnonzero(events.is_category(Category.RUNTIME) & (events.correlation > 0))
    if not len(calls):
        return np.zeros(len(rows), dtype=bool)
    numbers = events.correlation[calls[np.argsort(events.start_us[calls], kind="stable")]]
    in_order = (np.diff(numbers) >= 0).mean() > _IN_ORDER if len(numbers) > 1 else True
    own = events.correlation[rows]
    return np.asarray((own > 0) & (own < numbers.min()) & in_order, dtype=bool)


def step_ranges(events: EventTable) -> StepRanges:
    """The ProfilerStep ranges of the CPU side, the longest of each number (several threads may carry one)."""
    rows = np.flatnonzero(named_annotations(events, "ProfilerStep#"))
    longest: dict[int, tuple[float, float]] = {}
    for row in rows:
        match = _STEP_NAME.match(events.names[events.name[row]])
        if match is None:
            continue
        start, duration = float(events.start_us[row]), float(events.duration_us[row])
        number = int(match[1])
        if number not in longest or duration > longest[number][1] - longest[number][0]:
            longest[number] = (start, start + duration)
    if not longest:
        return StepRanges((None,), np.array([-np.inf]), np.array([np.inf]))
    ordered = sorted(longest.items(), key=lambda item: item[1])
    bounds = np.array([bound for _, bound in ordered])
    return StepRanges(tuple(number for number, _ in ordered), bounds[:, 0], bounds[:, 1])


def _launch_rows(events: EventTable, device_rows: npt.NDArray[np.bool_]) -> IntColumn:
    """For each device event the row of the runtime call with its correlation id, else -1."""
    launch = np.full(len(events), -1, dtype=np.int64)
    calls = np.flatnonzero(events.is_category(Category.RUNTIME) & (events.correlation >= 0))
    wanted = np.flatnonzero(device_rows & (events.correlation >= 0))
    if not len(calls) or not len(wanted):
        return launch
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    correlations = events.correlation[calls]
    position = np.minimum(np.searchsorted(correlations, events.correlation[wanted]), len(calls) - 1)
    found = correlations[position] == events.correlation[wanted]
    launch[wanted[found]] = calls[position[found]]
    return launch
