"""Cells measured in turns, each turn in another order: samples with their places, and the drift of
the machine over places.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Values = npt.NDArray[np.float64]
CERTAIN = 0.995  # quantile of Student's t that a drift must exceed to be taken out


class TurnSamples(list[_Values]):
    """A cell's samples, an array per repeat, and as which of all cells it was measured in each
    turn; None is unknown.
    """

    def __init__(self, repeats: Iterable[_Values], places: Sequence[int] | None = None) -> None:
        super().__init__(repeats)
        self.places = places


@dataclass(frozen=True)
class Drift:
    """How much longer each place in a turn takes than the one before it, as a logarithm."""

    slope: float
    information: float  # squared distances of all places from the means of their cells and turns
    squares: float  # of the logarithms, what it explains

    def freedom_of(self, apart: _Values) -> float:
        """Of the degrees of freedom of two cells' differences, those that went into the slope;
        their places lie `apart`.
        """
        return float(np.sum((apart - apart.mean()) ** 2)) / 2 / self.information


def unexplained(levels: _Values, values: _Values) -> tuple[_Values, int]:
    """What least squares of these levels leave, and its degrees of freedom."""
    fitted, _, rank, _ = np.linalg.lstsq(levels, values, rcond=None)
    return values - levels @ fitted, len(values) - int(rank)


def clear_drift(left: _Values, places: _Values, freedom: int) -> Drift | None:
    """The drift of logarithms over places, both without levels of cells and turns; None if 0 lies
    in its 99% interval.

    `freedom`: degrees of freedom of the logarithms. Places that are the same in every turn show
    none.
    """
    from scipy.special import stdtrit

    information, rest = float(np.sum(places**2)), freedom - 1
    if information < 1e-9 or rest < 1:
        return None
    slope = float(left @ places) / information
    explained = slope**2 * information
    others = max(0.0, float(np.sum(left**2)) - explained)
    least = float(stdtrit(rest, CERTAIN)) ** 2
    return Drift(slope, information, explained) if explained * rest > least * others else None


def places_of(repeats: Sequence[_Values]) -> _Values | None:
    """Places in their turns of the repeats that have samples."""
    if not isinstance(repeats, TurnSamples) or repeats.places is None:
        return None
    return np.array(
        [place for place, steps in zip(repeats.places, repeats, strict=True) if len(steps)],
        dtype=float,
    )


def without_drift(
    differences: _Values, first: Sequence[_Values], second: Sequence[_Values], drift: Drift | None
) -> tuple[_Values, float]:
    """Differences of two cells' logarithms from repeat to repeat without a drift, and their degrees
    of freedom.
    """
    freedom = len(differences) - 1.0
    above, below = places_of(first), places_of(second)
    if drift is None or above is None or below is None:
        return differences, freedom
    apart = above - below
    return differences - drift.slope * apart, freedom - drift.freedom_of(apart)
