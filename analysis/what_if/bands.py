"""How wrong predictions from a table may be, from how wrong the same method is on the table's own rows.

Every device count is left out in turn, the model is fitted to the others and predicts it. The errors grow with the share of the
step that is exposed communication, so the band does: half = k sqrt(s0^2 + (s1 share)^2), k such that 90% of the left-out rows lie
inside. Beyond the largest measured count a floor is added: 6% at 2 times it, 12% at 4 times, 25% at 8 times, what public series
of step times show; beyond that no number is given.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpscope.analysis.stats.arrays import Floats
from dpscope.analysis.what_if.prediction import BAND

FARTHEST = 8.0  # times the largest measured device count: beyond it no number
FEWEST_ROWS = 10  # below it the band is assumed, and said to be
ASSUMED = (0.05, 0.15)  # s0 and s1 of a band that few rows rest on: those of the public T4 series
_FLOORS = ((1.0, 0.0), (2.0, 0.06), (4.0, 0.12), (FARTHEST, 0.25))
_FLOOR_POINTS = ([math.log(one) for one, _ in _FLOORS], [half for _, half in _FLOORS])
_NEARNESS = (
    1.3,
    2.0,
    4.0,
    math.inf,
)  # of the largest count: errors of the nearest counts that are enough rows tell the band


@dataclass(frozen=True)
class Band:
    """`steady` and `by_share` are s0 and s1 with k multiplied in; `rows` behind them, 0 where they are assumed."""

    steady: float
    by_share: float
    rows: int

    def half_width(self, exposed_share: Floats, times_largest: Floats) -> Floats:
        """Half the 90% band, in logarithms of the step."""
        floors = np.interp(np.log(times_largest), *_FLOOR_POINTS)
        return np.asarray(np.sqrt(self.steady**2 + (self.by_share * exposed_share) ** 2 + floors**2))


def floor_of(times_largest: float) -> float:
    """What the distance in devices alone adds to half a band, in logarithms of the step."""
    return float(np.interp(math.log(times_largest), *_FLOOR_POINTS))


def band_of(errors: Floats, exposed_shares: Floats, ranks: Floats) -> Band:
    """The band that left-out rows' errors give: `errors` are log(predicted / measured)."""
    near = _near(ranks)
    off, shares = np.abs(errors[near]), exposed_shares[near]
    if len(off) < FEWEST_ROWS:
        factor = 1.645  # of a normal distribution: 90% within
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
