"""How long the kernels of a trace run while communication runs and while none does, by what makes
kernels comparable.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    EventTable,
    FloatColumn,
    IntColumn,
)
from dpscope.analysis.traces.reading.table import Table, Words, divided
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
    is_cut = attribution.windows.is_cut(attribution.step)  # communication may be missing
    rows = events.in_order(np.flatnonzero(attribution.in_steps(Kind.COMPUTE) & ~is_cut))
    if not attribution.on_device:
        rows = rows[_is_leaf(events)[rows]]
    operator = operators_of(attribution, rows)
    nodes = events.operators & events.named(lambda name: name.startswith(_NODE))
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
    is_last = steps.places == steps.sizes[steps.code] - 1
    kernels = kernels.assign(edge=(steps.places == 0) + 2 * is_last)
    in_steps = kernels.group("device", "step", *_SAME)
    kernels = kernels.assign(place=in_steps.places)
    launched = in_steps.sizes[in_steps.code]
    as_many = kernels.group("device", *_SAME).different(launched)
    equal = (as_many == 1)[kernels.group("device", *_SAME).code]
    kernels = kernels.take((kernels["sizes"] >= 0) | equal)
    place = np.where(kernels["sizes"] < 0, kernels["place"], -1)
    return kernels.assign(kernel_class=_hashes([*(kernels[name] for name in _SAME), place]))


def operators_of(attribution: Attribution, kernels: IntColumn) -> IntColumn:
    """The rows of the innermost operators that launched these kernels, -1 for none; on a CPU
    timeline they themselves.
    """
    if not attribution.on_device:
        return kernels
    operators = attribution.events.operators
    return innermost(attribution.events, attribution.launch_row[kernels], operators)


def _hashes(columns: Sequence[IntColumn]) -> IntColumn:
    """A number for each row that is the same in every process and trace, by the multiplication of
    FNV-1a with mixing.
    """
    hashes = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        hashes = (hashes ^ column.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    return hashes.view(np.int64)


def _pace(kernels: Table) -> FloatColumn:
    """Of each kernel's step: the time of its free kernels over that of as many of their classes on
    average; 1 without any.
    """
    classes, steps = kernels.group("device", "kernel_class"), kernels.group("device", "step")
    free_us = np.where(kernels.truths("overlapped"), np.nan, kernels["time_us"])
    usual_us = np.where(np.isnan(free_us), np.nan, classes.means(free_us)[classes.code])
    pace = divided(steps.sums(free_us), steps.sums(usual_us), otherwise=1.0)
    return pace[steps.code]


def next_to_communication_us(attribution: Attribution, rows: IntColumn) -> FloatColumn:
    """How much of each event overlaps communication of its device, or of the process on a CPU
    timeline.
    """
    events = attribution.events
    communicates = attribution.rows(*COMMUNICATION_KINDS)
    overlap_us = np.zeros(len(rows))
    for device in np.unique(events.device[rows]).tolist():  # the CPU's have none
        here = events.device[rows] == device
        of_device = communicates & attribution.occupies(device)
        communication = intervals.of_events(events, of_device)
        starts, ends = intervals.spans(events, rows[here]).T
        overlap_us[here] = intervals.lengths_within(communication, starts, ends)
    return np.where(overlap_us > 1e-6, overlap_us, 0.0)


def _is_leaf(events: EventTable) -> BoolColumn:
    """Operators in which no other operator of their thread begins."""
    leaf = events.operators
    rows = np.flatnonzero(leaf)
    rows = rows[np.lexsort((-events.end_us[rows], events.start_us[rows], events.thread[rows]))]
    outer, inner = rows[:-1], rows[1:]
    same_thread = events.thread[inner] == events.thread[outer]
    leaf[outer] = ~(same_thread & (events.start_us[inner] < events.end_us[outer]))
    return leaf
