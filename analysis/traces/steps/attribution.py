"""Which step each event of a trace belongs to: on a device by its launch, on the CPU by its
creation.
"""

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    Category,
    CodeColumn,
    EventTable,
    FloatColumn,
    IntColumn,
    Trace,
    is_among,
)
from dpscope.analysis.traces.reading.table import Table
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
        window = np.append(timed, NO_STEP)[np.searchsorted(self.end_us[timed], ends_us)]
        begin_us = self.start_us[timed].min(initial=np.inf)
        return np.where(ends_us > begin_us, window, NO_STEP)

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
    # a checkpoint's copy on a separate stream may last for steps, and holds none of them up
    copies = rows[is_among(kind[rows], COPY_KINDS)]
    hidden_ends = np.where(hidden, ends, np.inf)
    first_hidden = np.minimum.accumulate(hidden_ends[::-1])[::-1]  # from each step on
    first_behind = np.append(first_hidden[1:], np.inf)
    outlasting = copies[events.end_us[copies] >= first_behind[step[copies]]]
    if len(outlasting):
        rows = np.setdiff1d(rows, outlasting)
        ends, hidden = _ends(events, step, rows, count)
    first = np.full(count, np.inf)
    np.minimum.at(first, step[rows], events.start_us[rows])
    has_work = np.isfinite(ends)
    whole = np.append(False, has_work[:-1])  # else its start is not known
    starts = np.where(whole, intervals.reached_before(ends), first)
    has_window = has_work & ~hidden
    return Windows(
        start_us=np.where(has_window, starts, np.nan),
        end_us=np.where(has_window, ends, np.nan),
        whole=whole,
        hidden=hidden,
        outlasting=outlasting,
        cut=np.zeros(count, dtype=bool),
    )


def _ends(
    events: EventTable, step: IntColumn, rows: IntColumn, count: int
) -> tuple[FloatColumn, BoolColumn]:
    """When each step's work ended, and which steps' had all ended when an earlier step's did."""
    ends = np.full(count, -np.inf)
    np.maximum.at(ends, step[rows], events.end_us[rows])
    return ends, np.isfinite(ends) & (ends <= intervals.reached_before(ends))


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
    launched = launch_row >= 0
    kernels = np.flatnonzero((kind == Kind.COLLECTIVE) & launched)
    kernel_range = innermost(events, launch_row[kernels], ranges)
    with_kernel = set(zip(kernel_range.tolist(), events.device[kernels].tolist(), strict=True))
    between_buffers = is_among(kind, (Kind.PEER_COPY, Kind.DEVICE_COPY))
    between_buffers &= events.is_category(Category.MEMCPY)
    copies = events.in_order(np.flatnonzero(between_buffers & launched))
    copy_range = innermost(events, launch_row[copies], ranges)
    moves = (copy_range >= 0) & (innermost(events, launch_row[copies], _of_one_rank(events)) < 0)
    places = zip(copy_range[moves].tolist(), events.device[copies[moves]].tolist(), strict=True)
    marked = kind.copy()
    duration_us = events.duration_us.copy()
    firsts: dict[tuple[int, int], int] = {}
    for row, place in zip(copies[moves].tolist(), places, strict=True):
        if place in with_kernel:
            continue
        first = firsts.setdefault(place, row)
        marked[row] = Kind.COLLECTIVE if row == first else Kind.COLLECTIVE_PART
        duration_us[first] = max(duration_us[first], events.end_us[row] - events.start_us[first])
    return replace(events, duration_us=duration_us), marked


def _of_one_rank(events: EventTable) -> BoolColumn:
    """Records, operators and ranges of a group of one rank."""
    alone = np.zeros(len(events), dtype=bool)
    for row, args in events.communication.items():
        kind = collective_kind(args.collective_name or events.name_of(row))
        alone[row] = group_size(args, kind) == 1
    return alone & (events.operators | events.annotations)


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

    def in_steps(self, *kinds: Kind) -> BoolColumn:
        """Rows of any of these kinds that belong to a step."""
        return self.rows(*kinds) & (self.step >= 0)

    @property
    def requested_us(self) -> FloatColumn:
        """When each event was launched; on the CPU, when it began."""
        return self.launch_us if self.on_device else self.events.start_us

    def occupies(self, device: int) -> BoolColumn:
        """Events that run on a device, and copies that it receives from another one or sends, where
        that one records them.
        """
        received: BoolColumn = self.rows(Kind.PEER_COPY) & (self.events.peer == device)
        runs_here: BoolColumn = self.events.device == device
        return runs_here | received

    def collective_count(self, rows: IntColumn) -> int:
        """How many of the listed events are collectives."""
        return int((self.kind[rows] == Kind.COLLECTIVE).sum())

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
    if trace.lacks_events:
        return replace(attribution, windows=_without_cut_steps(attribution))
    return attribution


def _by_start(trace: Trace, steps: StepRanges) -> Attribution:
    """Of a trace without a device."""
    events = ended_in_their_pass(trace.events)
    kind = event_kind.cpu_event_kinds(events)
    none = np.full(len(events), NO_STEP)
    return Attribution(
        trace=replace(trace, events=events),
        steps=steps,
        kind=kind,
        launch_row=none,
        launch_us=np.full(len(events), np.nan),
        step=steps.index_at(events.start_us),
        by_time=none >= 0,
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
    rows = np.flatnonzero(on_device & (launched == NO_STEP))
    with_launch = np.flatnonzero(on_device & (launched >= 0))
    step = launched.copy()
    if not steps.marked:
        step[rows] = 0
    if not steps.marked or not len(rows):
        return step, windows_of(events, kind, step, len(steps))
    rows = rows[~_launched_before(events, rows)]
    during = steps.index_at(events.start_us[rows])
    silent = ~np.isin(during, launched[with_launch])
    step[rows] = np.where(silent, during, NO_STEP)
    windows = windows_of(events, kind, step, len(steps))
    rest = rows[step[rows] == NO_STEP]
    during = windows.index_of(events.end_us[rest])
    in_first = during == np.argmax(np.isfinite(windows.end_us))
    before = in_first & _on_streams_launched_later(events, rows, with_launch)[rest]
    step[rest] = np.where(before, NO_STEP, during)
    return step, windows


def _on_streams_launched_later(
    events: EventTable, rows: IntColumn, with_launch: IntColumn
) -> BoolColumn:
    """Events of the streams on which all of `rows` began before all that a step launched.

    They were launched before the trace, too: a stream works in order, and theirs lacks no later
    launch.
    """
    streams = Table.of(device=events.device, thread=events.thread).group("device", "thread")
    last_without = np.full(len(streams), -np.inf)
    first_with = np.full(len(streams), np.inf)
    np.maximum.at(last_without, streams.code[rows], events.start_us[rows])
    np.minimum.at(first_with, streams.code[with_launch], events.start_us[with_launch])
    before = (last_without <= first_with) & np.isfinite(first_with)
    of_stream: BoolColumn = before[streams.code]
    return of_stream


def _launched_before(events: EventTable, rows: IntColumn) -> BoolColumn:
    """Which of the device events were launched before the trace began: their correlation is below
    the first recorded call's.

    CUPTI numbers the calls of a process as they are made (CUpti_ActivityAPI, correlationId).
    Nothing is known where a trace's calls are not numbered in the order of their starts.
    """
    calls = events.in_order(np.flatnonzero(events.calls & (events.correlation > 0)))
    called = events.correlation[calls]
    first = 0
    if len(called) == 1 or (np.diff(called) >= 0).sum() > _IN_ORDER * (len(called) - 1) > 0:
        first = int(called.min())
    numbers = events.correlation[rows]
    before: BoolColumn = (numbers > 0) & (numbers < first)
    return before


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
    cut = steps.end_us > _shown_until_us(events.start_us[events.calls])
    cut |= windows.end_us > _shown_until_us(events.start_us[events.device_work])
    cut[1:] |= ~windows.whole[1:]  # nothing of the step before it was read
    launches = np.flatnonzero(events.calls & events.named(_LAUNCHES.search))
    without_event = np.setdiff1d(launches, attribution.launch_row)
    cut |= np.isin(np.arange(len(steps)), steps.index_at(events.start_us[without_event]))
    return replace(
        windows,
        start_us=np.where(cut, np.nan, windows.start_us),
        end_us=np.where(cut, np.nan, windows.end_us),
        cut=cut,
    )


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
        if match := _STEP_NAME.match(events.name_of(row)):
            longest.setdefault(int(match[1]), row)
    if not longest:
        return StepRanges((None,), np.array([-np.inf]), np.array([np.inf]))
    numbers = sorted(
        longest,
        key=lambda number: (events.start_us[longest[number]], events.end_us[longest[number]]),
    )
    in_order = [longest[number] for number in numbers]
    return StepRanges(tuple(numbers), events.start_us[in_order], events.end_us[in_order])


def _launch_rows(events: EventTable) -> IntColumn:
    """For each device event the row of the runtime call with its correlation id, else -1."""
    launch = np.full(len(events), -1, dtype=np.int64)
    calls = np.flatnonzero(events.calls & (events.correlation >= 0))
    wanted = np.flatnonzero(events.device_work & (events.correlation >= 0))
    if len(calls):
        calls = calls[np.argsort(events.correlation[calls], kind="stable")]
        numbers = events.correlation[wanted]
        place = np.searchsorted(events.correlation[calls], numbers)
        candidates = calls[np.minimum(place, len(calls) - 1)]
        launch[wanted] = np.where(events.correlation[candidates] == numbers, candidates, -1)
    return launch
