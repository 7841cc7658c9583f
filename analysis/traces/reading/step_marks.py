"""Which ranges of a trace are its steps, where the profiler marked none or others are requested."""

import re
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np

from dpscope.analysis.traces.reading.event_table import EventTable, FloatColumn, IntColumn, Trace
from dpscope.analysis.traces.reading.nsys_collectives import CALL
from dpscope.profiling.records.finding import counted, listed
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
    rows = np.flatnonzero(events.annotations & ~events.named(CALL.match))
    if steps_by is not None:
        return _marked(trace, _requested(trace, rows, steps_by))
    # torch.profiler marks its steps, or there are none
    if trace.format == Trace.format or events.named(_is_step).any():
        return trace
    chosen = _repeating(events, rows)
    if not len(chosen):
        return trace
    name = _base(events.name_of(chosen[0]))
    ranges = counted(len(chosen), "range")
    message = f"{trace.source}: its {ranges} {name!r} are the steps"
    finding = TraceCode.STEPS_BY_RANGE.finding(message)
    return replace(_marked(trace, chosen), findings=(*trace.findings, finding))


def _is_step(name: str) -> bool:
    return name.startswith(_STEP)


def _base(name: str) -> str:
    """The name without numbers and what separates them."""
    return _NUMBER.sub("", name).strip(" \t_#:=-()[]")


def _marked(trace: Trace, rows: IntColumn) -> Trace:
    """With these ranges named ProfilerStep#."""
    events = trace.events
    numbers = _step_numbers([events.name_of(row) for row in rows])
    steps = [f"{_STEP}{number}" for number in numbers]
    name = events.name.copy()
    # the names of the steps come after all others
    name[rows] = len(events.names) + np.arange(len(rows))
    events = replace(events, name=name, names=events.names + steps)
    return replace(trace, events=events)


def _step_numbers(names: list[str]) -> list[int]:
    """The last number of each name where these ascend, else the order."""
    numbers = []
    for name in names:
        in_name = _NUMBER.findall(name)
        numbers.append(int(in_name[-1]) if in_name else 0)
    ascending = sorted(set(numbers)) == numbers
    return numbers if ascending else list(range(len(names)))


def _requested(trace: Trace, rows: IntColumn, steps_by: str) -> IntColumn:
    """Of the thread that has most ranges of this name those in no other."""
    events = trace.events
    base = _base(steps_by)
    # with or without numbers, on any thread
    called = rows[events.named(lambda name: _base(name) == base)[rows]]
    if not len(called):
        counts = Counter(_base(events.name_of(row)) for row in rows)
        most = counts.most_common(_NAMED)
        frequent = listed([name for name, _ in most])
        raise DpscopeError(
            f"{trace.source} holds no range named {steps_by} (--steps-by); its most frequent ranges are "
            f"{frequent or 'none'}"
        )
    # several threads may be in a step at once: the one with most ranges counts
    threads = events.thread[called]
    numbers, counts_of = np.unique(threads, return_counts=True)
    main_thread = numbers[counts_of.argmax()]
    return events.outermost(called[threads == main_thread])


def _repeating(events: EventTable, rows: IntColumn) -> IntColumn:
    """The ranges alike in name at the top level of a thread that hold the largest share of what is
    launched from the first to the last of them; none where that is not nearly all.
    """
    launches = events.calls & events.named(_LAUNCHES.search)
    launched_us = np.sort(events.start_us[launches])
    best = rows[:0]
    best_share = _LEAST_SHARE
    alike_rows: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in events.outermost(rows).tolist():
        thread = int(events.thread[row])
        name = _base(events.name_of(row))
        alike_rows[thread, name].append(row)
    for alike in alike_rows.values():
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
    # how many were launched before each range begins, and before it ends
    begins = np.searchsorted(launched_us, events.start_us[rows])
    ends = np.searchsorted(launched_us, events.end_us[rows])
    inside = int((ends - begins).sum())
    launched = int(ends[-1] - begins[0])
    return inside / max(launched, 1)
