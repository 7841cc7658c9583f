"""Which step each event of a trace belongs to: on a device by its launch, on the CPU by its
creation.
"""

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    DEVICE_WORK,
    BoolColumn,
    Category,
    CodeColumn,
    EventTable,
    FloatColumn,
    IntColumn,
    Trace,
    is_among,
)
from dpscope.analysis.traces.reading.tensor_sizes import group_size
from dpscope.analysis.traces.steps import event_kind, intervals
from dpscope.analysis.traces.steps.event_kind import (
    COPY_KINDS,
    DEVICE_KINDS,
    Kind,
    collective_kind,
    named_annotations,
)
from dpscope.analysis.traces.steps.gloo import ended_in_their_pass
from dpscope.analysis.traces.steps.intervals import innermost
from dpscope.profiling.records.short_repr import short_repr

NO_STEP = -1


@dataclass(frozen=True)
class Windows:
    """A step that launched nothing has no window: NaN. One whose work all ended before an earlier
    step's is hidden: NaN too.

    `whole` marks those with a recorded start; the first, and one after a step without work, runs
    from its first event.
    """

    start_us: FloatColumn
    end_us: FloatColumn
    whole: BoolColumn
    hidden: BoolColumn
    outlasting: IntColumn  # rows of copies that end after a later step does, and bound no window
    cut: BoolColumn  # steps of which a file that lacks events may lack some: NaN too

    def index_of(self, ends_us: FloatColumn) -> IntColumn:
        """The window in which each event ends, NO_STEP for those before the first and after the
        last.
        """
        timed = np.flatnonzero(np.isfinite(self.end_us))
        if not len(timed):
            return np.full(len(ends_us), NO_STEP, dtype=np.int64)
        place = np.searchsorted(self.end_us[timed], ends_us, side="left")
        inside = (place < len(timed)) & (ends_us > self.start_us[timed[0]])
        return np.where(inside, timed[np.minimum(place, len(timed) - 1)], NO_STEP)

    def is_cut(self, steps: IntColumn) -> BoolColumn:
        """Which of these steps, NO_STEP among them, are cut."""
        return np.append(self.cut, False)[steps]

    def lengths_of(self, spans: intervals.Intervals) -> FloatColumn:
        """Length of disjoint intervals in each window, NaN for a step without one."""
        return intervals.lengths_within(spans, self.start_us, self.end_us)


def windows_of(events: EventTable, kind: CodeColumn, step: IntColumn, count: int) -> Windows:
    """Windows of `count` steps, at least one, from the device events that each of them launched
    (`step`, NO_STEP for none).
    """
    rows = np.flatnonzero(is_among(kind, DEVICE_KINDS) & (step >= 0))
    ends, hidden = _ends(events, step, rows, count)
    outlasting: IntColumn = np.empty(0, dtype=np.int64)
    # a checkpoint's copy on a separate stream may last for steps, and holds none of them up
    if hidden.any():
        copies = rows[is_among(kind[rows], COPY_KINDS)]
        # from each step on
        first_hidden = np.minimum.accumulate(np.where(hidden, ends, np.inf)[::-1])[::-1]
        outlasting = copies[
            events.end_us[copies] >= np.append(first_hidden[1:], np.inf)[step[copies]]
        ]
        rows = rows[~np.isin(rows, outlasting)]
        ends, hidden = _ends(events, step, rows, count)
    first = np.full(count, np.inf)
    np.minimum.at(first, step[rows], events.start_us[rows])
    reach = np.maximum.accumulate(ends)
    whole = np.concatenate(([False], np.isfinite(ends[:-1])))  # else its start is not known
    starts = np.where(whole, np.concatenate(([-np.inf], reach[:-1])), first)
    has_window = np.isfinite(ends) & ~hidden
    none_cut = np.zeros(count, dtype=bool)
    known_starts, known_ends = (np.where(has_window, times, np.nan) for times in (starts, reach))
    return Windows(known_starts, known_ends, whole, hidden, outlasting, none_cut)


def _ends(
    events: EventTable, step: IntColumn, rows: IntColumn, count: int
) -> tuple[FloatColumn, BoolColumn]:
    """When each step's work ended, and which steps' had all ended when an earlier step's did."""
    ends = np.full(count, -np.inf)
    np.maximum.at(ends, step[rows], events.end_us[rows])
    before = np.concatenate(([-np.inf], np.maximum.accumulate(ends)[:-1]))
    return ends, np.isfinite(ends) & (ends <= before)


def _with_engine_copies(
    events: EventTable, kind: CodeColumn, launch_row: IntColumn
) -> tuple[EventTable, CodeColumn]:
    """Events and kinds, with the copies of collectives that copy engines carry out marked as such.

    These are the copies between device buffers launched in an `nccl:` range that launched no NCCL
    kernel on that device; next to a kernel a copy only packs or unpacks, and in a group of one rank
    it only copies. The first copy of a range and device is the COLLECTIVE and lasts until the last
    one ends, the others are its COLLECTIVE_PARTs. Between them NCCL waits: the first copies set the
    other ranks' flags, and the data are moved when theirs have arrived, by a wait of the stream
    that leaves no event (NCCL 2.28 and later, src/ce_coll.cc, ncclMemOpSync).
    """
    ranges = event_kind.nccl_ranges(events)
    if not ranges.any():
        return events, kind
    between_buffers = events.is_category(Category.MEMCPY) & is_among(
        kind, (Kind.PEER_COPY, Kind.DEVICE_COPY)
    )
    copies = np.flatnonzero(between_buffers & (launch_row >= 0))
    copy_range = innermost(events, launch_row[copies], ranges)
    # records, operators and ranges of a group of one rank
    alone = np.zeros(len(events), dtype=bool)
    for row, args in events.communication.items():
        alone[row] = (
            group_size(
                args, collective_kind(args.collective_name or events.names[events.name[row]])
            )
            == 1
        )
    alone &= events.is_category(Category.CPU_OP, Category.USER_ANNOTATION)
    moves = (copy_range >= 0) & (innermost(events, launch_row[copies], alone) < 0)
    kernels = np.flatnonzero((kind == Kind.COLLECTIVE) & (launch_row >= 0))
    kernel_range = innermost(events, launch_row[kernels], ranges)
    with_kernel = set(zip(kernel_range.tolist(), events.device[kernels].tolist(), strict=True))
    marked, duration_us = kind.copy(), events.duration_us.copy()
    firsts: dict[tuple[int, int], int] = {}
    for index in np.argsort(events.start_us[copies], kind="stable").tolist():
        row = int(copies[index])
        place = int(copy_range[index]), int(events.device[row])
        if not moves[index] or place in with_kernel:
            continue
        first = firsts.setdefault(place, row)
        marked[row] = Kind.COLLECTIVE if row == first else Kind.COLLECTIVE_PART
        duration_us[first] = max(duration_us[first], events.end_us[row] - events.start_us[first])
    return replace(events, duration_us=duration_us), marked


# of successive calls: threads may begin theirs in another order than they are numbered in
_IN_ORDER = 0.9
# each leaves an event of a device; some memsets leave none
_LAUNCHES = re.compile(r"Launch(?!HostFunc)|Memcpy")
_STEP_NAME = re.compile(r"^ProfilerStep#(\d{1,18})$")


@dataclass(frozen=True)
class StepRanges:
    """The steps of a trace in time order; one step without a number when the trace has no
    ProfilerStep.
    """

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
        """Index of the step that contains each time; NO_STEP for a time outside all steps and for
        NaN.
        """
        return intervals.index_at(self.start_us, self.end_us, times)


@dataclass(frozen=True)
class Attribution:
    """Per row of the event table: its kind, its launch and its step (an index into `steps`)."""

    __repr__ = short_repr

    trace: Trace
    steps: StepRanges
    kind: CodeColumn
    launch_row: IntColumn  # the runtime call that launched a device event, -1 for none
    launch_us: FloatColumn  # when; NaN for none
    step: IntColumn
    # device events that no traced step launched, in the step during which they ran
    by_time: BoolColumn
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

    def occupies(self, device: int) -> BoolColumn:
        """Events that run on a device, and copies that it receives from another one or sends, where
        that one records them.
        """
        received: BoolColumn = self.rows(Kind.PEER_COPY) & (self.events.peer == device)
        runs_here: BoolColumn = self.events.device == device
        return runs_here | received

    def by_step(self, mask: BoolColumn) -> list[IntColumn]:
        """For each step those of the marked rows that belong to it, in order: one pass, however
        many steps there are.
        """
        rows = np.flatnonzero(mask)
        rows = rows[np.argsort(self.step[rows], kind="stable")]
        bounds = np.searchsorted(self.step[rows], np.arange(len(self.steps) + 1))
        return [rows[begin:end] for begin, end in pairwise(bounds)]


def empty_steps(attribution: Attribution) -> IntColumn:
    """Indices of the marked steps of which the trace holds nothing: on a CPU no event but the
    step's own, on a device no work.
    """
    steps, events = attribution.steps, attribution.events
    if not steps.marked:
        return np.empty(0, dtype=np.int64)
    if attribution.on_device:
        windows = attribution.windows
        return np.flatnonzero(~(np.isfinite(windows.end_us) | windows.hidden | windows.cut))
    rows = np.flatnonzero(~named_annotations(events, "ProfilerStep#"))
    begun = np.isin(np.arange(len(steps)), attribution.step[rows])
    starts, ends = events.start_us[rows], events.end_us[rows]
    for index in np.flatnonzero(~begun):  # an event may have begun in an earlier step
        begun[index] = ((starts < steps.end_us[index]) & (ends > steps.start_us[index])).any()
    return np.flatnonzero(~begun & ~attribution.windows.cut)


def attribute(trace: Trace) -> Attribution:
    """Attribute every event of a trace.

    A device event belongs to the step in whose ProfilerStep range the runtime call of its
    correlation id lies. One without such a call (replayed graphs; work launched before the trace)
    goes to the step during which it ran, `by_time`, or to none where it ran outside of all. A CPU
    event belongs to the step in which it starts.
    """
    steps = step_ranges(trace.events)
    attribution = _by_launch(trace, steps) if trace.has_accelerator else _by_start(trace, steps)
    return (
        replace(attribution, windows=_without_cut_steps(attribution))
        if trace.lacks_events
        else attribution
    )


def _by_start(trace: Trace, steps: StepRanges) -> Attribution:
    """Of a trace without a device."""
    events = ended_in_their_pass(trace.events)
    kind = event_kind.cpu_event_kinds(events)
    none = np.full(len(events), -1, dtype=np.int64)
    return Attribution(
        trace=replace(trace, events=events),
        steps=steps,
        kind=kind,
        launch_row=none,
        launch_us=np.full(len(events), np.nan),
        step=steps.index_at(events.start_us),
        by_time=np.zeros(len(events), dtype=bool),
        windows=windows_of(events, kind, none, len(steps)),
    )


def _by_launch(trace: Trace, steps: StepRanges) -> Attribution:
    """Of a trace with a device."""
    events = trace.events
    launch_row = _launch_rows(events)
    kind = event_kind.event_kinds(events, launch_row)
    if trace.world_size != 1:
        events, kind = _with_engine_copies(events, kind, launch_row)
    # the launch row of none is -1, which reads the NaN at the end
    launch_us = np.append(events.start_us, np.nan)[launch_row]
    launched = steps.index_at(launch_us)
    step, windows = _with_those_of_no_launch(events, kind, steps, launched)
    return Attribution(
        trace=replace(trace, events=events),
        steps=steps,
        kind=kind,
        launch_row=launch_row,
        launch_us=launch_us,
        step=step,
        by_time=(launched == NO_STEP) & (step >= 0),
        windows=windows,
    )


def _with_those_of_no_launch(
    events: EventTable, kind: CodeColumn, steps: StepRanges, launched: IntColumn
) -> tuple[IntColumn, Windows]:
    """Steps of all events, device events that no step launched given to the one they ran in, and
    the steps' windows.

    Where no steps are marked all belong to the one there is. A step that launched nothing takes
    what began during its range, and so gets a window; the rest goes by the windows. What was
    launched before the trace belongs to none.
    """
    on_device = is_among(kind, DEVICE_KINDS)
    rows, with_launch = (
        np.flatnonzero(on_device & (launched == NO_STEP)),
        np.flatnonzero(on_device & (launched >= 0)),
    )
    step = launched.copy()
    if not steps.marked:
        step[rows] = 0
    if not steps.marked or not len(rows):
        return step, windows_of(events, kind, step, len(steps))
    rows = rows[~_launched_before(events, rows)]
    silent = np.ones(len(steps) + 1, dtype=bool)
    silent[launched[with_launch]] = silent[NO_STEP] = False
    during = steps.index_at(events.start_us[rows])
    step[rows] = np.where(silent[during], during, NO_STEP)
    windows = windows_of(events, kind, step, len(steps))
    rest = rows[step[rows] == NO_STEP]
    during = windows.index_of(events.end_us[rest])
    first = during == np.argmax(np.isfinite(windows.end_us))
    # Launched before the trace, too: a stream works in order, and theirs lacks no later launch.
    stream = np.unique(np.stack((events.device, events.thread)), axis=1, return_inverse=True)[
        1
    ].ravel()
    last_without, first_with = np.full(len(events), -np.inf), np.full(len(events), np.inf)
    np.maximum.at(last_without, stream[rows], events.start_us[rows])
    np.minimum.at(first_with, stream[with_launch], events.start_us[with_launch])
    before = (last_without <= first_with) & np.isfinite(first_with)
    step[rest] = np.where(first & before[stream[rest]], NO_STEP, during)
    return step, windows


def _launched_before(events: EventTable, rows: IntColumn) -> BoolColumn:
    """Which of the device events were launched before the trace began: their correlation is below
    the first recorded call's.

    CUPTI numbers the calls of a process as they are made (CUpti_ActivityAPI, correlationId).
    Nothing is known where a trace's calls are not numbered in the order of their starts.
    """
    calls = np.flatnonzero(events.is_category(Category.RUNTIME) & (events.correlation > 0))
    if not len(calls):
        return np.zeros(len(rows), dtype=bool)
    numbers = events.correlation[calls[np.argsort(events.start_us[calls], kind="stable")]]
    in_order = (np.diff(numbers) >= 0).mean() > _IN_ORDER if len(numbers) > 1 else True
    own_numbers = events.correlation[rows]
    return np.asarray((own_numbers > 0) & (own_numbers < numbers.min()) & in_order, dtype=bool)


def _without_cut_steps(attribution: Attribution) -> Windows:
    """The windows of the steps that a file which lacks events shows to their end; those of the
    others are not known.

    Kineto writes the events of a CPU thread by thread: a step may lack those of any thread, such as
    gloo's. It writes a device's buffer by buffer, mostly but not always in order of time: those
    lost are taken to begin as long before the latest one read as any that was read begins before
    one ahead of it in the file.
    """
    events, steps, windows = attribution.events, attribution.steps, attribution.windows
    if not attribution.on_device:
        return replace(windows, cut=np.ones(len(steps), dtype=bool))
    calls = events.is_category(Category.RUNTIME) & events.named(_LAUNCHES.search)
    has_event = np.zeros(len(events) + 1, dtype=bool)
    has_event[attribution.launch_row] = True
    cut = steps.end_us > _shown_until_us(events.start_us[events.is_category(Category.RUNTIME)])
    cut |= windows.end_us > _shown_until_us(events.start_us[events.is_category(*DEVICE_WORK)])
    cut[1:] |= ~windows.whole[1:]  # nothing of the step before it was read
    without_event = steps.index_at(events.start_us[calls & ~has_event[:-1]])
    cut[without_event[without_event >= 0]] = True
    start_us, end_us = (
        np.where(cut, np.nan, times) for times in (windows.start_us, windows.end_us)
    )
    return replace(windows, start_us=start_us, end_us=end_us, cut=cut)


def _shown_until_us(starts: FloatColumn) -> float:
    """Before this no event begins that may be lost behind the last of these starts, which are in
    the file's order.
    """
    if not len(starts):
        return -np.inf
    latest = np.maximum.accumulate(starts)
    return float(latest[-1] - (latest - starts).max())


def step_ranges(events: EventTable) -> StepRanges:
    """The ProfilerStep ranges of the CPU side, the longest of each number (several threads may
    carry one).
    """
    rows = np.flatnonzero(named_annotations(events, "ProfilerStep#"))
    longest: dict[int, int] = {}
    for row in rows[np.argsort(-events.duration_us[rows], kind="stable")].tolist():
        if match := _STEP_NAME.match(events.names[events.name[row]]):
            longest.setdefault(int(match[1]), row)
    if not longest:
        return StepRanges((None,), np.array([-np.inf]), np.array([np.inf]))
    ordered = sorted(
        longest.items(), key=lambda step: (events.start_us[step[1]], events.end_us[step[1]])
    )
    rows_in_order = [row for _, row in ordered]
    return StepRanges(
        tuple(number for number, _ in ordered),
        events.start_us[rows_in_order],
        events.end_us[rows_in_order],
    )


def _launch_rows(events: EventTable) -> IntColumn:
    """For each device event the row of the runtime call with its correlation id, else -1."""
    launch = np.full(len(events), -1, dtype=np.int64)
    calls = np.flatnonzero(events.is_category(Category.RUNTIME) & (events.correlation >= 0))
    wanted = np.flatnonzero(events.is_category(*DEVICE_WORK) & (events.correlation >= 0))
    if len(calls):
        calls = calls[np.argsort(events.correlation[calls], kind="stable")]
        place = np.searchsorted(events.correlation[calls], events.correlation[wanted])
        candidates = calls[np.minimum(place, len(calls) - 1)]
        launch[wanted] = np.where(
            events.correlation[candidates] == events.correlation[wanted], candidates, -1
        )
    return launch
