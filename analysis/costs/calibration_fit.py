"""Fits of a calibration's collectives, and predictions from them with their errors: t = alpha +
S/B, in pieces where needed.

The value of a size is the median of its iterations. Intervals (95%) are percentiles of a bootstrap
with fixed breakpoints: over the iterations of each size if there are enough, else over the fit's
relative residuals. They show how well a line is known. How well it describes the machine is shown
by the fit's errors.

Model: continuous, never falling straight lines between breakpoints. Within a piece it is the
alpha-beta model (Hockney, "The communication challenge for MPP", 1994); a library changes its
protocol or algorithm with the size (NCCL: LL, LL128, Simple; ring, tree), hence the pieces.
Relative errors are minimised by least squares with Huber's weights, so that all sizes count equally
and a single disturbed size has little influence. Breakpoints lie at measured sizes; pieces are
added as long as a corrected Bayesian information criterion falls. The curve's functions are pure:
bytes and microseconds in and out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from dpscope.analysis.costs.formulas import bus_gb_per_s
from dpscope.analysis.stats.samples import medians
from dpscope.analysis.text.units import show_bytes
from dpscope.profiling.records.calibration import (
    Calibration,
    CalibrationPoint,
    CollectiveFit,
    FitPiece,
)
from dpscope.profiling.records.finding import grouped

Statistic = Literal["slowest", "shortest"]  # of the ranks of an iteration
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
        times: Values = _design(sizes_bytes, self.breakpoints) @ np.array(
            [self.start_us, *self.slopes]
        )
        return times

    def relative_errors(self, sizes_bytes: Values, times_us: Values) -> Values:
        """|predicted / measured - 1| at each size."""
        errors: Values = np.abs(self.times_us(sizes_bytes) / times_us - 1.0)
        return errors


def _design(sizes_bytes: Values, breakpoints: Sequence[float]) -> Values:
    """A column of ones and, per piece, the bytes of each size that lie in it."""
    edges = np.array([0.0, *breakpoints, np.inf])
    beyond = np.maximum(sizes_bytes[:, None] - edges[:-1], 0.0)
    inside = np.minimum(beyond, np.diff(edges))
    ones = np.ones((len(sizes_bytes), 1))
    return np.concatenate((ones, inside), axis=1)


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
        deviation = max(1.4826 * _median(errors), 1e-9)
        weights = np.minimum(1.0, _HUBER * deviation / np.maximum(errors, 1e-12))
    start, *slopes = (coefficients / scale).tolist()
    return Curve(tuple(breakpoints), start, tuple(slopes))


def _median(values: Values) -> float:
    """In a tenth of the time of numpy's."""
    ordered = np.sort(values)
    middle = len(values) // 2
    upper = float(ordered[middle])
    if len(values) % 2:
        return upper
    lower = float(ordered[middle - 1])
    return (lower + upper) / 2


def _criterion(curve: Curve, sizes_bytes: Values, times_us: Values) -> float:
    """Schwarz's criterion for Laplace errors (the mean |error| is their scale), corrected for few
    points.

    Parameters: start, one slope per piece, one place per breakpoint. The correction n / (n - p - 1)
    is that of Hurvich and Tsai (1989) for AIC; without it there would be as many pieces as points.
    """
    count = len(times_us)
    parameters = 2 * len(curve.slopes)
    if count - parameters - 1 <= 0:
        return np.inf
    scale = float(np.mean(curve.relative_errors(sizes_bytes, times_us))) + _ERROR_FLOOR
    penalty = parameters * np.log(count) * count / (count - parameters - 1)
    return float(2 * count * np.log(scale) + penalty)


def choose_curve(sizes_bytes: Values, times_us: Values) -> Curve:
    """The curve with as many pieces as the data support; sizes ascending, two or more.

    Breakpoints are added one at a time where they reduce the error most, and each is then moved as
    long as that reduces it further: not every combination is tried.
    """
    curves = [fit_curve(sizes_bytes, times_us, ())]
    for _ in range(1, min(MOST_PIECES, len(sizes_bytes) // SIZES_PER_PIECE)):
        places = _placed(sizes_bytes, curves[-1].breakpoints)
        if not places:
            break
        curves.append(_with_one_more(sizes_bytes, times_us, places))
    return min(curves, key=lambda curve: _criterion(curve, sizes_bytes, times_us))


def _with_one_more(
    sizes_bytes: Values, times_us: Values, places: Sequence[tuple[float, ...]]
) -> Curve:
    def best_of(places: Sequence[tuple[float, ...]]) -> tuple[float, Curve]:
        fitted = []
        for place in places:
            curve = fit_curve(sizes_bytes, times_us, place)
            errors = curve.relative_errors(sizes_bytes, times_us)
            fitted.append((float(np.mean(errors)), curve))
        return min(fitted, key=lambda pair: pair[0])

    error, best = best_of(places)
    improved = True
    while improved:
        improved = False
        for index in range(len(best.breakpoints)):
            others = (*best.breakpoints[:index], *best.breakpoints[index + 1 :])
            moved_error, moved = best_of(_placed(sizes_bytes, others))
            if moved_error < error - 1e-9:
                error, best, improved = moved_error, moved, True
    return best


def _placed(sizes_bytes: Values, breakpoints: Sequence[float]) -> list[tuple[float, ...]]:
    """The breakpoints with one more, for each size that leaves each piece enough sizes (including
    its ends).
    """
    places = []
    for size in sizes_bytes[1:-1]:
        together = sorted({*breakpoints, float(size)})
        ends = [-np.inf, *together, np.inf]
        held = [
            int(np.count_nonzero((sizes_bytes >= low) & (sizes_bytes <= high)))
            for low, high in pairwise(ends)
        ]
        if len(together) == len(breakpoints) + 1 and min(held) >= SIZES_PER_PIECE:
            places.append(tuple(together))
    return places


RESAMPLES = 300
FEWEST_ITERATIONS = 5  # of every size, for a bootstrap over them
FEWEST_SIZES = 5  # for an error of prediction
_UNRELIABLE = 0.5  # of a predicted time: a larger error
_TAILS = (0.025, 0.975)
# of measurements at sizes left out in turn that lie within the stated error of prediction
PREDICTED_SHARE = 0.9


def fit_calibration(calibration: Calibration) -> Calibration:
    """The calibration with a fit for each collective and layout with at least two sizes; the fits
    that it has are kept.

    One fit is of the slowest rank's times; if they were recorded, another is of the shortest, which
    traces' transfers are.
    """
    timed = [point for point in calibration.points if point.size_bytes > 0 and point.times_us]
    by_layout = grouped(((point.collective, point.devices, point.nodes), point) for point in timed)
    fits = list(calibration.fits)
    had = {(fit.collective, fit.devices, fit.nodes, fit.statistic) for fit in fits}
    for layout, points in by_layout.items():
        sizes = {point.size_bytes for point in points}
        for statistic, samples in _samples(points).items():
            if len(sizes) > 1 and (*layout, statistic) not in had:
                fit = fit_collective(samples)
                fits.append(msgspec.structs.replace(fit, statistic=statistic))
    fits.sort(key=lambda fit: fit.statistic, reverse=True)
    return msgspec.structs.replace(calibration, fits=tuple(fits))


def _samples(points: Sequence[CalibrationPoint]) -> dict[Statistic, Sequence[CalibrationPoint]]:
    """The points with the times of each statistic that was recorded of all of them."""
    samples: dict[Statistic, Sequence[CalibrationPoint]] = {"slowest": points}
    if all(point.shortest_us for point in points):
        samples["shortest"] = [
            msgspec.structs.replace(point, times_us=point.shortest_us) for point in points
        ]
    return samples


def fit_collective(points: Sequence[CalibrationPoint]) -> CollectiveFit:
    """Fit the points of one collective on one device count; points of equal size are merged."""
    samples = grouped((point.size_bytes, time_us) for point in points for time_us in point.times_us)
    sizes = np.array(sorted(samples), dtype=float)
    iterations = [np.array(samples[int(size)]) for size in sizes]
    times = medians(iterations)
    curve = choose_curve(sizes, times)
    enough = min(map(len, iterations)) >= FEWEST_ITERATIONS
    generator, fitted = np.random.default_rng(0), curve.times_us(sizes)
    curves = []
    for _ in range(RESAMPLES):
        if enough:
            again = medians([generator.choice(values, len(values)) for values in iterations])
        else:
            again = fitted * generator.choice(times / fitted, len(times))
        curves.append(fit_curve(sizes, again, curve.breakpoints))
    errors = curve.relative_errors(sizes, times)
    return CollectiveFit(
        collective=points[0].collective,
        devices=points[0].devices,
        pieces=_pieces(curve, curves),
        sizes=len(sizes),
        smallest_bytes=int(sizes[0]),
        largest_bytes=int(sizes[-1]),
        median_relative_error=float(np.median(errors)),
        largest_relative_error=float(errors.max()),
        prediction_relative_error=_prediction_error(curve, sizes, times, iterations),
        interval_source="samples" if enough else "residuals",
        nodes=points[0].nodes,
    )


def _prediction_error(
    curve: Curve, sizes: Values, times: Values, iterations: Sequence[Values]
) -> float | None:
    """The relative error that PREDICTED_SHARE of measurements do not exceed when their size is left
    out of the fit.

    A measurement is the median of some consecutive iterations, so that changes over time are part
    of the error.
    """
    if len(sizes) < FEWEST_SIZES:
        return None
    errors: list[float] = []
    for index, timed in enumerate(iterations):
        kept = np.arange(len(sizes)) != index
        without = fit_curve(sizes[kept], times[kept], curve.breakpoints)
        parts = np.array_split(timed, max(1, len(timed) // FEWEST_ITERATIONS))
        same_size = np.full(len(parts), sizes[index])
        errors += without.relative_errors(same_size, medians(parts)).tolist()
    return float(np.quantile(errors, PREDICTED_SHARE, method="higher"))


def _pieces(curve: Curve, resampled: Sequence[Curve]) -> tuple[FitPiece, ...]:
    """The lines of a curve, each with its interval over the resampled curves."""
    edges = [0, *map(round, curve.breakpoints), None]
    spread = np.array([_lines(other) for other in resampled])  # resample, piece, (alpha, slope)
    lowest, highest = np.quantile(spread, _TAILS, axis=0).tolist()
    pieces = []
    for place, (alpha_us, slope) in enumerate(_lines(curve)):
        least_alpha_us, least_slope = lowest[place]
        most_alpha_us, most_slope = highest[place]
        piece = FitPiece(
            from_bytes=edges[place] or 0,
            to_bytes=edges[place + 1],
            alpha_us=alpha_us,
            alpha_low_us=least_alpha_us,
            alpha_high_us=most_alpha_us,
            bandwidth_gb_per_s=_bandwidth_gb_per_s(slope),
            bandwidth_low_gb_per_s=_bandwidth_gb_per_s(most_slope),
            bandwidth_high_gb_per_s=_bandwidth_gb_per_s(least_slope),
        )
        pieces.append(piece)
    return tuple(pieces)


def _lines(curve: Curve) -> list[tuple[float, float]]:
    """alpha (us) and slope (us/B) of the line each piece lies on."""
    lines = []
    at, alpha = 0.0, curve.start_us
    for begin, slope in zip((0.0, *curve.breakpoints), curve.slopes, strict=True):
        alpha += (at - slope) * begin
        at = slope
        lines.append((alpha, slope))
    return lines


def _bandwidth_gb_per_s(slope_us_per_byte: float) -> float | None:
    """1e9 B/s; None if time does not depend on the size (below 1e-12 us per byte, a million
    GB/s).
    """
    return 1e-3 / slope_us_per_byte if slope_us_per_byte > 1e-12 else None


def predict_us(fit: CollectiveFit, size_bytes: float) -> float:
    """The time of one call that moves `size_bytes` (the larger of a rank's input and output
    buffer).

    Outside the measured sizes the nearest piece's line is extended: see `extrapolated`.
    """
    piece = piece_of(fit, size_bytes)
    transfer_us = size_bytes / piece.bandwidth_gb_per_s / 1e3 if piece.bandwidth_gb_per_s else 0.0
    return piece.alpha_us + transfer_us


def extrapolated(fit: CollectiveFit, size_bytes: float) -> str | None:
    """How far a size is outside the measured ones; None if it is among them."""
    smallest, largest = fit.smallest_bytes, fit.largest_bytes
    if smallest <= size_bytes <= largest:
        return None
    measured = f"{show_bytes(smallest)} to {show_bytes(largest)}"
    return f"{show_bytes(size_bytes)} is outside the sizes measured ({measured})"


def latency_share(fit: CollectiveFit, size_bytes: float) -> float:
    """The share of one call of `size_bytes` that an empty message takes, 0 to 1."""
    time_us = predict_us(fit, size_bytes)
    if time_us <= 0:
        return 0.0
    return min(1.0, max(0.0, fit.pieces[0].alpha_us / time_us))


def piece_of(fit: CollectiveFit, size_bytes: float) -> FitPiece:
    """The piece of a fit that a size lies in."""
    return next(part for part in fit.pieces if part.to_bytes is None or size_bytes <= part.to_bytes)


def find_fit(
    calibration: Calibration, collective: str, devices: int, statistic: Statistic = "slowest"
) -> CollectiveFit | None:
    """The fit of a collective on exactly this many devices, of the slowest ranks where there is no
    other; None for none.
    """
    place = (collective, devices)
    fits = [fit for fit in calibration.fits if (fit.collective, fit.devices) == place]
    return min(fits, key=lambda fit: fit.statistic != statistic, default=None)


def largest_bus_gb_per_s(fit: CollectiveFit) -> float | None:
    """Bus bandwidth at the largest size measured, by the fit, 1e9 B/s; None for a collective
    without a ring formula.
    """
    return bus_gb_per_s(
        fit.collective, fit.largest_bytes, fit.devices, predict_us(fit, fit.largest_bytes)
    )


def measured_bus_gb_per_s(calibration: Calibration, fit: CollectiveFit) -> float | None:
    """The same by the median of the calls of that size, of the fit's rank; None where they are not
    stored.
    """
    for point in calibration.points:
        place = (point.collective, point.devices, point.size_bytes)
        if place == (fit.collective, fit.devices, fit.largest_bytes):
            times_us = point.times_us
            if fit.statistic == "shortest":
                times_us = point.shortest_us
            time_us = float(np.median(times_us))
            return bus_gb_per_s(fit.collective, fit.largest_bytes, fit.devices, time_us)
    return None


def with_measured(fitted: str, measured_gb_per_s: float | None) -> str:
    """The words of a fitted rate, with what was measured at its size where that is stored."""
    if measured_gb_per_s is None:
        return fitted
    return f"{fitted}, {measured_gb_per_s:.3g} as measured there"


def _is_noisy(fit: CollectiveFit) -> bool:
    """Whether sizes are predicted from the others too badly to rely on."""
    error = fit.prediction_relative_error or 0.0
    return error > _UNRELIABLE


def noisy_fits(calibration: Calibration) -> list[CollectiveFit]:
    """Fits too bad to rely on: of each collective and layout the worse of the ranks' two."""
    noisy = list(filter(_is_noisy, calibration.fits))
    noisy.sort(key=lambda fit: fit.prediction_relative_error or 0.0)
    worst: dict[tuple[str, int, int | None], CollectiveFit] = {}
    for fit in noisy:
        worst[fit.collective, fit.devices, fit.nodes] = fit
    return list(worst.values())


def predicts_badly(calibration: Calibration, fit: CollectiveFit) -> bool:
    """Whether either of the ranks' two fits of the collective and layout of `fit` is too bad."""
    where = (fit.collective, fit.devices, fit.nodes)
    noisy = noisy_fits(calibration)
    places = [(other.collective, other.devices, other.nodes) for other in noisy]
    return where in places


def noise_message(noisy: Sequence[CollectiveFit]) -> str:
    """How far these fits are off, wherever that is reported."""
    errors = []
    for fit in noisy:
        place = f"{fit.devices} devices"
        if fit.nodes not in (None, 1):
            place = f"{place} over {fit.nodes} nodes"
        errors.append(f"{fit.prediction_relative_error:.0%} ({fit.collective}, {place})")
    return f"the calibration's fit is off by up to {', '.join(errors)}"
