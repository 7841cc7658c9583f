"""Which of a few laws predicts best the measurements that were left out of its fit, and what it
predicts elsewhere.

Laws are linear in their coefficients: a measurement is the sum of a law's terms, each times its
coefficient. Fits minimise the squared relative error. Errors are logarithms of predicted over
measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpscope.analysis.stats.samples import Floats

Flags = npt.NDArray[np.bool_]

_EQUAL = 1e-9  # errors this close are rounding: the law that stands first is taken
_INSIDE = 0.9  # share of the rows left out that lie within the error
FARTHEST = 8.0  # times the largest measured device count: beyond it no number is given
WIDEST_BAND = 3.0  # times shorter or longer: with a wider band no number is given
# log2 of the times beyond the largest measured count, and half a 90% band in logarithms: from
# public series of steps
_DOUBLINGS = (0.0, 1.0, 2.0, math.log2(FARTHEST))
_HALVES = (0.0, 0.06, 0.12, 0.25)


def half_band_beyond(times_largest: float) -> float:
    """Half the band that any prediction has at so many times the largest measured device count."""
    return float(np.interp(math.log2(times_largest), _DOUBLINGS, _HALVES))


def too_wide(half_band: float) -> str | None:
    """Why a prediction with half a band of this (in logarithms) is not given; None if it is."""
    times = math.exp(half_band)
    if times <= WIDEST_BAND:
        return None
    return f"the band would be {times:.3g} times either way; the limit is {WIDEST_BAND:g}"


@dataclass(frozen=True)
class Law:
    """`terms` has a row per measurement, `target` holds those of the configuration in question."""

    name: str
    terms: Floats
    target: Floats
    costs: bool = False  # the coefficients are costs, so that none is negative

    def predict(self, measured: Floats, kept: Flags, wanted: Floats) -> Floats | None:
        """What the law, fitted to the measurements `kept` (flags), gives at rows of terms.

        None where those measurements leave a coefficient open, and where the law is not above 0.
        """
        terms = self.terms[kept]
        rank = np.linalg.matrix_rank(terms)
        if any(np.linalg.matrix_rank(np.vstack([terms, row])) > rank for row in wanted):
            return None
        relative = terms / measured[kept][:, None]
        ones = np.ones(len(relative))
        if self.costs:
            # takes longer than reading a table: only who fits pays for it
            from scipy.optimize import nnls

            coefficients = np.asarray(nnls(relative, ones)[0])
        else:
            coefficients = np.asarray(np.linalg.lstsq(relative, ones)[0])
        predicted: Floats = wanted @ coefficients
        return predicted if np.all(predicted > 0) else None

    def at_target(self, measured: Floats) -> float | None:
        """What the law, fitted to all measurements, gives for the configuration in question; None
        as in `predict`.
        """
        predicted = self.predict(measured, measured > 0, self.target[None, :])
        return None if predicted is None else float(predicted[0])


@dataclass(frozen=True)
class BestLaw:
    """A law's value, and its error on the rows left out, in logarithms: root mean square, and what
    90% of them lie within.
    """

    law: str
    value: float
    error: float
    within: float
    rows: int


def best_law(laws: Sequence[Law], counts: Floats, measured: Floats, devices: int) -> BestLaw | None:
    """The law with the smallest error on the counts left out; None if the others determine none
    there.

    Left out are the counts in the direction of `devices`: the largest, the smallest, or each one
    between them. Of equally good laws the first is taken.
    """
    best: BestLaw | None = None
    for law in laws:
        errors = _errors_left_out(law, counts, measured, devices)
        value = law.at_target(measured)
        if errors is None or value is None:
            continue
        error = math.sqrt(float(np.mean(errors**2)))
        if best is None or error < best.error - _EQUAL:
            within = float(np.quantile(np.abs(errors), _INSIDE))
            best = BestLaw(law.name, value, error, within, len(errors))
    return best


def _errors_left_out(law: Law, counts: Floats, measured: Floats, devices: int) -> Floats | None:
    """Of every row left out; None where the other rows do not determine the law at the count that
    is nearest to `devices`.
    """
    errors = []
    for count, fitted in _left_out(counts, devices):
        out = counts == count
        predicted = law.predict(measured, fitted, law.terms[out])
        if predicted is not None:
            errors.append(np.log(predicted / measured[out]))
        elif not errors:
            return None
    return np.concatenate(errors)


def _left_out(counts: Floats, devices: int) -> list[tuple[float, Flags]]:
    """Counts to leave out, that nearest to `devices` first, and the measurements (flags) that each
    is predicted from.

    Above all counts: those above half of the largest, from the smaller ones. Below: the smallest.
    Else each one between.
    """
    known = sorted(set(counts.tolist()))
    if devices >= known[-1]:
        return [(count, counts < count) for count in reversed(known[1:]) if 2 * count > known[-1]]
    if devices <= known[0]:
        return [(known[0], counts > known[0])]
    return [(count, counts != count) for count in known[1:-1] or known]
