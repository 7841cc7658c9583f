"""The profiles of a job: every whole step of every rank whose trace was read, and how much its collectives slow each other.

One collective need not fill its link: over a long way it moves a limited number of bytes per round trip, and a second one in
flight then takes nothing from it. Over a short way both share every byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.traces.ranks.jobs import find_jobs, windows_of
from dpscope.analysis.traces.ranks.kept_tables import code_digest, made_once
from dpscope.analysis.traces.ranks.matching import RankOrigin, match_windows
from dpscope.analysis.traces.ranks.rank_tables import read_attributed, trace_identity
from dpscope.analysis.traces.ranks.trace_analysis import require_one_job
from dpscope.analysis.traces.ranks.whole_steps import far_longer
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, RUN_LIMITS, ReadLimits
from dpscope.analysis.traces.reading.table import Table, joined
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.breakdown import step_table
from dpscope.analysis.traces.steps.collectives import collective_table
from dpscope.analysis.traces.steps.event_kind import Kind
from dpscope.analysis.traces.steps.gloo import created_us, in_flight
from dpscope.analysis.what_if.step_profile import (
    INTERPOLATED,
    NEVER,
    SHARES_THE_LINK,
    UNKNOWN,
    Gradients,
    MeasuredBucket,
    OtherCollective,
    StepProfile,
    Works,
    bucket_bytes,
)
from dpscope.analysis.what_if.traced_step import (
    PARTS,
    backward_span,
    bucket_ends_of,
    device_profile,
    gaps,
    measured_buckets,
    ready_gradients,
    shared_as_replayed,
    split_collectives,
)
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError

_TRIED = tuple(round(1.0 + step / 20, 2) for step in range(21))
# half the 90% quantile of chi-squared with one degree of freedom: log likelihoods that far apart differ
_OUTSIDE = 1.35
_PROFILES = 16  # enough to estimate it


def at_slowdown(profile: StepProfile, slowdown: float) -> StepProfile:
    """The profile with its buckets' costs alone, if two in flight take so many times as long."""
    if profile.servers == 1:
        return profile
    buckets = shared_as_replayed(list(profile.buckets), profile.start_gap_us, profile.servers, slowdown)
    return replace(profile, buckets=tuple(buckets), slowdown=slowdown)


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


_CODE = (Path(__file__).parent, Path(__file__).parents[1] / "costs")  # besides what reads traces


@dataclass(frozen=True)
class JobProfile:
    """`profiles` of one job; `kinds` of collectives it ran; `devices` None where no trace has the world size."""

    profiles: tuple[StepProfile, ...]
    devices: int | None
    kinds: frozenset[str]
    lacks: tuple[str, ...]

    def at_slowdown(self, slowdown: float) -> "JobProfile":
        """With costs alone, if each of two collectives in flight takes so many times as long."""
        return replace(self, profiles=tuple(at_slowdown(one, slowdown) for one in self.profiles))


def job_profile(
    paths: Sequence[Path],
    parameter_bytes: Sequence[int] = (),
    gradient_bytes: float | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> JobProfile:
    """Read the traces of one job. Raises DpscopeError where none shows a whole step, or a file cannot be read."""
    read = [(path, one) for path in paths for one in read_attributed(path, limits)]
    found = find_jobs([trace_identity(one) for _, one in read], [path for path, _ in read])
    require_one_job(found.jobs, paths, "a prediction")
    attributions = [read[index][1] for index in found.jobs[""]]
    tables = [_with_times(one) for one in attributions]
    windows = windows_of([trace_identity(one) for one in attributions])
    trace = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    traces = [one.trace for one in attributions]
    origins = [RankOrigin(one.rank if one.rank is not None else -1, one.zero_ns, one.host) for one in traces]
    matched = match_windows(joined(tables), trace, windows, origins).table.frame
    bounds = np.cumsum([0, *map(len, tables)])
    profiles = []
    for place, attribution in enumerate(attributions):
        rows = matched.iloc[bounds[place] : bounds[place + 1]]
        profiles += _of_rank(attribution, rows, parameter_bytes)
    if gradient_bytes is not None:
        profiles = [with_bytes(one, gradient_bytes) for one in profiles]
    if not profiles:
        raise DpscopeError(f"{paths[0]}: no whole step to replay; trace two steps or more with profiler.step()")
    kinds = frozenset(matched["kind"].dropna().astype(str)) if len(matched) else frozenset()
    sizes = [one.world_size for one in traces if one.world_size]
    largest = matched["group_size"].max() if len(matched) else pd.NA
    devices = sizes[0] if sizes else int(largest) if pd.notna(largest) else None
    lacks = [finding.message for finding in found.of("")]
    if devices is None:
        lacks.append("the number of devices: give --base-devices")
    if (missing := (devices or 1) - len(attributions)) > 0:
        ranks = counted(devices or 1, "rank")
        lacks.append(f"{missing} of {ranks}: transfers are upper bounds that hold waiting")
    if any(one.buckets and one.gradients.known == INTERPOLATED for one in profiles):
        lacks.append("sizes of gradients (record_shapes=True records them): bytes are spread evenly within each bucket")
    return JobProfile(tuple(profiles), devices, kinds, tuple(lacks))


def run_profile(paths: Sequence[Path], parameter_bytes: Sequence[int]) -> JobProfile:
    """`job_profile` of a run's traces, which are read for it once: the profile is kept in the user's cache folder."""
    what = f"job_profile {code_digest(_CODE)} {list(parameter_bytes)}"
    content = made_once(
        paths,
        what,
        lambda: msgspec.msgpack.encode(job_profile(paths, parameter_bytes, limits=RUN_LIMITS), enc_hook=_plain),
    )
    return msgspec.msgpack.decode(
        content, type=JobProfile, dec_hook=lambda _, stored: np.frombuffer(stored[1], stored[0])
    )


def _plain(value: Any) -> object:
    return (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value.item()


def with_bytes(profile: StepProfile, gradient_bytes: float) -> StepProfile:
    """The profile with these bytes spread evenly over its buckets if its trace shows none; else unchanged."""
    if profile.gradients.known != UNKNOWN or not profile.buckets:
        return profile
    share = gradient_bytes / profile.gradients.total_bytes
    spread = Gradients(profile.gradients.bytes * share, profile.gradients.after, INTERPOLATED)
    sizes = bucket_bytes(spread, profile.bucket_ends)
    buckets = tuple(replace(one, bytes=size) for one, size in zip(profile.buckets, sizes, strict=True))
    return replace(profile, gradients=spread, buckets=buckets)


def _with_times(attribution: Attribution) -> Table:
    """The collectives of one rank with `launch_us` (on the CPU: when created) and `begin_us`, when a server took them up."""
    events = attribution.events
    rows = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    when = attribution.launch_us if attribution.on_device else events.start_us
    launched = np.where(np.isfinite(when[rows]), when[rows], events.start_us[rows])
    rows = rows[np.argsort(launched, kind="stable")]  # as `collectives` orders them
    if attribution.on_device:
        launch, begin = np.sort(launched, kind="stable"), events.start_us[rows]
    else:
        launch, begin = created_us(events, rows), in_flight(events, rows)[:, 0]
        launch = np.where(np.isfinite(launch), launch, begin)
    return collective_table(attribution).assign(launch_us=launch, begin_us=begin)


def _of_rank(attribution: Attribution, rows: pd.DataFrame, parameter_bytes: Sequence[int]) -> list[StepProfile]:
    every = step_table(attribution)
    steps = every.take(~far_longer(every)).frame
    make = device_profile if attribution.on_device else cpu_profile
    found = []
    for row in steps.to_dict("records"):
        alone = len(steps) == 1
        if pd.isna(row["step"]) or (row["partial_window"] and not alone) or pd.isna(row["step_us"]):
            continue
        index = attribution.steps.numbers.index(int(row["step"]))
        mine = rows[rows["step"].eq(row["step"]).fillna(False).to_numpy(dtype=bool)]
        exposed = float(row["exposed_us"]) if pd.notna(row["exposed_us"]) else float("nan")
        found.append(make(attribution, index, mine, exposed, parameter_bytes))
    return found


GLOO_WORKERS = 2  # ProcessGroupGloo::Options in torch, threads = 2 x network devices, of which torch takes one


def cpu_profile(
    attribution: Attribution, step: int, rows: pd.DataFrame, exposed_us: float, parameter_bytes: Sequence[int] = ()
) -> StepProfile:
    """The profile of one step; `rows` are its collectives with `launch_us` (created) and `begin_us` (taken up).

    Between two gradients the CPU computes all the time, but for a collective before the first gradient, which it waits for.
    """
    began, ended = float(attribution.steps.start_us[step]), float(attribution.steps.end_us[step])
    events = attribution.events
    backward = backward_span(events, (began, ended))
    reduced, other_rows = split_collectives(rows, backward)
    measured = measured_buckets(reduced, began)
    sizes, created = [one.bytes for one in measured], reduced["launch_us"].tolist()
    found = ready_gradients(events, (began, ended), created, sizes, parameter_bytes)
    # other collectives before the backward pass: what comes later holds the CPU up only if its work shows it
    waited_for = other_rows[other_rows["launch_us"] < min([*created, backward[1]])]
    blocked, others = _before_gradients(waited_for, began)
    ready, parts, known = (found.end_us - began, found.bytes, found.known) if found else _parts(created, sizes, began)
    ready = np.maximum.accumulate(np.maximum(ready, blocked[1])) if len(ready) else ready
    last = max([float(ready[-1]) if len(ready) else blocked[1], *(one.end_us for one in measured)])
    tail, gap_us = max(0.0, ended - began - last), gaps(measured)[0]
    durations = np.concatenate(([blocked[0]], np.diff(ready, prepend=blocked[1]), [tail]))
    count = len(durations)
    works = Works(
        host_us=np.zeros(count),
        device_us=durations,
        launch_gap_us=np.full(count, NEVER),
        order_gap_us=np.zeros(count),
        sync_us=np.full(count, np.nan),
        needs=np.append(np.zeros(count - 1), 1.0),
        by_samples=np.arange(count) < count - 1,
    )
    return StepProfile(
        rank=attribution.trace.rank,
        step=attribution.steps.numbers[step],
        step_us=ended - began,
        works=works,
        gradients=Gradients(parts, np.arange(2, 2 + len(parts), dtype=np.int64), known),
        buckets=tuple(shared_as_replayed(measured, gap_us, GLOO_WORKERS)),
        others=tuple(others),
        first_host_us=NEVER,
        bucket_ends=bucket_ends_of(found, len(measured)),
        launch_lag_us=0.0,
        start_gap_us=gap_us,
        turn_us=0.0,
        exposed_us=exposed_us,
        servers=GLOO_WORKERS,
    )


def _before_gradients(rows: pd.DataFrame, began: float) -> tuple[tuple[float, float], list[OtherCollective]]:
    """When the CPU began and ended to wait for collectives before the first gradient, and these, one after another."""
    if rows.empty:
        return (0.0, 0.0), []
    created = rows["launch_us"].to_numpy(dtype=float) - began
    ends = (rows["start_us"] + rows["duration_us"]).to_numpy(dtype=float) - began
    reach, found = max(0.0, float(created.min())), []
    first = reach
    for row, end in zip(rows.to_dict("records"), ends, strict=True):
        cost = max(0.0, float(end) - reach)
        reach = max(reach, float(end))
        size = float(row["bytes"]) if pd.notna(row["bytes"]) else None
        found.append(OtherCollective(str(row["kind"]), size, 1, cost, blocks=True))
    return (first, reach), found


def _parts(created: Sequence[float], sizes: Sequence[float], began: float) -> tuple[Floats, Floats, str]:
    """Without gradients: each bucket's bytes in equal parts over the time since the bucket before."""
    ready: list[float] = []
    before = created[0] - began if created else 0.0
    for when in created:
        end = when - began
        ready += [before + (end - before) * (part + 1) / PARTS for part in range(PARTS)]
        before = end
    parts = np.repeat(np.array(sizes, dtype=float) / PARTS, PARTS)
    return np.array(ready), parts, INTERPOLATED
