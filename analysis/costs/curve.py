"""The time of a collective as a function of its size, fitted to a calibration: t = alpha + S/B, in pieces where needed.

Model: continuous, never falling straight lines between breakpoints. Within a piece it is the alpha-beta model (Hockney,
"The communication challenge for MPP", 1994); a library changes its protocol or algorithm with the size (NCCL: LL, LL128,
Simple; ring, tree), hence the pieces. Relative errors are minimised by least squares with Huber's weights, so that all sizes
count equally and a single disturbed size has little influence. Breakpoints lie at measured sizes; pieces are added as long as
a corrected Bayesian information criterion falls. Pure functions: bytes and microseconds in and out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

MOST_PIECES = 8
SIZES_PER_PIECE = 3  # fewer sizes between breakpoints do not determine a line
_HUBER = 1.345  # 95% efficiency for normal errors (Huber, 1964)
_REWEIGHTINGS = 4
_ERROR_FLOOR = 0.003  # mean relative error below which a better fit does not justify more pieces


@dataclass(frozen=True)
class Curve:
    """A continuous, never falling polygon: `start_us` at size 0, then one slope per piece."""

    breakpoints: tuple[float, ...]  # bytes, between the pieces
    start_us: float
    slopes: tuple[float, ...]  # microseconds per byte, one more than breakpoints

    def times_us(self, sizes_bytes: Values) -> Values:
        """Predicted times at these sizes."""
        coefficients = np.array([self.start_us, *self.slopes])
        times: Values = _design(sizes_bytes, self.breakpoints) @ coefficients
        return times


def _design(sizes_bytes: Values, breakpoints: Sequence[float]) -> Values:
    """A column of ones and, per piece, the bytes of each size that lie in it."""
    edges = [0.0, *breakpoints, np.inf]
    columns = [np.clip(sizes_bytes - low, 0.0, high - low) for low, high in pairwise(edges)]
    return np.column_stack([np.ones_like(sizes_bytes), *columns])


def fit_curve(sizes_bytes: Values, times_us: Values, breakpoints: Sequence[float]) -> Curve:
    """The curve with these breakpoints that minimises Huber's loss of the relative errors."""
    from scipy.optimize import nnls  # slow to import: takes longer than reading a small trace

    rows = _design(sizes_bytes, breakpoints) / times_us[:, None]
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    rows = rows / scale
    weights = np.ones_like(times_us)
    for _ in range(_REWEIGHTINGS):
        root = np.sqrt(weights)
        coefficients, _residual = nnls(rows * root[:, None], root)
        errors = np.abs(rows @ coefficients - 1.0)
        spread = max(1.4826 * float(np.median(errors)), 1e-9)
        weights = np.minimum(1.0, _HUBER * spread / np.maximum(errors, 1e-12))
    start, *slopes = coefficients / scale
    return Curve(tuple(breakpoints), float(start), tuple(float(slope) for slope in slopes))


def relative_errors(curve: Curve, sizes_bytes: Values, times_us: Values) -> Values:
    """|predicted / measured - 1| at each size."""
    errors: Values = np.abs(curve.times_us(sizes_bytes) / times_us - 1.0)
    return errors


def _criterion(curve: Curve, sizes_bytes: Values, times_us: Values) -> float:
    """Schwarz's criterion for Laplace errors (the mean |error| is their scale), corrected for few points.

    Parameters: start, one slope per piece, one place per breakpoint. The correction n / (n - p - 1) is that of
    Hurvich and Tsai (1989) for AIC; without it there would be as many pieces as points.
    """
    count, parameters = len(times_us), 2 * len(curve.slopes)
    if count - parameters - 1 <= 0:
        return np.inf
    scale = float(np.mean(relative_errors(curve, sizes_bytes, times_us))) + _ERROR_FLOOR
    penalty = parameters * np.log(count) * count / (count - parameters - 1)
    return float(2 * count * np.log(scale) + penalty)


def choose_curve(sizes_bytes: Values, times_us: Values) -> Curve:
    """The curve with as many pieces as the data support; sizes ascending, two or more.

    Breakpoints are added one at a time where they reduce the error most, and each is then moved as long as that reduces it
    further. Not every combination is tried.
    """
    best = fit_curve(sizes_bytes, times_us, ())
    best_value = _criterion(best, sizes_bytes, times_us)
    current = best
    for _ in range(1, min(MOST_PIECES, len(sizes_bytes) // SIZES_PER_PIECE)):
        added = _with_one_more(sizes_bytes, times_us, current)
        if added is None:
            break
        current = added
        value = _criterion(current, sizes_bytes, times_us)
        if value < best_value:
            best, best_value = current, value
    return best


def _with_one_more(sizes_bytes: Values, times_us: Values, curve: Curve) -> Curve | None:
    """The best curve with one more breakpoint; None if there is no place for one."""
    tried = [fit_curve(sizes_bytes, times_us, places) for places in _placed(sizes_bytes, curve.breakpoints)]
    if not tried:
        return None

    def error(candidate: Curve) -> float:
        return float(np.mean(relative_errors(candidate, sizes_bytes, times_us)))

    best = min(tried, key=error)
    improved = True
    while improved:
        improved = False
        for index in range(len(best.breakpoints)):
            others = (*best.breakpoints[:index], *best.breakpoints[index + 1 :])
            moved = [fit_curve(sizes_bytes, times_us, places) for places in _placed(sizes_bytes, others)]
            candidate = min(moved, key=error)
            if error(candidate) < error(best) - 1e-9:
                best, improved = candidate, True
    return best


def _placed(sizes_bytes: Values, breakpoints: Sequence[float]) -> list[tuple[float, ...]]:
    """The breakpoints with one more, for each size that leaves each piece enough sizes (including its ends)."""
    places = []
    for size in sizes_bytes[1:-1]:
        together = sorted({*breakpoints, float(size)})
        ends = [-np.inf, *together, np.inf]
        held = [int(np.count_nonzero((sizes_bytes >= low) & (sizes_bytes <= high))) for low, high in pairwise(ends)]
        if len(together) == len(breakpoints) + 1 and min(held) >= SIZES_PER_PIECE:
            places.append(tuple(together))
    return places
