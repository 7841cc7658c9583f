"""How late ranks are, split into what is steady, what all share (which cancels) and what is random; and the latest of N.

Taken from matched collectives, so no clock is compared. The latest of N is the expected maximum of N draws: from the quantiles of
what was seen, E max = integral of x dF(x)^N, with a generalised Pareto tail above the 90% quantile where 200 independent samples
or more show one (Pickands, Annals of Statistics 3(1), 1975), else that of a normal distribution, which is then an assumption.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpscope.analysis.what_if.replay.step_profile import StepProfile
from dpscope.analysis.what_if.step_model import expected_maximum
from dpscope.profiling.records.finding import counted

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
    return float(_quantiles(values, levels).mean())


def _quantiles(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The empirical quantiles, and above the 90% one a generalised Pareto tail by the method of moments.

    Where the largest samples are all the same there is no tail to fit, and the empirical quantiles go up to the largest.
    """
    found = np.quantile(values, levels)
    threshold = float(np.quantile(values, _TAIL_FROM))
    excess = values[values > threshold] - threshold
    if not len(excess) or np.ptp(excess) == 0:
        return np.asarray(found)
    mean, variance = float(excess.mean()), float(excess.var())
    shape = min(0.3, 0.5 * (1 - mean**2 / variance))  # heavier tails have no usable maximum
    scale = mean * (1 - shape)
    beyond = np.maximum((1 - levels) / (1 - _TAIL_FROM), 1e-12)
    tail = -np.log(beyond) * scale if abs(shape) < 1e-6 else scale / shape * (beyond**-shape - 1)
    return np.asarray(np.where(levels > _TAIL_FROM, threshold + tail, found))
