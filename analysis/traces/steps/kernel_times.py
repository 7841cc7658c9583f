"""How long the kernels of a trace run while communication runs and while none does, by what makes
kernels comparable.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import Table, Words
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, Kind
from dpscope.analysis.traces.steps.intervals import innermost

COLUMNS = (
    "rank",
    "device",
    "step",
    "operator",
    "kernel_class",
    "place",
    "overlapped",
    "time_us",
    "overlap_us",
    "pace",
)
# of a kernel's duration; kernels between 0 and this share are neither free nor overlapped
_LEAST_OVERLAP = 0.5
_SAME = ("kernel_name", "operator_name", "launch", "sizes", "backward", "edge")
# torch's range around each node of the backward pass
_NODE = "autograd::engine::evaluate_function: "


def kernel_times(attribution: Attribution) -> Table:
    """A row of COLUMNS per kernel that is overlapped or free; `overlap_us` is its time next to
    communication.

    Kernels of a class have the same kernel name, operator, input sizes, grid and block, and are
    alike in whether they belong to the backward pass and in whether they are the first, the last or
    neither of their step. Where no input sizes are recorded, a class holds one place in the order
    of the step only, and only if each step launches as many of these kernels. `pace` is how long
    the step's free kernels took over those of their classes in all steps: clocks and other programs
    slow down whole steps. On a CPU timeline, operators that call no other operator stand for
    kernels. If the trace overlaps any kernel, classes without an overlapped kernel are omitted.
    """
    kernels = _kernels(attribution)
    overlap_us, time_us = kernels["overlap_us"], kernels["time_us"]
    free = overlap_us == 0
    overlapped = overlap_us >= _LEAST_OVERLAP * time_us
    kernels = kernels.take((free | overlapped) & (time_us > 0))
    kernels = kernels.assign(overlapped=kernels["overlap_us"] > 0, rank=attribution.trace.rank)
    kernels = kernels.assign(pace=_pace(kernels))
    if kernels.truths("overlapped").any():
        classes = kernels.group("kernel_class")
        kernels = kernels.take(classes.sums(kernels.real("overlapped"))[classes.code] > 0)
    return kernels.select(COLUMNS)


def _kernels(attribution: Attribution) -> Table:
    """A row per kernel of a step, in order of start, with its class and its place among the kernels
    of its class.
    """
    events = attribution.events
    operators = events.is_category(Category.CPU_OP)
    in_step = (attribution.step >= 0) & ~attribution.windows.is_cut(
        attribution.step
    )  # else communication may be missing
    rows = np.flatnonzero(attribution.rows(Kind.COMPUTE) & in_step)
    rows = rows[np.argsort(events.start_us[rows], kind="stable")]
    if not attribution.on_device:
        rows = rows[_is_leaf(attribution, operators)[rows]]
    operator = operators_of(attribution, rows)
    nodes = operators & events.named(lambda name: name.startswith(_NODE))
    in_backward = innermost(events, operator, nodes) >= 0
    hashes = np.array([*(zlib.crc32(name.encode()) for name in events.names), -1], dtype=np.int64)
    called = np.append(events.name, -1)[operator]  # -1 for none: the last
    kernels = Table.of(
        device=events.device[rows] if attribution.on_device else None,
        step=attribution.step[rows],
        time_us=events.duration_us[rows],
        overlap_us=next_to_communication_us(attribution, rows),
        operator=Words.coded(called, [*events.names, "unknown"]),
        kernel_name=hashes[events.name[rows]],
        operator_name=hashes[called],
        launch=events.shape[rows],
        sizes=np.append(events.shape, -1)[operator],
        backward=in_backward.astype(np.int64),
    )
    steps = kernels.group("device", "step")
    position, count = steps.places, steps.sizes[steps.code]
    kernels = kernels.assign(edge=(position == 0) + 2 * (position == count - 1))
    in_steps = kernels.group("device", "step", *_SAME)
    kernels = kernels.assign(place=in_steps.places)
    same, launched = (
        kernels.group("device", *_SAME),
        in_steps.sizes[in_steps.code].astype(np.float64),
    )
    equal = (same.least(launched) == same.most(launched))[same.code]
    kernels = kernels.take((kernels["sizes"] >= 0) | equal)
    place = np.where(kernels["sizes"] < 0, kernels["place"], -1)
    return kernels.assign(kernel_class=_hashes([*(kernels[name] for name in _SAME), place]))


def operators_of(attribution: Attribution, kernels: IntColumn) -> IntColumn:
    """The rows of the innermost operators that launched these kernels, -1 for none; on a CPU
    timeline they themselves.
    """
    if not attribution.on_device:
        return kernels
    operators = attribution.events.is_category(Category.CPU_OP)
    return innermost(attribution.events, attribution.launch_row[kernels], operators)


def _hashes(columns: Sequence[IntColumn]) -> IntColumn:
    """A number for each row that is the same in every process and trace, by the multiplication of
    FNV-1a with mixing.
    """
    found = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        found = (found ^ column.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
    return found.view(np.int64)


def _pace(kernels: Table) -> FloatColumn:
    """Of each kernel's step: the time of its free kernels over that of as many of their classes on
    average; 1 without any.
    """
    classes, steps = kernels.group("device", "kernel_class"), kernels.group("device", "step")
    free_us = np.where(kernels.truths("overlapped"), np.nan, kernels["time_us"])
    usual_us = np.where(np.isnan(free_us), np.nan, classes.means(free_us)[classes.code])
    expected_us = steps.sums(usual_us)
    ratio = np.divide(
        steps.sums(free_us), expected_us, out=np.ones(len(steps)), where=expected_us > 0
    )
    return np.asarray(ratio[steps.code], dtype=np.float64)


def next_to_communication_us(attribution: Attribution, rows: IntColumn) -> FloatColumn:
    """How much of each event overlaps communication of its device, or of the process on a CPU
    timeline.
    """
    events = attribution.events
    communication = attribution.rows(
        *(COMMUNICATION_KINDS if attribution.on_device else (Kind.COLLECTIVE,))
    )
    result = np.zeros(len(rows))
    for device in np.unique(events.device[rows]).tolist():  # the CPU's have none
        here = events.device[rows] == device
        own, kernels = (
            intervals.of_events(events, communication & attribution.occupies(device)),
            rows[here],
        )
        result[here] = intervals.lengths_within(
            own, events.start_us[kernels], events.end_us[kernels]
        )
    return np.where(result > 1e-6, result, 0.0)


def _is_leaf(attribution: Attribution, operators: BoolColumn) -> BoolColumn:
    """Operators in which no other operator of their thread begins."""
    events, leaf = attribution.events, operators.copy()
    rows = np.flatnonzero(operators)
    rows = rows[np.lexsort((-events.end_us[rows], events.start_us[rows], events.thread[rows]))]
    follows = events.thread[rows[1:]] == events.thread[rows[:-1]]
    leaf[rows[:-1]] = ~(follows & (events.start_us[rows[1:]] < events.end_us[rows[:-1]]))
    return leaf
