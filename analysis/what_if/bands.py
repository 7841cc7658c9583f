"""How wrong predictions from a table may be, from how wrong the same method is on the table's own rows.

Every device count is left out in turn, the forecasts are made from the others. The errors grow with the share of the step that is
exposed communication, so the band does: half = k sqrt(s0^2 + (s1 share)^2), k such that 90% of the left-out rows lie inside. With
few rows s0 and s1 are assumed, and only their size is corrected by the rows. Beyond the largest measured count the distance adds
to it: 6% at 2 times, 12% at 4, 25% at 8, which is what public series of step times show, times `growth`, which is how wrong the
table's larger counts were forecast from its smaller ones. Beyond 8 times no number is given.
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
LEAST_GROWTH = 0.3
_NINE_OF_TEN = 1.645  # standard deviations of a normal distribution to each side hold 90%
_FLOORS = ((1.0, 0.0), (2.0, 0.06), (4.0, 0.12), (FARTHEST, 0.25))
_FLOOR_POINTS = ([math.log(one) for one, _ in _FLOORS], [half for _, half in _FLOORS])
_NEARNESS = (1.3, 2.0, 4.0, math.inf)  # of the largest count: the nearest counts that have enough rows tell the band


@dataclass(frozen=True)
class Errors:
    """Of rows forecast without themselves: log(forecast / measured), share exposed, devices, times the largest count shown."""

    logs: Floats
    shares: Floats
    ranks: Floats
    times: Floats


@dataclass(frozen=True)
class Band:
    """`steady` and `by_share` are s0 and s1 with k multiplied in; `growth` is of the floors; `rows` behind them, 0 if assumed."""

    steady: float
    by_share: float
    rows: int
    growth: float = 1.0

    def half_width(self, exposed_share: Floats, times_largest: Floats) -> Floats:
        """Half the 90% band, in logarithms of the step."""
        floors = self.growth * np.interp(np.log(times_largest), *_FLOOR_POINTS)
        return np.asarray(np.sqrt(self.steady**2 + (self.by_share * exposed_share) ** 2 + floors**2))


def floor_of(times_largest: float) -> float:
    """What the distance in devices alone adds to half a band, in logarithms of the step."""
    return float(np.interp(math.log(times_largest), *_FLOOR_POINTS))


def band_of(without: Errors, forward: Errors) -> Band:
    """The band that the table's own rows give: `without` their own device count, and `forward` from fewer devices."""
    near = _near(without.ranks)
    band = _here(np.abs(without.logs[near]), without.shares[near])
    return replace(band, growth=_growth(band, forward))


def _here(off: Floats, shares: Floats) -> Band:
    """Among the measured counts."""
    if len(off) < FEWEST_ROWS:
        seen = off / _scale(np.array(ASSUMED), shares) if len(off) else off
        spread = math.sqrt((ASSUMED_ROWS + float(np.sum(seen**2))) / (ASSUMED_ROWS + len(off)))
        factor = _NINE_OF_TEN * spread
        return Band(factor * ASSUMED[0], factor * ASSUMED[1], 0)

    def unlikely(logs: Floats) -> float:
        """Minus the log-likelihood of Laplace's distribution, which single wild rows do not rule."""
        scale = _scale(np.exp(logs), shares)
        return float(np.sum(np.log(scale) + off / scale))

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
        here = band.half_width(forward.shares[mine], np.ones(mine.sum())) / _NINE_OF_TEN
        beyond = float(np.mean(np.clip(forward.logs[mine], -1.0, 1.0))) ** 2 - float(np.mean(here**2)) / mine.sum()
        nearness = ranks / times / most
        seen += nearness * max(0.0, beyond) * _NINE_OF_TEN**2
        expected += nearness * floor_of(times) ** 2
    return max(LEAST_GROWTH, math.sqrt(seen / expected))


def _near(ranks: Floats) -> npt.NDArray[np.bool_]:
    """The rows of the largest counts: what small counts err by tells little of larger ones."""
    chosen = np.zeros(len(ranks), dtype=bool)
    for factor in _NEARNESS:
        if chosen.sum() < FEWEST_ROWS and len(ranks):
            chosen = ranks >= ranks.max() / factor
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
