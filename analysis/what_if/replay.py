"""A traced step run again under other conditions: the same works, other buckets, costs, lateness.

Host and device go through their works; a bucket is ready when its last gradient is, its all-reduce starts when the last rank
is ready and a server is free; what needs a bucket (the optimizer, the copies out of it) waits for its end; the next forward waits
for the optimizer. Two steps are run and the second is read, so that a host that runs ahead is in steady state. The parts of a
replayed step are those of the ledger of a traced one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dpscope.analysis.costs.collective_streams import run_collectives
from dpscope.analysis.what_if.step_profile import (
    NEVER,
    NO_WORK,
    StepProfile,
    Stretch,
    joined,
    stretches,
)

Span = tuple[float, float]
"""Start and end, microseconds from the step's start."""


class StepParts(NamedTuple):
    """Microseconds; the parts add up to the replayed step. See `Ledger` for what each is."""

    compute: float = 0.0
    exposed_wait: float = 0.0
    exposed_transfer: float = 0.0
    exposed_other: float = 0.0
    idle: float = 0.0


def exposed_split(
    exposed: Sequence[Span],
    transfers: Sequence[Span],
    waits: Sequence[Span],
    others: Sequence[Span],
) -> tuple[float, float, float]:
    """Exposed wait, transfer and other: a moment counts as transfer, else as wait, else as other, else as none of them.

    `exposed` are the stretches in which the device waits for communication.

    >>> exposed_split([(10.0, 50.0)], [(20.0, 30.0)], [(5.0, 25.0)], [(28.0, 40.0)])  # 10-20 waits, 20-30 moves, 30-40 is other
    (10.0, 10.0, 10.0)
    """
    transferring = _union(transfers)
    in_wait = _union([*transferring, *waits])
    in_flight = _union([*in_wait, *others])
    moved, waited, every = (_shared(exposed, spans) for spans in (transferring, in_wait, in_flight))
    return waited - moved, moved, every - waited


def _union(spans: Iterable[Span]) -> list[Span]:
    """The same stretches of time without overlaps, in order."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _shared(exposed: Sequence[Span], spans: Sequence[Span]) -> float:
    """How long both last; each list is in order and without overlaps."""
    total, place = 0.0, 0
    for start, end in exposed:
        while place < len(spans) and spans[place][1] <= start:
            place += 1
        at = place
        while at < len(spans) and spans[at][0] < end:
            total += min(end, spans[at][1]) - max(start, spans[at][0])
            at += 1
    return total


@dataclass(frozen=True)
class Conditions:
    """What a step is run under. Buckets by the index of their last gradient; per bucket latency, transfer and the lateness of the
    last rank; the cost of every other collective. `passes` forward and backward passes make a step, the last one reduces.

    `gamma` is what compute loses per time that a collective runs next to it; `slowdown` as in `run_collectives`.
    """

    bucket_ends: tuple[int, ...]
    latency_us: tuple[float, ...]
    transfer_us: tuple[float, ...]
    late_us: tuple[float, ...]
    other_us: tuple[float, ...]
    passes: int = 1
    gamma: float = 0.0
    slowdown: float = 2.0


@dataclass(frozen=True)
class Replayed:
    """The steady step: its time and the parts that add up to it."""

    step_us: float
    parts: StepParts
    entered: tuple[float, float, float]  # host, device and link at its start

    @property
    def exposed_us(self) -> float:
        """All exposed communication."""
        return self.parts.exposed_wait + self.parts.exposed_transfer + self.parts.exposed_other


@dataclass(frozen=True)
class Compute:
    """What is done to the compute of a step: works that samples make longer, all kernels, the host's own time; each a factor."""

    by_samples: float = 1.0
    device: float = 1.0
    host: float = 1.0


@dataclass(frozen=True)
class Point:
    """Between two stretches of works: what happens there, and the stretch that follows."""

    buckets: tuple[int, ...]  # that are ready
    others: tuple[int, ...]  # other collectives that are launched
    needs: float | None  # the share of the gradients' bytes that the next work waits for
    launch_us: float  # from where the host is to when its launch would let the next work start
    following: Stretch
    compute_us: float  # of the works in that stretch


AS_IT_WAS = Compute()


class Prepared:
    """A profile under one compute scale, its works joined between the points where anything else happens."""

    def __init__(self, profile: StepProfile, compute: Compute = AS_IT_WAS) -> None:
        works = profile.works
        device_us = works.device_us * compute.device * np.where(works.by_samples, compute.by_samples, 1.0)
        self.profile = profile
        self.launches_us = [*(works.host_us * compute.host + works.launch_gap_us).tolist(), NEVER]
        self._stretches = stretches(works, device_us, compute.host)
        self._reach_us = np.concatenate(([0.0], np.cumsum(device_us))).tolist()
        self._needs = {int(at): float(works.needs[at]) for at in np.flatnonzero(np.diff(works.needs, prepend=0.0) > 0)}
        self.compute_us = self._reach_us[-1]
        after = profile.gradients.after
        self._last_gradient = int(after[-1]) if len(after) else 0
        self.one_pass = reduce(joined, self._stretches[: self._last_gradient], NO_WORK)  # without any collective
        self.one_pass_compute_us = self._reach_us[self._last_gradient]
        reach = np.cumsum(profile.gradients.bytes)
        self.reach = (reach / reach[-1]).tolist() if len(reach) else []
        self._points: dict[tuple[int, ...], list[Point]] = {}

    def points(self, bucket_ends: tuple[int, ...]) -> list[Point]:
        """The step under these buckets; kept, as scenarios differ in costs more often than in buckets."""
        if bucket_ends not in self._points:
            self._points[bucket_ends] = self._cut(bucket_ends)
        return self._points[bucket_ends]

    def _cut(self, bucket_ends: tuple[int, ...]) -> list[Point]:
        after, last = self.profile.gradients.after.tolist(), len(self._stretches)
        buckets = _places([after[end] for end in bucket_ends])
        others = _places([one.after for one in self.profile.others])
        cuts = sorted({0, *buckets, *others, *self._needs})
        return [
            Point(
                buckets=buckets.get(begin, ()),
                others=others.get(begin, ()),
                needs=self._needs.get(begin),
                launch_us=self.launches_us[begin],
                following=reduce(joined, self._stretches[begin:end], NO_WORK),
                compute_us=self._reach_us[end] - self._reach_us[begin],
            )
            for begin, end in pairwise([*cuts, last])
        ]


def _places(values: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The places at which each value stands."""
    places: dict[int, tuple[int, ...]] = {}
    for place, value in enumerate(values):
        places[value] = (*places.get(value, ()), place)
    return places


def replay(prepared: Prepared, conditions: Conditions) -> Replayed:
    """The second of two steps in a row."""
    entered = (prepared.profile.first_host_us, 0.0, NEVER)
    if prepared.profile.on_device:  # else nothing runs ahead, and the first step is as the second
        first = _Step(prepared, conditions, *entered)
        began = first.step_us
        entered = (first.host - began, first.device - began, first.free - began)
    step = _Step(prepared, conditions, *entered)
    return Replayed(step.step_us, step.parts(), entered)


def replayed_from(prepared: Prepared, conditions: Conditions, entered: tuple[float, float, float]) -> float:
    """The time of one step that is entered so: where the host is, when the device ended the step before and when the link did."""
    return _Step(prepared, conditions, *entered).step_us


class _Step:
    """One step, run in order of launch; times from its start."""

    def __init__(self, prepared: Prepared, conditions: Conditions, host: float, device: float, free: float) -> None:
        self.prepared, self.conditions, self.profile = prepared, conditions, prepared.profile
        self.host, self.device, self.free = host, device, free
        self.contention_us = 0.0
        self.exposed: list[Span] = []  # stretches in which the device waits for communication
        self.ready: list[float] = []  # when this rank's buckets are
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.other_spans: list[Span] = []
        self.other_free = NEVER  # collectives that are no buckets are on a separate stream
        self.waited = 0  # buckets whose end the device has waited for
        self.busy_from = self.busy_to = NEVER
        for _ in range(conditions.passes - 1):
            self._go(prepared.one_pass, prepared.one_pass_compute_us)
        for point in prepared.points(conditions.bucket_ends):
            for bucket in point.buckets:
                self._bucket_ready(bucket)
            for place in point.others:
                self._other(place, point.launch_us)
            if point.needs is not None:
                self._wait_for(point.needs, point.launch_us)
            self._go(point.following, point.compute_us)
        self._schedule()
        self.free = max([self.free, self.other_free, *self.ends])
        self.step_us = max(self.device, self.free)

    def _go(self, stretch: Stretch, compute_us: float) -> None:
        hh, dh, hd, dd = stretch
        host, device = self.host, self.device
        self.host = max(host + hh, device + dh)
        self.device = max(host + hd, device + dd)
        if self.conditions.gamma and self.busy_to > device:
            overlap_us = max(0.0, min(self.device, self.busy_to) - max(device, self.busy_from))
            # the rest of the stretch is idle
            computing = min(1.0, compute_us / (self.device - device)) if overlap_us else 0.0
            slower_us = self.conditions.gamma * overlap_us * computing
            self.contention_us += slower_us
            self.device += slower_us

    def _bucket_ready(self, bucket: int) -> None:
        profile, conditions = self.profile, self.conditions
        ready = max(self.device, self.host + profile.launch_lag_us) + profile.start_gap_us
        self.ready.append(ready)
        if conditions.gamma:  # roughly when it will run, which only contention has to know so early
            start = max(ready + conditions.late_us[bucket], self.busy_to)
            self.busy_from = start if start > self.busy_to else self.busy_from
            self.busy_to = start + conditions.latency_us[bucket] + conditions.transfer_us[bucket]

    def _other(self, place: int, launch_us: float) -> None:
        one, cost = self.profile.others[place], self.conditions.other_us[place]
        start = max(max(self.device, self.host) + one.gap_us, self.other_free)
        self.other_free = start + cost
        self.other_spans.append((start, self.other_free))
        if one.blocks:
            self._wait_until(self.other_free, launch_us)

    def _schedule(self) -> None:
        """Ends of all buckets, once all are ready: nothing before the first wait depends on them."""
        if len(self.ends) == len(self.ready):
            return
        conditions, count = self.conditions, len(self.ready)
        last_ready = [one + late for one, late in zip(self.ready, conditions.late_us, strict=False)]
        costs, profile = (
            (conditions.latency_us[:count], conditions.transfer_us[:count]),
            self.profile,
        )
        self.starts, self.ends = run_collectives(
            last_ready, *costs, profile.servers, conditions.slowdown, self.free, profile.turn_us
        )

    def _wait_for(self, share: float, launch_us: float) -> None:
        """The device waits for every bucket up to the one that holds this share of the gradients' bytes."""
        self._schedule()
        reach, ends = self.prepared.reach, self.conditions.bucket_ends
        while self.waited < len(self.ends):
            before = reach[ends[self.waited - 1]] if self.waited else 0.0
            if before >= share - 1e-9:
                break
            self._wait_until(self.ends[self.waited], launch_us)
            self.waited += 1

    def _wait_until(self, end: float, launch_us: float) -> None:
        """The next work starts at `end` or later; what it would have waited for its launch anyway is not exposed."""
        start = max(self.device, self.host + launch_us)
        if end > start:
            self.exposed.append((start, end))
        self.device = max(self.device, end)

    def parts(self) -> StepParts:
        """Of the whole step; collectives that outlast the last work are exposed, too."""
        prepared, more_passes, step_us = self.prepared, self.conditions.passes - 1, self.step_us
        compute_us = prepared.compute_us + more_passes * prepared.one_pass_compute_us + self.contention_us
        tail = [(self.device, step_us)] if step_us > self.device else []
        late_until = [ready + late for ready, late in zip(self.ready, self.conditions.late_us, strict=False)]
        wait, transfer, other = exposed_split(
            [*self.exposed, *tail],
            list(zip(self.starts, self.ends, strict=True)),
            list(zip(self.ready, late_until, strict=True)),
            self.other_spans,
        )
        return StepParts(compute_us, wait, transfer, other, step_us - compute_us - wait - transfer - other)


MOST_OFF = 0.01  # of the step: a base that its own replay misses by more predicts nothing


def measured_conditions(profile: StepProfile) -> Conditions:
    """The profile's own buckets, costs and lateness."""
    return Conditions(
        bucket_ends=profile.bucket_ends,
        latency_us=(0.0,) * len(profile.buckets),
        transfer_us=tuple(one.cost_us for one in profile.buckets),
        late_us=tuple(one.late_us for one in profile.buckets),
        other_us=tuple(one.cost_us for one in profile.others),
        slowdown=profile.slowdown,
    )


def silent(profile: StepProfile) -> Conditions:
    """Its own buckets, every collective at no cost and no rank late."""
    none = (0.0,) * len(profile.bucket_ends)
    return Conditions(profile.bucket_ends, none, none, none, (0.0,) * len(profile.others))


def base_error(prepared: Prepared) -> float:
    """(replayed - measured) / measured of the step as it was entered."""
    profile = prepared.profile
    entered = (profile.first_host_us, 0.0, NEVER)
    return replayed_from(prepared, measured_conditions(profile), entered) / profile.step_us - 1


def late_us(profile: StepProfile, ends: tuple[int, ...]) -> tuple[float, ...]:
    """Lateness of the last rank at other buckets: between the measured ones by the bytes that were ready."""
    if not profile.buckets:
        return (0.0,) * len(ends)
    reach = np.cumsum(profile.gradients.bytes)
    held = reach[list(profile.bucket_ends)]
    return tuple(np.interp(reach[list(ends)], held, [one.late_us for one in profile.buckets]).tolist())
