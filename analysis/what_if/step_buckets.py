"""A traced step's all-reduces of gradients: ready, started, ended, and what each would cost alone on its link.

One collective need not fill its link: over a long way it moves a limited number of bytes per round trip, and a second one in
flight then takes nothing from it. Over a short way both share every byte.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dpscope.analysis.costs.collective_streams import run_collectives
from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.traces.reading.event_table import Category, EventTable
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.what_if.gradients import NODE
from dpscope.analysis.what_if.step_profile import SHARES_THE_LINK, Ints, MeasuredBucket, StepProfile
from dpscope.profiling.records import range_names as phases

_CORRECTIONS = 40
_NEAR_US = 0.01  # of a measured end: no further correction
_QUEUED_US = 50.0  # longer than this after it was ready, a collective waited for another
_TRIED = tuple(round(1.0 + step / 20, 2) for step in range(21))
# half the 90% quantile of chi-squared with one degree of freedom: log likelihoods that far apart differ
_OUTSIDE = 1.35
_PROFILES = 16  # enough to estimate it


def split_collectives(rows: Table, backward: tuple[float, float]) -> tuple[Table, Table]:
    """Buckets of gradients (all-reduces that the backward pass launched, see `backward_span`) and other collectives.

    `rows` are a rank's matched collectives in a step with `launch_us`, and `begin_us`, when a server took it up.
    """
    rows = rows.take(np.argsort(rows["launch_us"], kind="stable"))
    launch = rows["launch_us"]
    reduced = rows.words("kind").isin("all_reduce") & (launch >= backward[0]) & (launch <= backward[1])
    return rows.take(reduced), rows.take(~reduced)


def backward_span(events: EventTable, step: tuple[float, float]) -> tuple[float, float]:
    """From a step's first gradient, or the pass's own range, to that range's end or the optimizer's start, by the host's clock.

    All time if the trace shows none of them.
    """
    inside = (events.start_us >= step[0]) & (events.start_us < step[1])
    inside &= events.is_category(Category.CPU_OP, Category.USER_ANNOTATION)

    def rows(*prefixes: str) -> Ints:
        return np.flatnonzero(inside & events.named(lambda name: name.startswith(prefixes)))

    passes, nodes = rows(phases.BACKWARD), rows(NODE)
    begins = events.start_us[nodes if len(nodes) else passes]
    ends = events.end_us[passes] if len(passes) else events.start_us[rows(phases.OPTIMIZER, "Optimizer.step#")]
    first = float(begins.min()) if len(begins) else -math.inf
    last = float(ends.max()) if len(ends) else math.inf
    return first, last


def measured_buckets(rows: Table, start_us: float) -> list[MeasuredBucket]:
    """Of the rows of `split_collectives`, times from the step's start; the cost is that of one alone on the link."""
    if not len(rows):
        return []
    begin, end, wait = (
        rows["begin_us"],
        rows["start_us"] + rows["duration_us"],
        rows.real("wait_us"),
    )
    ready = np.fmin(rows["ready_us"], begin)
    bounded = np.isnan(wait)
    moving = np.minimum(begin + np.where(bounded, 0.0, wait), end)
    times = (one - start_us for one in (ready, begin, end))
    columns = (
        rows.real("bytes"),
        *times,
        _lateness(ready, begin, moving),
        _alone(moving, end),
        bounded,
    )
    return [MeasuredBucket(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]


def _alone(begin: Floats, end: Floats) -> Floats:
    """Each transfer's time had it been alone, where those in flight share alike: the integral of 1 / their number."""
    edges = np.unique(np.concatenate((begin, end)))
    lengths, middles = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    inside = (begin[:, None] <= middles) & (middles < end[:, None])
    number = np.maximum(inside.sum(axis=0), 1)
    return np.asarray((inside * (lengths / number)).sum(axis=1))


def _lateness(ready: Floats, begin: Floats, moving: Floats) -> Floats:
    """How long after this rank the last one was ready. A collective that queued on both ranks gives only an upper bound."""
    late, before = [], 0.0
    for queued, seen in zip((begin - ready).tolist(), np.maximum(0.0, moving - begin).tolist(), strict=True):
        waited = queued if queued > _QUEUED_US else 0.0
        before = min(before, waited) if waited and not seen else seen + waited
        late.append(before)
    return np.array(late)


def gaps(measured: Sequence[MeasuredBucket]) -> tuple[float, float]:
    """Median microseconds from ready to start of what found its stream free, and from the end before to the start of the rest."""
    free: list[float] = []
    queued: list[float] = []
    before = -math.inf
    for one in measured:
        if one.ready_us >= before:
            free.append(one.start_us - one.ready_us)
        else:
            queued.append(one.start_us - before)
        before = max(before, one.end_us)
    return _usual_gap(free), _usual_gap(queued)


def _usual_gap(gaps_us: Sequence[float]) -> float:
    return max(0.0, float(np.median(gaps_us))) if gaps_us else 0.0


def as_replayed(measured: list[MeasuredBucket], start_gap_us: float, turn_us: float) -> tuple[MeasuredBucket, ...]:
    """The buckets of one stream with the cost at which a replay ends each where it was measured to end."""
    buckets, free = [], -math.inf
    for one in measured:
        start = max(one.ready_us + start_gap_us + one.late_us, free)
        buckets.append(replace(one, cost_us=max(0.0, one.end_us - start)))
        free = max(start, one.end_us) + turn_us
    return tuple(buckets)


def shared_as_replayed(
    measured: Sequence[MeasuredBucket],
    start_gap_us: float,
    servers: int,
    slowdown: float = SHARES_THE_LINK,
) -> tuple[MeasuredBucket, ...]:
    """The buckets of several servers with costs at which a replay ends each as nearly as it can where it was measured to end.

    The cost of one moves the ends of those in flight with it, so the costs are corrected iteratively by what the replay misses.
    """
    ready = [one.ready_us + start_gap_us + one.late_us for one in measured]
    costs = np.array([one.cost_us for one in measured])
    wanted = np.array([one.end_us for one in measured])
    best, least = costs, math.inf
    for _ in range(_CORRECTIONS):
        _, ends = run_collectives(ready, [0.0] * len(ready), costs.tolist(), servers, slowdown)
        off = wanted - np.array(ends)
        if np.abs(off).max(initial=0.0) < least:
            best, least = costs, float(np.abs(off).max(initial=0.0))
        if least < _NEAR_US:
            break
        costs = np.maximum(costs + off / servers, 0.0)
    return tuple(replace(one, cost_us=float(cost)) for one, cost in zip(measured, best, strict=True))


def at_slowdown(profile: StepProfile, slowdown: float) -> StepProfile:
    """The profile with its buckets' costs alone, if two in flight take so many times as long."""
    if profile.servers == 1:
        return profile
    buckets = shared_as_replayed(profile.buckets, profile.start_gap_us, profile.servers, slowdown)
    return replace(profile, buckets=buckets, slowdown=slowdown)


def slowdown_of(profiles: Sequence[StepProfile]) -> tuple[float, float, float] | None:
    """The factor at which buckets of one size cost the same alone, however long others were in flight, and its 90% interval.

    Of all factors from 1 (none slows another) to 2 (they share every byte) the one with the least mean absolute deviation, in
    logarithms, from a line through the sizes. None where the link shared is as likely, or nothing overlaps.
    """
    known = [one for one in profiles if one.servers > 1 and buckets_overlap(one)]
    chosen = known[:: max(1, -(-len(known) // _PROFILES))]
    if not chosen:
        return None
    tried = [[bucket for one in chosen for bucket in at_slowdown(one, by).buckets] for by in _TRIED]
    off = np.array([_unlike(buckets) for buckets in tried])
    ranks = len({one.rank for one in chosen})  # which saw the same collectives
    less_likely = sum(len(one.buckets) for one in chosen) / ranks * np.log(off / off.min())
    as_likely = np.array(_TRIED)[less_likely <= _OUTSIDE]
    if SHARES_THE_LINK in as_likely:
        return None
    return _TRIED[int(off.argmin())], float(as_likely.min()), float(as_likely.max())


def buckets_overlap(profile: StepProfile) -> bool:
    """Whether a bucket started before the end of the one before."""
    return any(later.start_us < earlier.end_us for earlier, later in pairwise(profile.buckets))


def _unlike(buckets: Sequence[MeasuredBucket]) -> float:
    """Mean absolute deviation, in logarithms, of costs from a line without negative terms through each size's median cost."""
    from scipy.optimize import nnls

    sizes = np.array([one.bytes for one in buckets])
    costs = np.maximum(np.array([one.cost_us for one in buckets]), 1.0)
    different = np.unique(sizes)
    medians = np.array([np.median(costs[sizes == one]) for one in different])
    columns = np.stack((np.ones(len(different)), different / different.max()), axis=1)
    (start, slope), _ = nnls(columns / medians[:, None], np.ones(len(different)))
    return max(1e-6, float(np.abs(np.log(costs / (start + slope * sizes / different.max()))).mean()))
