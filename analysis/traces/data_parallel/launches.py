"""In which phase of `nn.DataParallel` each device event was launched."""

import re
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, EventTable, FloatColumn, IntColumn
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import DEVICE_KINDS
from dpscope.analysis.traces.steps.intervals import innermost
from dpscope.profiling.records import range_names as phases

OTHER = "other"
PHASES = (
    "host_to_device", "scatter", "replicate", "parallel_apply", "gather", "loss_backward", "gradient_reduce", "optimizer",
    OTHER,
)  # fmt: skip
_CODE = {name: code for code, name in enumerate(PHASES)}

_NODE = r"autograd::engine::evaluate_function: "
_REDUCES = re.compile(rf"^(?:{_NODE})?(?:BroadcastBackward|ReduceAddCoalesced)$")
_BACKWARD_NODE = re.compile(rf"^{_NODE}")
_COALESCED = re.compile(r"^(?:Broadcast|ReduceAddCoalesced)$")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
_FROM_HOST = re.compile(r"HtoD|HostToDevice", re.IGNORECASE)
_FORWARD_OPERATOR = re.compile(r"^(?:Scatter|Broadcast|Gather)$")


@dataclass(frozen=True)
class LaunchPhases:
    """Per row of the event table: the index in PHASES, -1 for what is in no step; and the coalesced operator."""

    phase: IntColumn
    coalesced: IntColumn  # the `Broadcast` or `ReduceAddCoalesced` it was launched in, -1 for none


class _Launches:
    """The device events of the steps, with where and when each was launched."""

    def __init__(self, attribution: Attribution) -> None:
        self.events: EventTable = attribution.events
        self.rows = np.flatnonzero(attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0))
        self.launch = attribution.launch_row[self.rows]
        self.times = attribution.launch_us[self.rows]
        self.threads = np.where(self.launch >= 0, self.events.thread[np.maximum(self.launch, 0)], -1)

    def innermost(self, pattern: re.Pattern[str], *categories: Category) -> IntColumn:
        """The innermost operator or range of that name around each launch on its own thread, -1 for none."""
        return innermost(
            self.events, self.launch, self.events.is_category(*categories) & self.events.named(pattern.match)
        )

    def inside(self, pattern: re.Pattern[str], *categories: Category) -> BoolColumn:
        return np.asarray(self.innermost(pattern, *categories) >= 0)

    def during(self, name: str) -> IntColumn:
        """The user range of that name (with or without a replica's index) during which each launch was, on any thread."""
        named = self.events.named(lambda one: phases.base_name(one) == name)
        ranges = np.flatnonzero(self.events.is_category(Category.USER_ANNOTATION) & named)
        ranges = ranges[np.argsort(self.events.start_us[ranges], kind="stable")]
        place = intervals.index_at(self.events.start_us[ranges], self.events.end_us[ranges], self.times)
        return np.where(place >= 0, np.append(ranges, -1)[place], -1)


def launch_phases(attribution: Attribution) -> LaunchPhases:
    """Phase of every device event of a step; what has no launch is OTHER."""
    launches = _Launches(attribution)
    phase, coalesced = np.full((2, len(attribution.events)), -1, dtype=np.int64)
    phase[launches.rows] = _CODE[OTHER]
    for name, where in _rules(launches, attribution):  # later rules win
        phase[launches.rows[where & (launches.launch >= 0)]] = _CODE[name]
    coalesced[launches.rows] = launches.innermost(_COALESCED, Category.CPU_OP)
    return LaunchPhases(phase, coalesced)


def _rules(launches: _Launches, attribution: Attribution) -> list[tuple[str, BoolColumn]]:
    """Phases and the launches that belong to them, from the widest rule to the narrowest."""
    events, steps_us = attribution.events, np.sort(attribution.steps.start_us)
    starts, ends, threads = _forward_calls(attribution)
    optimizers = events.is_category(Category.USER_ANNOTATION) & events.named(_OPTIMIZER.match)
    updated_us = np.sort(events.end_us[optimizers])
    forwarded = _ended_in_step(launches.times, steps_us, ends, starts)
    updated = _ended_in_step(launches.times, steps_us, updated_us, updated_us)
    backward = launches.inside(_BACKWARD_NODE, Category.CPU_OP)
    backward |= launches.during(phases.BACKWARD) >= 0
    zeroing = launches.inside(_ZERO_GRAD, Category.USER_ANNOTATION)
    updating = launches.inside(_OPTIMIZER, Category.USER_ANNOTATION) | (launches.during(phases.OPTIMIZER) >= 0)
    from_host = events.named(_FROM_HOST.search)
    call = intervals.index_at(starts, ends, launches.times)
    on_caller = (call >= 0) & (launches.threads == np.append(threads, -1)[call])  # there may be no call at all
    return [
        ("loss_backward", forwarded & ~zeroing & ~updated),
        ("loss_backward", launches.during(phases.FORWARD) >= 0),
        ("host_to_device", from_host[launches.rows] & (call < 0)),
        ("host_to_device", launches.during(phases.HOST_TO_DEVICE) >= 0),
        ("parallel_apply", (call >= 0) & ~on_caller),
        ("replicate", on_caller),
        ("scatter", on_caller & launches.inside(re.compile("^Scatter$"), Category.CPU_OP)),
        ("gather", on_caller & launches.inside(re.compile("^Gather$"), Category.CPU_OP)),
        ("parallel_apply", launches.during(phases.PARALLEL_APPLY) >= 0),
        *(
            (name, on_caller & (launches.during(range_name) >= 0))
            for name, range_name in (
                ("scatter", phases.SCATTER), ("replicate", phases.REPLICATE), ("gather", phases.GATHER),
            )
        ),
        ("loss_backward", backward),
        ("optimizer", updating),
        ("gradient_reduce", launches.inside(_REDUCES, Category.CPU_OP)),
        ("gradient_reduce", launches.during(phases.GRADIENT_REDUCE) >= 0),
    ]  # fmt: skip


def _ended_in_step(times: FloatColumn, steps_us: FloatColumn, ends: FloatColumn, marks: FloatColumn) -> BoolColumn:
    """Whether a range has ended before each time, and the last one has its mark, such as its start, in the same step."""
    if not len(ends):
        return np.zeros(len(times), dtype=bool)
    last = np.searchsorted(ends, times, side="right") - 1
    step = np.searchsorted(steps_us, times, side="right") - 1
    return np.asarray((last >= 0) & (marks[np.maximum(last, 0)] >= steps_us[np.maximum(step, 0)]))


def _forward_calls(attribution: Attribution) -> tuple[FloatColumn, FloatColumn, IntColumn]:
    """Starts, ends and threads of the `DataParallel.forward` ranges, in order.

    Without such ranges, a step's forward is from its first to its last operator.
    """
    events = attribution.events
    named = events.named(lambda name: name == "DataParallel.forward")
    rows = np.flatnonzero(events.is_category(Category.USER_ANNOTATION, Category.CPU_OP) & named)
    if len(rows):
        rows = rows[np.argsort(events.start_us[rows], kind="stable")]
        return events.start_us[rows], events.end_us[rows], events.thread[rows]
    rows = _forward_operators(events)
    of_step = attribution.steps.index_at(events.start_us[rows])
    calls = [rows[of_step == step] for step in np.unique(of_step[of_step >= 0])]
    starts, ends = (
        [reach(times[own]) for own in calls] for reach, times in ((np.min, events.start_us), (np.max, events.end_us))
    )
    return np.array(starts), np.array(ends), np.array([events.thread[own[0]] for own in calls], dtype=np.int64)


def _forward_operators(events: EventTable) -> IntColumn:
    """Scatter, Broadcast and Gather of the forward pass, and dpscope's ranges around them: not those in a backward node."""
    operators, annotations = events.is_category(Category.CPU_OP), events.is_category(Category.USER_ANNOTATION)
    own_ranges = annotations & events.named((phases.SCATTER, phases.REPLICATE, phases.GATHER).__contains__)
    rows = np.flatnonzero((operators & events.named(_FORWARD_OPERATOR.match)) | own_ranges)
    return rows[innermost(events, rows, operators & events.named(_BACKWARD_NODE.match)) < 0]
