"""How late the last of several ranks is, from the arrivals at matched collectives: no clock is
compared. Microseconds.

Lateness is split into what is steady, what all ranks share (which cancels) and what is random. The
latest of N is the expected maximum of N draws from a normal distribution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpscope.analysis.what_if.step_profile import StepProfile
from dpscope.profiling.records.finding import counted


@dataclass(frozen=True)
class Lateness:
    """`steady_us`: of each measured rank, its own mean lateness against the mean of ranks;
    `random_us`: what is left, a value a rank and step, with the standard deviation of one rank's
    randomness. Empty where one rank alone was read: nothing is known."""

    steady_us: tuple[float, ...] = ()
    random_us: tuple[float, ...] = ()

    @property
    def known(self) -> bool:
        return len(self.steady_us) > 1

    @property
    def independent(self) -> int:
        """Random samples that do not follow from the others: (R - 1)(S - 1) of R ranks and S steps,
        as the means of both are taken off; R - 1 of one step."""
        ranks = len(self.steady_us)
        steps = len(self.random_us) // max(ranks, 1)
        return max(0, ranks - 1) * max(1, steps - 1)

    @property
    def basis(self) -> str:
        """What the latest of N rests on, in words."""
        if not self.known:
            return "lateness of ranks is unknown: only one rank was read"
        samples = counted(self.independent, "independent sample")
        return (
            "lateness of ranks: a normal distribution fitted to "
            f"{samples} of {len(self.steady_us)} ranks"
        )

    def latest_us(self, ranks: int) -> float:
        """How much later than the mean rank the last of so many is, on average."""
        if not self.known or ranks < 2:
            return 0.0
        return max(self.steady_us) + self._deviation_us * normal_maximum(ranks)

    @cached_property
    def _deviation_us(self) -> float:
        return float(np.std(self.random_us))


def lateness(profiles: Sequence[StepProfile]) -> Lateness:
    """Of a job's profiles: the arrival at the first bucket, by rank and step; steps that not every
    rank shows are left out.
    """
    ranks = sorted({profile.rank for profile in profiles if profile.rank is not None})
    arrivals: dict[object, dict[int, float]] = {}
    for profile in profiles:
        if profile.buckets and profile.rank is not None and not profile.buckets[0].bounded:
            arrivals.setdefault(profile.step, {})[profile.rank] = -profile.buckets[0].late_us
    whole = [of_step for of_step in arrivals.values() if len(of_step) == len(ranks)]
    if len(ranks) < 2 or not whole:
        return Lateness()
    table = np.array([[of_step[rank] for rank in ranks] for of_step in whole])
    table -= table.mean(axis=1, keepdims=True)  # what all share
    steady = table.mean(axis=0) if len(table) > 1 else np.zeros(len(ranks))
    # Both means took part of the randomness with them: what is left has (1 - 1/R)(1 - 1/S) of its
    # variance.
    left = math.prod(1 - 1 / count for count in table.shape if count > 1)
    rest = (table - steady) / math.sqrt(left)
    return Lateness(tuple(steady.tolist()), tuple(rest.ravel().tolist()))


def normal_maximum(ranks: int) -> float:
    """The expected maximum of that many standard normal numbers, by Blom's approximation; 0 for
    one.
    """
    from scipy.special import ndtri  # imported here because a replay fits nothing

    return float(-ndtri(0.625 / (ranks + 0.25))) if ranks > 1 else 0.0


def on_time(profiles: Sequence[StepProfile], rank: int) -> tuple[StepProfile, ...]:
    """The profiles of the other ranks, as if `rank` had never arrived after the last of them."""
    others = [profile for profile in profiles if profile.rank != rank]
    return tuple(
        _waiting_for(bucket, [other for other in others if other.step == bucket.step])
        for bucket in others
    )


def _waiting_for(profile: StepProfile, ranks: Sequence[StepProfile]) -> StepProfile:
    """A profile whose buckets wait for the last of these ranks alone, all of one step; itself among
    them.
    """
    alike = [rank for rank in ranks if len(rank.buckets) == len(profile.buckets)]
    spared = [
        min(step.buckets[place].late_us for step in alike) for place in range(len(profile.buckets))
    ]
    buckets = (
        replace(bucket, late_us=bucket.late_us - us)
        for bucket, us in zip(profile.buckets, spared, strict=True)
    )
    return replace(profile, buckets=tuple(buckets))
