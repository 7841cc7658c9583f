"""In which phase of `nn.DataParallel` each device event was launched."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, EventTable, FloatColumn, IntColumn
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.enclosing_ranges import innermost
from dpscope.analysis.traces.steps.event_kind import DEVICE_KINDS, Kind
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
        return innermost(self.events, self.launch, self.events.is_category(*categories) & self._named(pattern))

    def inside(self, pattern: re.Pattern[str], *categories: Category) -> BoolColumn:
        return np.asarray(self.innermost(pattern, *categories) >= 0)

    def _named(self, pattern: re.Pattern[str]) -> BoolColumn:
        return self.events.has_name(np.array([bool(pattern.match(name)) for name in self.events.names], dtype=bool))

    def during(self, name: str) -> IntColumn:
        """The user range of that name (with or without a replica's index) during which each launch was, on any thread."""
        wanted = np.array([phases.base_name(one) == name for one in self.events.names], dtype=bool)
        ranges = np.flatnonzero(self.events.is_category(Category.USER_ANNOTATION) & self.events.has_name(wanted))
        return self._latest_open(ranges)

    def _latest_open(self, ranges: IntColumn) -> IntColumn:
        if not len(ranges):
            return np.full(len(self.rows), -1, dtype=np.int64)
        ranges = ranges[np.argsort(self.events.start_us[ranges], kind="stable")]
        index = np.searchsorted(self.events.start_us[ranges], self.times, side="right") - 1
        row = ranges[np.maximum(index, 0)]
        return np.where((index >= 0) & (self.times < self.events.end_us[row]), row, -1)


def launch_phases(attribution: Attribution) -> LaunchPhases:
    """Phase of every device event of a step; what has no launch is OTHER."""
    events = attribution.events
    launches = _Launches(attribution)
    forward = _forward_calls(attribution)
    codes = np.full(len(launches.rows), _CODE[OTHER], dtype=np.int64)
    for name, where in _rules(launches, forward):  # later rules win
        codes[where & (launches.launch >= 0)] = _CODE[name]
    phase = np.full(len(events), -1, dtype=np.int64)
    phase[launches.rows] = codes
    coalesced = np.full(len(events), -1, dtype=np.int64)
    coalesced[launches.rows] = launches.innermost(_COALESCED, Category.CPU_OP)
    return LaunchPhases(phase, coalesced)


def kinds_by_phase(attribution: Attribution) -> dict[int, str]:
    """Which collective DataParallel's are by the phase they were launched in, by event row: it broadcasts and reduces.

    For kernels whose name names no collective, such as RCCL's; DataParallel calls NCCL outside of process groups, so that nothing
    else records what it asked for.
    """
    rows = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    if not len(rows):
        return {}
    kinds = {_CODE["replicate"]: "broadcast", _CODE["gradient_reduce"]: "reduce"}
    codes = launch_phases(attribution).phase[rows].tolist()
    return {row: kinds[code] for row, code in zip(rows.tolist(), codes, strict=True) if code in kinds}


def _rules(launches: _Launches, forward: "_Calls") -> list[tuple[str, BoolColumn]]:
    """Phases and the launches that belong to them, from the widest rule to the narrowest."""
    events = launches.events
    backward = launches.inside(_BACKWARD_NODE, Category.CPU_OP)
    backward |= launches.during(phases.BACKWARD) >= 0
    zeroing = launches.inside(_ZERO_GRAD, Category.USER_ANNOTATION)
    updating = launches.inside(_OPTIMIZER, Category.USER_ANNOTATION) | (launches.during(phases.OPTIMIZER) >= 0)
    from_host = events.has_name(np.array([bool(_FROM_HOST.search(name)) for name in events.names], dtype=bool))
    call = forward.at(launches.times)
    on_caller = (call >= 0) & (launches.threads == np.append(forward.thread, -1)[call])  # there may be no call at all
    return [
        ("loss_backward", forward.before(launches.times) & ~zeroing & ~launches_after(launches, _OPTIMIZER)),
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


def launches_after(launches: _Launches, pattern: re.Pattern[str]) -> BoolColumn:
    """Launches behind the end of the step's last range of that name."""
    events = launches.events
    wanted = np.array([bool(pattern.match(name)) for name in events.names], dtype=bool)
    ranges = np.flatnonzero(events.is_category(Category.USER_ANNOTATION) & events.has_name(wanted))
    steps = np.flatnonzero(
        events.is_category(Category.USER_ANNOTATION)
        & events.has_name(np.array([name.startswith("ProfilerStep#") for name in events.names], dtype=bool))
    )
    step_starts = np.sort(events.start_us[steps])
    ends = np.sort(events.end_us[ranges])
    last_end = np.searchsorted(ends, launches.times, side="right") - 1
    own_step = np.searchsorted(step_starts, launches.times, side="right") - 1
    begun = step_starts[np.maximum(own_step, 0)] if len(step_starts) else np.full(len(launches.times), -np.inf)
    found = ends[np.maximum(last_end, 0)] if len(ends) else np.full(len(launches.times), -np.inf)
    return np.asarray((last_end >= 0) & (found >= begun))


@dataclass(frozen=True)
class _Calls:
    """DataParallel's forward calls in order: where each begins and ends, and on which thread."""

    start_us: FloatColumn
    end_us: FloatColumn
    thread: IntColumn
    step_start_us: FloatColumn  # of the step each launch may be in

    def at(self, times: FloatColumn) -> IntColumn:
        """The call each time lies in, -1 for none."""
        if not len(self.start_us):
            return np.full(len(times), -1, dtype=np.int64)
        index = np.searchsorted(self.start_us, times, side="right") - 1
        return np.where((index >= 0) & (times < self.end_us[np.maximum(index, 0)]), index, -1)

    def before(self, times: FloatColumn) -> BoolColumn:
        """Whether a call of the same step has ended before each time."""
        if not len(self.start_us):
            return np.zeros(len(times), dtype=bool)
        index = np.searchsorted(self.end_us, times, side="right") - 1
        step = np.searchsorted(self.step_start_us, times, side="right") - 1
        begun = self.step_start_us[np.maximum(step, 0)]
        return np.asarray((index >= 0) & (self.start_us[np.maximum(index, 0)] >= begun))


def _forward_calls(attribution: Attribution) -> _Calls:
    """The `DataParallel.forward` ranges; without them, from the first to the last operator of a step's forward."""
    events = attribution.events
    steps = np.sort(attribution.steps.start_us)
    named = np.array([name == "DataParallel.forward" for name in events.names], dtype=bool)
    rows = np.flatnonzero(events.is_category(Category.USER_ANNOTATION, Category.CPU_OP) & events.has_name(named))
    if len(rows):
        rows = rows[np.argsort(events.start_us[rows], kind="stable")]
        return _Calls(events.start_us[rows], events.end_us[rows], events.thread[rows], steps)
    rows = _forward_operators(events)
    of_step = attribution.steps.index_at(events.start_us[rows])
    spans: list[tuple[float, float, int]] = []
    for step in np.unique(of_step[of_step >= 0]):
        own = rows[of_step == step]
        spans.append((float(events.start_us[own].min()), float(events.end_us[own].max()), int(events.thread[own[0]])))
    columns: npt.NDArray[np.float64] = np.array(spans, dtype=np.float64).reshape(-1, 3)
    return _Calls(columns[:, 0], columns[:, 1], columns[:, 2].astype(np.int64), steps)


def _forward_operators(events: EventTable) -> IntColumn:
    """Scatter, Broadcast and Gather of the forward pass, and dpscope's ranges around them: not those in a backward node."""
    operator = np.array([bool(_FORWARD_OPERATOR.match(name)) for name in events.names], dtype=bool)
    named = np.array([name in (phases.SCATTER, phases.REPLICATE, phases.GATHER) for name in events.names], dtype=bool)
    node = np.array([bool(_BACKWARD_NODE.match(name)) for name in events.names], dtype=bool)
    rows = np.flatnonzero(
        (events.is_category(Category.CPU_OP) & events.has_name(operator))
        | (events.is_category(Category.USER_ANNOTATION) & events.has_name(named))
    )
    within = innermost(events, rows, events.is_category(Category.CPU_OP) & events.has_name(node))
    return rows[within < 0]
