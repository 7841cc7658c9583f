"""How wrong predictions from a table may be, from how wrong the same method is on the table's own rows.

Every device count is left out in turn, the forecasts are made from the others. The errors grow with the share of the step that is
exposed communication, so the band does: half = k sqrt(s0^2 + (s1 share)^2), k such that 90% of the left-out rows of the counts
nearest to the one asked for lie inside. s0 and s1 are the most likely ones under a weak prior, as rows of one share cannot tell
them apart; with few rows they are assumed, and only their size is corrected by the rows. What the forecasts disagree by adds to
it: one standard deviation, since they rest on the same rows. Beyond the largest measured count the distance adds: 6% at 2 times,
12% at 4, 25% at 8, which is what public series of step times show, times `growth`, which is how wrong the table's larger counts
were forecast from its smaller ones beyond what the forecasts disagreed by. Beyond 8 times no number is given.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpscope.analysis.stats.arrays import Floats
from dpscope.analysis.what_if.prediction import BAND

FARTHEST = 8.0  # times the largest measured device count: beyond it no number
FEWEST_ROWS = 10  # below it the band is assumed, and said to be
ASSUMED = (0.06, 0.25)  # s0 and s1 of a band that few rows rest on: those of the public T4 series
ASSUMED_ROWS = 4.0  # how many rows that assumption weighs beside the table's own
ASSUMED_GROWTHS = 1.0  # how many counts the floors weigh beside the table's own
LEAST_GROWTH, MOST_GROWTH = 0.3, 4.0
WIDEST = math.log(2)  # half a band: few wild rows shall not make it wider than a factor of two
_PRIOR_WIDTH = 1.0  # of the logarithms of s0 and s1 about the assumed ones
NINE_OF_TEN = 1.645  # standard deviations of a normal distribution to each side hold 90%
_FLOORS = ((1.0, 0.0), (2.0, 0.06), (4.0, 0.12), (FARTHEST, 0.25))
_FLOOR_POINTS = ([math.log(one) for one, _ in _FLOORS], [half for _, half in _FLOORS])
_NEARNESS = (
    1.3,
    2.0,
    4.0,
    math.inf,
)  # times the count asked for: the nearest counts that have enough rows tell the band


@dataclass(frozen=True)
class Errors:
    """Of rows forecast without themselves: log(forecast / measured), share exposed, devices, times the largest count shown, and
    by how much the forecasts disagreed."""

    logs: Floats
    shares: Floats
    ranks: Floats
    times: Floats
    apart: Floats


@dataclass(frozen=True)
class Band:
    """`steady` and `by_share` are s0 and s1 with k multiplied in; `growth` is of the floors; `rows` behind them, 0 if assumed."""

    steady: float
    by_share: float
    rows: int
    growth: float = 1.0

    def half_width(self, exposed_share: Floats, times_largest: Floats, apart: Floats) -> Floats:
        """Half the 90% band, in logarithms of the step; `apart` is by how much the forecasts disagree."""
        floors = self.growth * np.interp(np.log(times_largest), *_FLOOR_POINTS)
        half = np.sqrt(self.steady**2 + (self.by_share * exposed_share) ** 2 + floors**2 + apart**2)
        return np.asarray(np.minimum(half, WIDEST))


def floor_of(times_largest: float) -> float:
    """What the distance in devices alone adds to half a band, in logarithms of the step."""
    return float(np.interp(math.log(times_largest), *_FLOOR_POINTS))


class Bands:
    """The bands that a table's own rows give: `without` their own device count, and `forward` from fewer devices."""

    def __init__(self, without: Errors, forward: Errors) -> None:
        self._without = without
        self._known: dict[bytes, Band] = {}
        largest = float(without.ranks.max()) if len(without.ranks) else 1.0
        self.growth = _growth(self._among(largest), forward)

    def at(self, ranks: int) -> Band:
        """For one device count."""
        return replace(self._among(ranks), growth=self.growth)

    def _among(self, ranks: float) -> Band:
        near = _near(self._without.ranks, ranks)
        if near.tobytes() not in self._known:
            self._known[near.tobytes()] = _here(np.abs(self._without.logs[near]), self._without.shares[near])
        return self._known[near.tobytes()]


def _here(off: Floats, shares: Floats) -> Band:
    """Among the measured counts."""
    if len(off) < FEWEST_ROWS:
        seen = off / _scale(np.array(ASSUMED), shares) if len(off) else off
        spread = math.sqrt((ASSUMED_ROWS + float(np.sum(seen**2))) / (ASSUMED_ROWS + len(off)))
        factor = NINE_OF_TEN * spread
        return Band(factor * ASSUMED[0], factor * ASSUMED[1], 0)

    def unlikely(logs: Floats) -> float:
        """Minus the log-posterior with Laplace's distribution, which single wild rows do not rule."""
        scale = _scale(np.exp(logs), shares)
        prior = np.sum((logs - np.log(ASSUMED)) ** 2) / (2 * _PRIOR_WIDTH**2)
        return float(np.sum(np.log(scale) + off / scale) + prior)

    from scipy.optimize import minimize  # here, as a replay fits nothing

    found = np.exp(minimize(unlikely, np.log(ASSUMED), method="Nelder-Mead").x)
    rank = min(1.0, BAND * (len(off) + 1) / len(off))  # conformal: the next row counts as one of them
    factor = float(np.quantile(off / _scale(found, shares), rank))
    return Band(factor * float(found[0]), factor * float(found[1]), len(off))


def _growth(band: Band, forward: Errors) -> float:
    """What the errors of forecasts from fewer devices are of the floors, beyond what is left among the measured counts."""
    usual = _FLOORS[1][1] ** 2
    seen, expected = ASSUMED_GROWTHS * usual, ASSUMED_GROWTHS * usual
    most = float(np.max(forward.ranks / forward.times)) if len(forward.ranks) else 1.0
    for times, ranks in sorted(set(zip(forward.times.tolist(), forward.ranks.tolist(), strict=True))):
        mine = (forward.times == times) & (forward.ranks == ranks)
        none = np.zeros(mine.sum())
        here = band.half_width(forward.shares[mine], none + 1, none) / NINE_OF_TEN
        told = float(np.mean(here**2)) / mine.sum() + float(np.mean((forward.apart[mine] / NINE_OF_TEN) ** 2))
        beyond = float(np.mean(np.clip(forward.logs[mine], -1.0, 1.0))) ** 2 - told
        nearness = ranks / times / most
        seen += nearness * max(0.0, beyond) * NINE_OF_TEN**2
        expected += nearness * floor_of(times) ** 2
    return min(max(math.sqrt(seen / expected), LEAST_GROWTH), MOST_GROWTH)


def _near(ranks: Floats, asked: float) -> npt.NDArray[np.bool_]:
    """The rows of the counts nearest to the one asked for: what small counts err by tells little of large ones."""
    chosen = np.zeros(len(ranks), dtype=bool)
    for factor in _NEARNESS if len(ranks) else ():
        if chosen.sum() < FEWEST_ROWS:
            nearest = min(max(asked, float(ranks.min())), float(ranks.max()))
            chosen = np.maximum(ranks / nearest, nearest / ranks) <= factor
    return chosen


def _scale(parameters: Floats, shares: Floats) -> Floats:
    return np.asarray(np.sqrt(parameters[0] ** 2 + (parameters[1] * shares) ** 2) + 1e-6)


def coverage(low: Sequence[float | None], high: Sequence[float | None], truth: Sequence[float]) -> float | None:
    """The share of truths inside their bands; None where no band was given."""
    inside = [
        one <= value <= other
        for one, other, value in zip(low, high, truth, strict=True)
        if one is not None and other is not None
    ]
    return sum(inside) / len(inside) if inside else None
