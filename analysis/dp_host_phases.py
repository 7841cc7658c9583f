"""The phases of dp-host, the stand-in for `nn.DataParallel` on a CPU: from its named ranges, one set per replica."""

from collections.abc import Iterator

import numpy as np

from dpscope.analysis import intervals
from dpscope.analysis.attribution import Attribution
from dpscope.analysis.event_table import Category
from dpscope.analysis.intervals import Intervals
from dpscope.profiling import phases

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
    for step in range(len(attribution.steps)):
        by_place = _ranges(attribution, step)
        passes = intervals.merge(*(by_place.pop((name, None), intervals.EMPTY) for name in _OF_STEP))
        together: dict[str, Intervals] = {}
        for (name, replica), spans in sorted(by_place.items(), key=lambda item: (item[0][1] or 0, item[0][0])):
            together[name] = intervals.merge(together.get(name, intervals.EMPTY), spans)
            if replica is not None:
                yield _row(attribution, step, name, replica, spans)
        taken = intervals.merge(*(spans for name, spans in together.items() if name != _BACKWARD))
        together[_BACKWARD] = intervals.difference(passes, taken)
        for name, spans in together.items():
            yield _row(attribution, step, name, None, spans)


def _ranges(attribution: Attribution, step: int) -> dict[tuple[str, int | None], Intervals]:
    """A step's ranges by (phase, replica); forward and backward under their own names."""
    events = attribution.events
    annotations = events.is_category(Category.USER_ANNOTATION) & (attribution.step == step)
    backward = np.flatnonzero(annotations & events.has_name(np.array([n == phases.BACKWARD for n in events.names])))
    spans: dict[tuple[str, int | None], list[int]] = {}
    for row in np.flatnonzero(annotations):
        range_name = events.names[events.name[row]]
        base, _, index = range_name.partition("#")
        if base not in _NAMES and base not in _OF_STEP:
            continue
        start = events.start_us[row]
        in_backward = ((events.start_us[backward] <= start) & (start < events.end_us[backward])).any()
        is_replicas = base in (phases.SCATTER, phases.PARALLEL_APPLY)
        name = _BACKWARD if is_replicas and in_backward else _NAMES.get(base, base)
        spans.setdefault((name, int(index) if index.isdigit() else None), []).append(int(row))
    return {place: intervals.union(events.start_us[rows], events.end_us[rows]) for place, rows in spans.items()}


def _row(attribution: Attribution, step: int, phase: str, replica: int | None, spans: Intervals) -> dict[str, object]:
    return {
        "device": None,
        "replica": replica,
        "step": attribution.steps.numbers[step],
        "phase": phase,
        "time_us": intervals.length(spans),
        "copied_bytes": None,
        "collective_count": 0,
        "collective_bytes": None,
    }
