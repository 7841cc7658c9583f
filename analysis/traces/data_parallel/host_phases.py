"""The phases of dp-host, the stand-in for `nn.DataParallel` on a CPU: from its named ranges, one set per replica."""

from collections.abc import Iterator

import numpy as np

from dpscope.analysis.traces.data_parallel.exposed import exposed_parts
from dpscope.analysis.traces.reading.event_table import Category, EventTable, IntColumn
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.cpu_compute import cpu_compute
from dpscope.analysis.traces.steps.event_kind import Kind
from dpscope.analysis.traces.steps.intervals import Intervals
from dpscope.profiling.records import range_names as phases

_NAMES = {
    phases.SCATTER: "scatter",
    phases.REPLICATE: "replicate",
    phases.PARALLEL_APPLY: "parallel_apply",
    phases.GATHER: "gather",
    phases.GRADIENT_REDUCE: "gradient_reduce",
    phases.OPTIMIZER: "optimizer",
    phases.HOST_TO_DEVICE: "host_to_device",
}
_BACKWARD = "loss_backward"
_OF_STEP = (phases.FORWARD, phases.BACKWARD)


def host_phase_rows(attribution: Attribution) -> Iterator[dict[str, object]]:
    """Rows of `dp_phases` for a CPU timeline; none without a replica's ranges.

    A replica's loss_backward is its scatter and its work in the backward pass. Without a replica it is what forward and
    backward leave when the other phases are taken out.
    """
    events = attribution.events
    if not any("#" in name and phases.base_name(name) in phases.DP_PHASES for name in events.names):
        return
    compute = cpu_compute(attribution)
    annotations_of_step = attribution.by_step(events.is_category(Category.USER_ANNOTATION))
    for step, annotations in enumerate(annotations_of_step):
        named = list(_named(events, annotations))
        by_place = _ranges(events, named)
        passes = intervals.merge(*(by_place.pop((name, None), intervals.EMPTY) for name in _OF_STEP))
        together: dict[str, Intervals] = {}
        for (name, replica), spans in sorted(by_place.items(), key=lambda item: (item[0][1] or 0, item[0][0])):
            together[name] = intervals.merge(together.get(name, intervals.EMPTY), spans)
            if replica is not None:
                yield _row(attribution, step, name, replica, spans)
        taken = intervals.merge(*(spans for name, spans in together.items() if name != _BACKWARD))
        together[_BACKWARD] = intervals.difference(passes, taken)
        copies = [(row, name) for row, name in named if attribution.kind[row] == Kind.HOST_RANGE]
        exposed_us = _exposed_us(attribution, step, copies, compute)
        for name, spans in together.items():
            yield _row(attribution, step, name, None, spans) | {"exposed_us": exposed_us.get(name, 0.0)}


def _ranges(events: EventTable, named: list[tuple[int, str]]) -> dict[tuple[str, int | None], Intervals]:
    """A step's ranges by (phase, replica); forward and backward under their own names."""
    spans: dict[tuple[str, int | None], list[int]] = {}
    for row, name in named:
        _, _, index = events.names[events.name[row]].partition("#")
        spans.setdefault((name, int(index) if index.isdigit() else None), []).append(row)
    return {place: intervals.union(events.start_us[rows], events.end_us[rows]) for place, rows in spans.items()}


def _named(events: EventTable, annotations: IntColumn) -> Iterator[tuple[int, str]]:
    """Those of a step's annotations that are of a phase, with its name: a replica's ranges in backward are loss_backward."""
    bases = [phases.base_name(events.names[code]) for code in events.name[annotations].tolist()]
    starts, ends = events.start_us[annotations], events.end_us[annotations]
    backward = np.array([base == phases.BACKWARD for base in bases], dtype=bool)
    for row, base, start in zip(annotations.tolist(), bases, starts.tolist(), strict=True):
        if base not in _NAMES and base not in _OF_STEP:
            continue
        in_backward = ((starts[backward] <= start) & (start < ends[backward])).any()
        is_replicas = base in (phases.SCATTER, phases.PARALLEL_APPLY)
        yield row, _BACKWARD if is_replicas and in_backward else _NAMES.get(base, base)


def _exposed_us(
    attribution: Attribution, step: int, copies: list[tuple[int, str]], compute: Intervals
) -> dict[str, float]:
    """What of each phase's host copies no replica's compute hides, as `step_breakdown` counts it."""
    events = attribution.events
    spans: dict[str, Intervals] = {}
    for row, name in copies:
        own = np.array([[events.start_us[row], events.end_us[row]]])
        spans[name] = intervals.merge(spans.get(name, intervals.EMPTY), own)
    start, end = float(attribution.steps.start_us[step]), float(attribution.steps.end_us[step])
    return exposed_parts(spans, compute, start, end)


def _row(attribution: Attribution, step: int, phase: str, replica: int | None, spans: Intervals) -> dict[str, object]:
    return {
        "device": None,
        "replica": replica,
        "step": attribution.steps.numbers[step],
        "phase": phase,
        "time_us": intervals.length(spans),
        "exposed_us": None,
        "copied_bytes": None,
        "collective_count": 0,
        "collective_bytes": None,
    }
