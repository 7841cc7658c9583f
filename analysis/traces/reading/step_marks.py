"""Which ranges of a trace are its steps, where the profiler marked none or others are requested."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    Category,
    EventTable,
    FloatColumn,
    IntColumn,
    Trace,
)
from dpscope.analysis.traces.reading.nsys_collectives import CALL
from dpscope.profiling.records.finding import counted, grouped, listed
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError

_STEP = "ProfilerStep#"
_LEAST_SHARE = 0.9  # of what is launched while the ranges repeat
_NAMED = 5  # ranges that a message lists
_LAUNCHES = re.compile(r"Launch(?!HostFunc)")
_NUMBER = re.compile(r"\d{1,18}")


def with_steps(trace: Trace, steps_by: str | None) -> Trace:
    """The trace with the ranges that are its steps named as torch.profiler names them.

    Those called `steps_by`, alone or with a number; else, of a trace of another program without
    torch.profiler's, those that repeat at the top level of a thread and hold most of what is
    launched. Raises DpscopeError where no range is called `steps_by`.
    """
    events = trace.events
    annotations = events.is_category(Category.USER_ANNOTATION)
    rows = np.flatnonzero(annotations & ~events.named(CALL.match))
    if steps_by is not None:
        return _marked(trace, _requested(trace, rows, steps_by))
    if trace.format == Trace.format or _marked_by_profiler(events):
        return trace
    chosen = _repeating(events, rows)
    if not len(chosen):
        return trace
    name = _base(_name(events, chosen[0]))
    ranges = counted(len(chosen), "range")
    finding = TraceCode.STEPS_BY_RANGE.finding(
        f"{trace.source}: its {ranges} {name!r} are the steps"
    )
    return replace(_marked(trace, chosen), findings=(*trace.findings, finding))


def _marked_by_profiler(events: EventTable) -> bool:
    return any(name.startswith(_STEP) for name in events.names)


def _name(events: EventTable, row: int) -> str:
    name: str = events.names[events.name[row]]
    return name


def _base(name: str) -> str:
    """The name without numbers and what separates them."""
    return _NUMBER.sub("", name).strip(" \t_#:=-()[]")


def _marked(trace: Trace, rows: IntColumn) -> Trace:
    """With these ranges named ProfilerStep#."""
    events = trace.events
    name = events.name.copy()
    name[rows] = len(events.names) + np.arange(len(rows))
    numbers = _step_numbers([_name(events, row) for row in rows])
    events = replace(
        events, name=name, names=[*events.names, *(f"{_STEP}{number}" for number in numbers)]
    )
    return replace(trace, events=events)


def _step_numbers(names: list[str]) -> list[int]:
    """The last number of each name where these ascend, else the order."""
    numbers = []
    for name in names:
        found = _NUMBER.findall(name)
        numbers.append(int(found[-1]) if found else 0)
    ascending = sorted(set(numbers)) == numbers
    return numbers if ascending else list(range(len(names)))


def _requested(trace: Trace, rows: IntColumn, steps_by: str) -> IntColumn:
    """Of the thread that has most ranges of this name those in no other."""
    events = trace.events
    base = _base(steps_by)
    is_called = [_base(name) == base for name in events.names]
    called = rows[np.array(is_called, dtype=np.bool_)[events.name[rows]]]
    if not len(called):
        counts = Counter(_base(_name(events, row)) for row in rows)
        frequent = listed([name for name, _ in counts.most_common(_NAMED)])
        raise DpscopeError(
            f"--steps-by {steps_by}: {trace.source} holds no range of this name; the most frequent "
            f"are {frequent or 'none'}"
        )
    threads, counts_of = np.unique(events.thread[called], return_counts=True)
    own_thread = threads[counts_of.argmax()]
    return _outermost(events, called[events.thread[called] == own_thread])


def _outermost(events: EventTable, rows: IntColumn) -> IntColumn:
    """Of the ranges of a thread those inside of no other, in order."""
    # at one time the longest first, which holds the others
    order = np.lexsort((-events.duration_us[rows], events.start_us[rows]))
    rows = rows[order]
    reach = np.maximum.accumulate(events.end_us[rows])
    begins = events.start_us[rows]
    is_outside = np.ones(len(rows), dtype=np.bool_)
    is_outside[1:] = begins[1:] >= reach[:-1]
    return rows[np.flatnonzero(is_outside)]


def _repeating(events: EventTable, rows: IntColumn) -> IntColumn:
    """The ranges alike in name at the top level of a thread that hold the largest share of what is
    launched from the first to the last of them; none where that is not nearly all.
    """
    calls = events.is_category(Category.RUNTIME)
    calls &= events.named(_LAUNCHES.search)
    launched_us = np.sort(events.start_us[calls])
    best = rows[:0]
    best_share = _LEAST_SHARE
    for thread in np.unique(events.thread[rows]).tolist():
        of_thread = rows[events.thread[rows] == thread]
        top_level = _outermost(events, of_thread).tolist()
        named = ((_base(_name(events, row)), row) for row in top_level)
        for alike in grouped(named).values():
            if len(alike) < 2:
                continue
            share = _share_inside(events, alike, launched_us)
            # of ranges that hold as much, those that divide it further
            if (share, len(alike)) > (best_share, len(best)):
                best = np.array(alike)
                best_share = share
    return best


def _share_inside(events: EventTable, rows: list[int], launched_us: FloatColumn) -> float:
    """Of what is launched from the first to the last of these ranges."""
    begins = np.searchsorted(launched_us, events.start_us[rows])
    ends = np.searchsorted(launched_us, events.end_us[rows])
    launched = int(ends[-1] - begins[0])
    if not launched:
        return 0.0
    inside = int((ends - begins).sum())
    return inside / launched
