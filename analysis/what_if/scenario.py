"""A scenario, the base from which it is predicted, and how late its ranks are: plain data, no torch. Microseconds, bytes.

Lateness is split into what is steady, what all share (which cancels) and what is random. It is taken from matched collectives, so
no clock is compared. The latest of N is the expected maximum of N draws: from the quantiles of what was seen, E max = integral of
x dF(x)^N, with a generalised Pareto tail above the 90% quantile where 200 independent samples or more show one (Pickands, Annals
of Statistics 3(1), 1975), else that of a normal distribution, which is then an assumption.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.what_if.collective_costs import Links, Place
from dpscope.analysis.what_if.replay import AS_IT_WAS, Compute, Prepared, Replayed, measured_conditions, replay
from dpscope.analysis.what_if.step_model import expected_maximum
from dpscope.analysis.what_if.step_profile import SHARES_THE_LINK, Bucketing, StepProfile
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.short_repr import short_repr

FEWEST_FOR_TAIL = 200
_TAIL_FROM = 0.9
_GRID = 4000


@dataclass(frozen=True)
class Lateness:
    """`steady_us`: of each measured rank, its own mean lateness against the mean of ranks; `random_us`: what is left, a value a
    rank and step, with the standard deviation of one rank's randomness. Empty where one rank alone was read: nothing is known."""

    steady_us: tuple[float, ...] = ()
    random_us: tuple[float, ...] = ()

    @property
    def known(self) -> bool:
        return len(self.steady_us) > 1

    @property
    def independent(self) -> int:
        """Random samples that do not follow from the others: (R - 1)(S - 1) of R ranks and S steps, as the means of both are
        taken off; R - 1 of one step."""
        ranks = len(self.steady_us)
        steps = len(self.random_us) // ranks if ranks else 0
        return max(0, ranks - 1) * max(1, steps - 1)

    @property
    def basis(self) -> str:
        """What the latest of N rests on, in words."""
        if not self.known:
            return "lateness of ranks unknown: one rank was read; give --jitter"
        text = f"lateness from {counted(self.independent, 'independent sample')} of {len(self.steady_us)} ranks"
        return text if self.independent >= FEWEST_FOR_TAIL else f"{text}, normal tail assumed"

    def latest_us(self, ranks: int) -> float:
        """How much later than the mean rank the last of so many is, on average."""
        if not self.known or ranks < 2:
            return 0.0
        return max(self.steady_us) + expected_latest(self.random_us, ranks, self.independent >= FEWEST_FOR_TAIL)


def lateness(profiles: Sequence[StepProfile]) -> Lateness:
    """Of a job's profiles: the arrival at the first bucket, by rank and step; steps that not every rank shows are left out."""
    ranks = sorted({one.rank for one in profiles if one.rank is not None})
    arrivals: dict[object, dict[int, float]] = {}
    for one in profiles:
        if one.buckets and one.rank is not None and not one.buckets[0].bounded:
            arrivals.setdefault(one.step, {})[one.rank] = -one.buckets[0].late_us
    whole = [of_step for of_step in arrivals.values() if len(of_step) == len(ranks)]
    if len(ranks) < 2 or not whole:
        return Lateness()
    table = np.array([[of_step[rank] for rank in ranks] for of_step in whole])
    table -= table.mean(axis=1, keepdims=True)  # what all share
    steady = table.mean(axis=0) if len(table) > 1 else np.zeros(len(ranks))
    # Both means took part of the randomness with them: what is left has (1 - 1/R)(1 - 1/S) of its variance.
    left = math.prod(1 - 1 / count for count in table.shape if count > 1)
    rest = (table - steady) / math.sqrt(left)
    return Lateness(tuple(steady.tolist()), tuple(rest.ravel().tolist()))


@lru_cache(maxsize=1024)
def _normal_maximum(ranks: int) -> float:
    return float(expected_maximum(np.array([float(ranks)]))[0])


def expected_latest(samples_us: Sequence[float], ranks: int, fit_tail: bool) -> float:
    """The expected maximum of so many independent draws, by the samples' own quantiles and tail, else by a normal one.

    >>> round(expected_latest([-1.0, 1.0], 2, fit_tail=False), 3)  # a standard deviation of 1, normal: two draws, 0.59
    0.589
    """
    values = np.sort(np.asarray(samples_us, dtype=float))
    if len(values) < 2:
        return 0.0
    if not fit_tail:
        return float(values.std()) * _normal_maximum(ranks)
    # the quantile function over levels u, weighted with the density N u^(N-1) of the largest level: levels v = u^N are uniform
    levels = ((np.arange(_GRID) + 0.5) / _GRID) ** (1.0 / ranks)
    found = np.quantile(values, levels)
    threshold = float(np.quantile(values, _TAIL_FROM))
    excess = values[values > threshold] - threshold
    if not len(excess) or np.ptp(excess) == 0:  # the largest are all the same: no tail to fit
        return float(found.mean())
    mean, variance = float(excess.mean()), float(excess.var())  # the tail by the method of moments
    shape = min(0.3, 0.5 * (1 - mean**2 / variance))  # heavier tails have no usable maximum
    scale = mean * (1 - shape)
    beyond = np.maximum((1 - levels) / (1 - _TAIL_FROM), 1e-12)
    tail = -np.log(beyond) * scale if abs(shape) < 1e-6 else scale / shape * (beyond**-shape - 1)
    return float(np.where(levels > _TAIL_FROM, threshold + tail, found).mean())


_Result = TypeVar("_Result")
DEFAULT_BUCKET = "default"


@dataclass(frozen=True)
class Interference:
    """`gamma`: what computing loses per time next to a collective; `slowdown`: how much longer each of two in flight takes.

    Each with the band of what it may be. `slowdown_measured`: of whole calls; else assumed, of their bytes. `contention` is the
    basis of gamma, in words; empty where it is assumed.
    """

    gamma: float = 0.0
    gamma_band: tuple[float, float] = (0.0, 0.0)
    slowdown: float = SHARES_THE_LINK
    slowdown_band: tuple[float, float] = (SHARES_THE_LINK, SHARES_THE_LINK)
    slowdown_measured: bool = False
    contention: str = ""


AS_MEASURED, USUAL_BUCKETS, UNKNOWN_LATENESS, NO_INTERFERENCE = Links(), Bucketing(), Lateness(), Interference()


@dataclass(frozen=True)
class Scenario:
    """What differs from the base; None keeps the base's.

    `batch_size` is per device and step, which `accumulate` cuts into micro-batches; without it every micro-batch is as large as
    the base's. `bucket_mb` in MiB, or "default". `faster` divides the time of every kernel. `jitter` is the standard deviation of
    a rank's lateness as a share of the step. The last six remove one part of the step each: bytes or latency of collectives, all
    time of the all-reduces of gradients, other collectives of these kinds, lateness, the host's own time.
    """

    devices: int | None = None
    per_node: int | None = None
    batch_size: int | None = None
    bucket_mb: float | str | None = None
    overlap: bool | None = None
    hook: str | None = None
    accumulate: int | None = None
    faster: float = 1.0
    links: Links = AS_MEASURED
    jitter: float | None = None
    transfer_factor: float = 1.0
    latency_factor: float = 1.0
    buckets_factor: float = 1.0
    free_kinds: frozenset[str] = frozenset()
    lateness_factor: float = 1.0
    host_factor: float = 1.0


@dataclass(frozen=True)
class Base:
    """A measured cell, or a foreign trace: its replayed steps and what was measured of it.

    `step_us` is the untraced step where known, `ledger` where it goes, `spread` half a 90% band of it in logarithms, by its
    repeats. `single_us` is t_1 by batch per device. `method_error` is half a 90% band of the method on this run's other cells,
    None if there is none.
    """

    __repr__ = short_repr

    name: str
    profiles: tuple[StepProfile, ...]
    devices: int
    per_node: int
    step_us: float
    spread: float
    largest: int  # the largest device count that was measured
    ledger: Ledger | None
    batch_size: int | None = None
    single_us: Mapping[int, float] = field(default_factory=dict)
    bucketing: Bucketing = USUAL_BUCKETS
    hook: str = "none"
    accumulate: int = 1
    kinds: frozenset[str] = frozenset()
    lateness: Lateness = UNKNOWN_LATENESS
    method_error: float | None = None
    interference: Interference = NO_INTERFERENCE
    # by what the trace's times are scaled, so that the replay is as long as the untraced step
    traced: Compute = AS_IT_WAS
    lacks: tuple[str, ...] = ()
    host_cores: int | None = None  # of a host whose processes compute on its cores; None where devices compute
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """The result of `make`, computed once for each key: many scenarios share it.

        A profile is named by its id in a key: the base holds its profiles, so that no other has the same one.
        """
        if key not in self._kept:
            self._kept[key] = make()
        result: _Result = self._kept[key]
        return result

    def prepared(self, profile: StepProfile, compute: Compute) -> Prepared:
        """One of the profiles under a compute scale."""
        return self.once((id(profile), compute), lambda: Prepared(profile, compute))

    def replayed(self, profile: StepProfile, gamma: float | None = None) -> Replayed:
        """One of the profiles replayed as it was measured, untraced; under another `gamma` where it is given."""
        by = self.interference.gamma if gamma is None else gamma

        def as_measured() -> Replayed:  # contention cancels
            alike = replace(measured_conditions(profile), gamma=by, slowdown=self.interference.slowdown)
            return replay(self.prepared(profile, self.traced), alike)

        return self.once((id(profile), by), as_measured)

    @property
    def place(self) -> Place:
        return Place(self.devices, self.per_node)
