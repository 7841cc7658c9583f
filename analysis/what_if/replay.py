"""A traced step run again under other conditions: the same works, other buckets, costs, lateness.

The device goes through its works; a bucket is ready when its last gradient is, its all-reduce
starts when the last rank is ready and a server is free; what needs a bucket (the optimizer, the
copies out of it) waits for its end. The host launches works when it did, unless it waited for the
device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dpscope.analysis.costs.collective_streams import run_collectives
from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.what_if.step_profile import NEVER, StepProfile

Span = tuple[float, float]
"""Start and end, microseconds from the step's start."""


def _covered_us(exposed: Sequence[Span], spans: Sequence[Span]) -> float:
    """How much of the exposed stretches lies inside any of the spans; of so few of them sooner than
    by numpy.
    """
    covered, reached = 0.0, NEVER
    for start, end in sorted(spans):
        start = max(start, reached)
        if end > start:
            reached = end
            for begin, until in exposed:
                covered += max(0.0, min(end, until) - max(start, begin))
    return covered


class Conditions(NamedTuple):
    """What a step is run under. Buckets by the index of their last gradient; per bucket latency,
    transfer, the lateness of the last rank and the host's lag; the cost of every other collective.
    `passes` forward and backward passes make a step, the last one reduces.

    `gamma` is what compute loses per time that a collective runs next to it.
    """

    bucket_ends: tuple[int, ...]
    latency_us: tuple[float, ...]
    transfer_us: tuple[float, ...]
    late_us: tuple[float, ...]
    lag_us: tuple[float, ...]
    other_us: tuple[float, ...]
    passes: int = 1
    gamma: float = 0.0


@dataclass(frozen=True)
class Scale:
    """What is done to a step: to works that samples make longer, to all works, and to the host's
    own time; each a factor.
    """

    by_samples: float = 1.0
    busy: float = 1.0
    host: float = 1.0


AS_IT_WAS = Scale()


@dataclass(frozen=True)
class Point:
    """Between two stretches of works: what happens there, and the stretch that follows."""

    buckets: tuple[int, ...]  # that are ready
    others: tuple[int, ...]  # other collectives that are launched
    needs: float | None  # the share of the gradients' bytes that the next work waits for
    host_waits: bool  # for the work before
    launched_us: float  # the next work, from the host's start
    following: "Stretch"


class Stretch(NamedTuple):
    """Works in a row: how long the device takes, of which it is busy, and when it ends at the
    earliest, from the host's start.
    """

    length_us: float
    busy_us: float
    launched_us: float

    def end_us(self, now_us: float, host_us: float) -> float:
        return max(now_us + self.length_us, host_us + self.launched_us)


class Prepared:
    """A profile under one scale, its works joined between the points where anything else
    happens.
    """

    def __init__(self, profile: StepProfile, scale: Scale = AS_IT_WAS) -> None:
        works = profile.works
        after = profile.gradients.after
        by_samples = np.where(works.by_samples, scale.by_samples, 1.0)
        busy_us = works.busy_us * scale.busy * by_samples
        self.profile = profile
        self.scale = scale
        self._busy_us = np.concatenate(([0.0], np.cumsum(busy_us)))
        self._length_us = np.concatenate(([0.0], np.cumsum(busy_us + works.gap_us)))
        launched_us = np.where(
            works.launched_us > 0, works.launched_us * scale.host, works.launched_us
        )
        self._launched_us = [*launched_us.tolist(), NEVER]
        # of the launch over the works before
        self._ahead_us = launched_us - (self._length_us[:-1] + works.gap_us)
        more_needed = np.flatnonzero(np.diff(works.needs, prepend=0.0) > 0)
        self._needs = {int(place): float(works.needs[place]) for place in more_needed}
        self._waits = set((np.flatnonzero(works.host_waits) + 1).tolist())
        self.busy_us = float(self._busy_us[-1])
        self.length_us = float(self._length_us[-1])
        last_gradient = int(after[-1]) if len(after) else 0
        self.pass_us = self._pass_us(last_gradient)
        self._pass_busy_us = float(self._busy_us[last_gradient])
        reach = np.cumsum(profile.gradients.bytes)
        self.reach = (reach / reach[-1]).tolist() if len(reach) else []
        self._points: dict[tuple[int, ...], list[Point]] = {}

    def _pass_us(self, end: int) -> float:
        """A forward and backward pass without any collective."""
        now = host = 0.0
        waits = (place for place in self._waits if place < end)
        for begin, until in pairwise(sorted({0, end, *waits})):
            now = self._stretch(begin, until).end_us(now, host)
            if until in self._waits:
                host = now
        return now

    def computing_us(self, passes: int) -> float:
        """How long the device is busy in a step of so many forward and backward passes."""
        further = passes - 1
        return self.busy_us + further * self._pass_busy_us

    def _stretch(self, begin: int, end: int) -> Stretch:
        ahead_us = float(self._ahead_us[begin:end].max(initial=NEVER))
        return Stretch(
            length_us=float(self._length_us[end] - self._length_us[begin]),
            busy_us=float(self._busy_us[end] - self._busy_us[begin]),
            launched_us=ahead_us + float(self._length_us[end]),
        )

    def points(self, bucket_ends: tuple[int, ...]) -> list[Point]:
        """The step under these buckets; kept, as scenarios differ in costs more often than in
        buckets.
        """
        if bucket_ends not in self._points:
            self._points[bucket_ends] = self._cut(bucket_ends)
        return self._points[bucket_ends]

    def _cut(self, bucket_ends: tuple[int, ...]) -> list[Point]:
        after = self.profile.gradients.after.tolist()
        last = len(self._ahead_us)
        buckets = _places([after[end] for end in bucket_ends])
        others = _places([operation.after for operation in self.profile.others])
        waits = self._waits - {last}
        cuts = sorted({0, *buckets, *others, *self._needs, *waits})
        return [
            Point(
                buckets=buckets.get(begin, ()),
                others=others.get(begin, ()),
                needs=self._needs.get(begin),
                host_waits=begin in self._waits,
                launched_us=self._launched_us[begin],
                following=self._stretch(begin, end),
            )
            for begin, end in pairwise([*cuts, last])
        ]


def _places(values: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The places at which each value stands."""
    places: dict[int, tuple[int, ...]] = {}
    for place, value in enumerate(values):
        places[value] = (*places.get(value, ()), place)
    return places


class Replay:
    """One step under these conditions, run in order of launch; times from its start."""

    def __init__(self, prepared: Prepared, conditions: Conditions) -> None:
        self.prepared = prepared
        self.conditions = conditions
        self.profile = prepared.profile
        self.now = self.host = (conditions.passes - 1) * prepared.pass_us
        self.contention_us = 0.0
        self.exposed: list[Span] = []  # stretches in which the device waits for communication
        self.ready: list[float] = []  # when this rank's buckets are
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.other_spans: list[Span] = []
        self.other_free = 0.0  # collectives that are no buckets are on a separate stream
        self.waited = 0  # buckets whose end the device has waited for
        # when the last bucket that is ready will roughly be in flight
        self.busy_from = self.busy_to = NEVER
        for point in prepared.points(conditions.bucket_ends):
            self._pass_point(point)
        self._schedule()
        self.step_us = max([self.now, self.other_free, *self.ends])

    def _pass_point(self, point: Point) -> None:
        if point.host_waits:
            self.host = self.now
        launch_us = self.host + point.launched_us
        for bucket in point.buckets:
            self._bucket_ready(bucket)
        for place in point.others:
            self._other(place, launch_us)
        if point.needs is not None:
            self._wait_for(point.needs, launch_us)
        self._go(point.following)

    def _go(self, stretch: Stretch) -> None:
        began = self.now
        self.now = stretch.end_us(began, self.host)
        if self.conditions.gamma == 0:
            return
        overlap_us = min(self.now, self.busy_to) - max(began, self.busy_from)
        if overlap_us <= 0:
            return
        # the rest of the stretch is idle
        computing = min(1.0, stretch.busy_us / (self.now - began))
        slower_us = self.conditions.gamma * overlap_us * computing
        self.contention_us += slower_us
        self.now += slower_us

    def _bucket_ready(self, bucket: int) -> None:
        conditions = self.conditions
        ready = self.now + conditions.lag_us[bucket] + self.profile.start_gap_us
        self.ready.append(ready)
        if conditions.gamma:  # roughly when it will run, which only contention has to know so early
            start = max(ready + conditions.late_us[bucket], self.busy_to)
            if start > self.busy_to:
                self.busy_from = start
            self.busy_to = start
            self.busy_to += conditions.latency_us[bucket]
            self.busy_to += conditions.transfer_us[bucket]

    def _other(self, place: int, launch_us: float) -> None:
        other = self.profile.others[place]
        start = max(self.now + other.gap_us, self.other_free)
        self.other_free = start + self.conditions.other_us[place]
        self.other_spans.append((start, self.other_free))
        if other.blocks:
            self._wait_until(self.other_free, launch_us)

    def _schedule(self) -> None:
        """Ends of all buckets, once all are ready: nothing before the first wait depends on
        them.
        """
        if len(self.ends) == len(self.ready):
            return
        conditions = self.conditions
        count = len(self.ready)
        all_ready = []
        for ready, late_us in zip(self.ready, conditions.late_us, strict=False):
            all_ready.append(ready + late_us)
        self.starts, self.ends = run_collectives(
            all_ready,
            conditions.latency_us[:count],
            conditions.transfer_us[:count],
            self.profile.servers,
            turn_us=self.profile.turn_us,
        )

    def _wait_for(self, share: float, launch_us: float) -> None:
        """The device waits for every bucket up to the one that holds this share of the gradients'
        bytes.
        """
        self._schedule()
        reach, ends = self.prepared.reach, self.conditions.bucket_ends
        while self.waited < len(self.ends):
            before = reach[ends[self.waited - 1]] if self.waited else 0.0
            if before >= share - 1e-9:
                break
            self._wait_until(self.ends[self.waited], launch_us)
            self.waited += 1

    def _wait_until(self, end: float, launch_us: float) -> None:
        """The next work starts at `end` or later; what it would have waited for its launch anyway
        is not exposed.
        """
        start = max(self.now, launch_us)
        if end > start:
            self.exposed.append((start, end))
        self.now = max(self.now, end)

    @cached_property
    def exposed_us(self) -> float:
        """Exposed communication of the whole step, waiting for late ranks included; collectives that
        outlast the last work are exposed, too.
        """
        exposed = list(self.exposed)
        if self.step_us > self.now:
            exposed.append((self.now, self.step_us))
        in_flight = list(self.other_spans)
        in_flight += zip(self.starts, self.ends, strict=True)
        for ready, late_us in zip(self.ready, self.conditions.late_us, strict=False):
            in_flight.append((ready, ready + late_us))
        return _covered_us(exposed, in_flight)


MOST_OFF = 0.01  # of the step: a base that its own replay misses by more predicts nothing


def measured_conditions(profile: StepProfile, gamma: float = 0.0) -> Conditions:
    """The profile's own buckets, costs and lateness."""
    buckets = profile.buckets
    return Conditions(
        bucket_ends=profile.bucket_ends,
        # the cost of a measured bucket is not split: all of it is transfer
        latency_us=(0.0,) * len(buckets),
        transfer_us=tuple(bucket.cost_us for bucket in buckets),
        late_us=tuple(bucket.late_us for bucket in buckets),
        lag_us=tuple(bucket.lag_us for bucket in buckets),
        other_us=tuple(operation.cost_us for operation in profile.others),
        gamma=gamma,
    )


def silent(profile: StepProfile) -> Conditions:
    """Its own buckets, every collective at no cost and no rank late."""
    none = (0.0,) * len(profile.bucket_ends)
    no_others = (0.0,) * len(profile.others)
    return Conditions(
        bucket_ends=profile.bucket_ends,
        latency_us=none,
        transfer_us=none,
        late_us=none,
        lag_us=none,
        other_us=no_others,
    )


def base_error(profile: StepProfile) -> float:
    """(replayed - measured) / measured of the step as it was."""
    replay = Replay(Prepared(profile), measured_conditions(profile))
    return replay.step_us / profile.step_us - 1


def between_buckets(profile: StepProfile, ends: tuple[int, ...], values: Sequence[float]) -> Floats:
    """What the measured buckets have, of other buckets: linear by the bytes that were ready."""
    if not profile.buckets:
        return np.zeros(len(ends))
    reach = np.cumsum(profile.gradients.bytes)
    measured = reach[list(profile.bucket_ends)]
    return np.interp(reach[list(ends)], measured, values)
