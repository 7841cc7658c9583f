"""A source of costs: a calibration that timed the collective on just these devices, by its fit.

By the fit and not by the measured times of the nearest sizes, since a run's own calibration has few
calls: on `examples/run_cpu` half of the calls predict the other half within 9% (median) by the fit
and within 33% by each size's own median. Where sizes are left out of quiet logs, the fit and lines
between neighbours are equally good (1 to 2%).
"""

import math

from dpscope.analysis.costs.calibration_fit import extrapolated, latency_share, piece_of, predict_us
from dpscope.analysis.costs.cost import Call, Cost, Known, banded
from dpscope.analysis.text.units import show_bytes, show_time
from dpscope.profiling.records.calibration import CollectiveFit

_LEAST_BAND = 0.05  # half, in logarithms
_UNTESTED_BAND = 0.15  # the same where no size left out shows the fit's error; assumed
_LARGEST_ERROR = 0.9


def timed_here(call: Call, known: Known) -> Cost | None:
    """As the fit of the requested rank has it."""
    fit = known.fit(call.kind, call.place, call.statistic)
    if fit is None or not call.on_measured_links:
        return None
    time_us = predict_us(fit, call.size_bytes)
    latency_us = time_us * latency_share(fit, call.size_bytes)
    outside = extrapolated(fit, call.size_bytes)
    words, formula = (f"calibrated on {call.place} devices", _formula(fit, call.size_bytes))
    if outside is not None:
        words += ", beyond its sizes"
        formula += ", extrapolated"
    half = half_band(fit, outside is not None)
    cost = banded(latency_us, time_us - latency_us, half, "calibration", words)
    return cost.computed_by(formula, outside)


def half_band(fit: CollectiveFit, is_outside: bool = False) -> float:
    """In logarithms, by the error of predicting sizes that were left out."""
    error = fit.prediction_relative_error
    if error is None:
        return _UNTESTED_BAND
    least = _LEAST_BAND
    if is_outside:
        least = _UNTESTED_BAND
    known_error = min(error, _LARGEST_ERROR)
    return max(least, -math.log1p(-known_error))


def _formula(fit: CollectiveFit, size_bytes: float) -> str:
    """alpha + S/B of the fit's piece for this size."""
    piece = piece_of(fit, size_bytes)
    size, rate = show_bytes(size_bytes), piece.bandwidth_gb_per_s
    if rate is None:
        return f"alpha = {show_time(piece.alpha_us)} (S = {size} makes no difference)"
    sign = "−" if piece.alpha_us < 0 else ""
    return f"alpha + S/B = {sign}{show_time(abs(piece.alpha_us))} + {size} / {rate:.4g} GB/s"
