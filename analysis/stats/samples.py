"""Medians and their intervals, from how far repeats lie apart. Nothing is reported without spread
and count.

A cell's steps within one repeat share what that repeat had: a clock, a placement, another program.
So every interval here is based on the repeats' medians, taken as logarithms, as what disturbs a
measurement multiplies it. Two repeats alone show little (one degree of freedom), but the cells of a
run share their machine: the spread of the others counts in addition to that of the cell, for
MOST_SHARED degrees of freedom at most, since cells are not quite alike; a cell that spreads more
than that keeps its spread. Source of the weighting: Smyth, "Linear models and empirical Bayes
methods for assessing differential expression", Statistical Applications in Genetics and Molecular
Biology 3(1), 2004, section 3; here with a fixed weight. Assumed: repeats are independent, their
logarithms near normal. The coverage is simulated in tests/analysis/stats/test_interval_coverage.py.

Cells of one run are measured in turns, so a slow minute slows a repeat of each. How their ratio
differs from repeat to repeat leaves that out, and takes no other cell's spread: with three repeats
or more it judges the ratios of a run. Each turn has another order of the cells, so that a machine
that becomes slower or faster favours none of them; where the run shows such a drift, it is taken
out of the differences.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dpscope.analysis.stats.turns import Drift, clear_drift, places_of, unexplained, without_drift

DRAWS = 4000
CONFIDENCE = 0.95
FEWEST_SAMPLES = 5  # below this no interval is given and nothing is compared
MOST_SHARED = 4  # degrees of freedom that the spread of other cells counts for
ENOUGH_TURNS = 3  # to judge a ratio by its own differences from repeat to repeat alone
# degrees of freedom to judge it so with other cells' spread: Student's t is 2.8, with 2 it is 4.3
FEWEST_WITHIN = 4
# half the interval of a logarithm: one that reaches ten times the value says nothing
WIDEST = math.log(10)
NO_INTERVAL = "fewer than 5 timed steps, or too few repeats: no interval"

Floats = npt.NDArray[np.float64]
Samples = Floats
Centre = Callable[..., Any]  # np.median or np.mean
Verdict = Literal["too_few_samples", "no_difference_shown", "above", "below"]

UPPER = (1 + CONFIDENCE) / 2


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval and the number of samples behind it; None is unknown."""

    value: float | None
    low: float | None
    high: float | None
    count: int

    def times(self, factor: float) -> "Estimate":
        """The estimate and its interval, multiplied."""
        value, low, high = (
            None if end is None else end * factor for end in (self.value, self.low, self.high)
        )
        return Estimate(value, low, high, self.count)

    def record(self, name: str) -> dict[str, float | None]:
        """The value under this name, and the ends of its interval."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


class Interval(NamedTuple):
    """The ends of a 95% interval, both known."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the value differs from 0."""
        return self.low > 0 or self.high < 0

    def half_width(self, value: float) -> float:
        """How far it reaches from its value, on the wider side: the lower end may be cut at 0."""
        return max(value - self.low, self.high - value)


UNKNOWN = Estimate(None, None, None, 0)


@dataclass(frozen=True)
class Range:
    """A mean or median with the smallest and the largest of its values, which are no interval: more
    values widen it.
    """

    value: float | None
    smallest: float | None
    largest: float | None
    count: int


NOTHING = Range(None, None, None, 0)


@dataclass(frozen=True)
class Spread:
    """How far repeats lie from their own cell's mean: squared distances, added up, and their
    degrees of freedom.

    `within`: what is left of it without what the cells' repeats of the same number share; None
    unless measured in turns. `drift`: of the turns, if it is significant; taken out of `within`.
    """

    squares: float = 0.0
    freedom: int = 0
    within: "Spread | None" = None
    drift: Drift | None = None

    def __add__(self, other: "Spread") -> "Spread":
        return Spread(self.squares + other.squares, self.freedom + other.freedom)


ALONE = Spread()  # no other cell is known


def spread_of(values: Samples | Sequence[float]) -> Spread:
    """The spread of one cell's repeats, a value each."""
    if not len(values):
        return ALONE
    return Spread(float(np.sum((np.asarray(values) - np.mean(values)) ** 2)), len(values) - 1)


def pooled_spread(cells: Iterable[Sequence[Samples]], centre: Centre = np.median) -> Spread:
    """The spread of the logarithms of repeats' medians or means over cells, each of them one array
    of samples per repeat.
    """
    return sum(
        (
            spread_of(logs)
            for repeats in cells
            if (logs := _log_centres(repeats, centre)) is not None
        ),
        ALONE,
    )


def spread_in_turns(cells: Iterable[Sequence[Samples]]) -> Spread:
    """`pooled_spread` of cells measured in turns: each one's first repeat, then each one's second.

    `within` is what a level for each cell, one for each turn and, if significant, a drift leave
    unexplained, by least squares.
    """
    known = [
        (logs, places_of(repeats))
        for repeats in cells
        if (logs := _log_centres(repeats)) is not None
    ]
    if not known:
        return Spread(within=ALONE)
    cell = np.repeat(np.arange(len(known)), [len(logs) for logs, _ in known])
    turn = np.concatenate([np.arange(len(logs)) for logs, _ in known])
    levels = np.column_stack(
        [cell[:, None] == np.arange(len(known)), turn[:, None] == np.arange(turn.max() + 1)]
    )
    left, freedom = unexplained(levels.astype(float), np.concatenate([logs for logs, _ in known]))
    within, drift = Spread(float(np.sum(left**2)), freedom), None
    placed = [places for _, places in known if places is not None]
    if len(placed) == len(known):
        drift = clear_drift(
            left, unexplained(levels.astype(float), np.concatenate(placed))[0], freedom
        )
    if drift is not None:
        within = Spread(max(0.0, within.squares - drift.squares), freedom - 1)
    return replace(sum((spread_of(logs) for logs, _ in known), ALONE), within=within, drift=drift)


@dataclass(frozen=True)
class Noise:
    """How far one more repeat of a cell would lie from its mean, and how well that is known."""

    variance: float  # of one repeat
    cell_freedom: int
    shared_freedom: int  # of other cells, MOST_SHARED at most
    repeats: int

    @property
    def freedom(self) -> int:
        return self.cell_freedom + self.shared_freedom

    def quantile(self, share: float) -> float:
        """How far the mean lies off at most in `share` of cases, by Student's t."""
        from scipy.special import stdtrit  # here, as not every reader of these types fits anything

        return float(stdtrit(self.freedom, share)) * math.sqrt(self.variance / self.repeats)


@functools.cache
def student_t(freedom: int) -> float:
    """Student's t below which 97.5% of cases lie, for a two-sided 95% interval, without scipy,
    whose import takes 0.1 s.

    The expansion in 1/freedom (Abramowitz and Stegun 26.7.5), refined by Newton's method where it
    is inexact.
    """
    z = NormalDist().inv_cdf(UPPER)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    t: float = z + sum(term / freedom**power for power, term in enumerate(terms, 1))
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(
        freedom * math.pi
    )
    for _ in range(8 if freedom < 100 else 0):
        density: float = scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        t -= (0.5 + _central(t, freedom) / 2 - UPPER) / density
    return t


def _central(t: float, freedom: int) -> float:
    """Probability of -t to t under Student's t, whole degrees of freedom (Abramowitz and Stegun
    26.7.3 and 26.7.4).
    """
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for power in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (power - 1) / power
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def noise_of(values: Samples | Sequence[float], pool: Spread = ALONE) -> Noise | None:
    """The noise of a cell's repeats, a value each; None where their spread is unknown.

    `pool` is the spread of all cells, this one among them. The variance is the mean of the cell's
    own and of the others', weighted by degrees of freedom, or the cell's own where that is larger;
    Student's t has the sum of the two freedoms.
    """
    own = spread_of(values)
    others = Spread(max(0.0, pool.squares - own.squares), max(0, pool.freedom - own.freedom))
    shared = min(MOST_SHARED, others.freedom)
    freedom = own.freedom + shared
    if not len(values) or not freedom:
        return None
    squares = own.squares + (shared * others.squares / others.freedom if shared else 0.0)
    variance = max(squares / freedom, own.squares / own.freedom if own.freedom else 0.0)
    return Noise(variance, own.freedom, shared, len(values))


def half_width(values: Samples | Sequence[float], pool: Spread = ALONE) -> float | None:
    """Half the 95% interval of the mean of `values`, a cell's repeats; None where their spread is
    unknown.
    """
    noise = noise_of(values, pool)
    return None if noise is None else noise.quantile(UPPER)


def centre_noise(
    repeats: Sequence[Samples], pool: Spread = ALONE, centre: Centre = np.median
) -> Noise | None:
    """The noise of the logarithms of repeats' medians or means, from which `median_estimate` and
    `ratio_estimate` derive.
    """
    logs = _log_centres(repeats, centre)
    return (
        noise_of(logs, pool)
        if logs is not None and sum(map(len, repeats)) >= FEWEST_SAMPLES
        else None
    )


def chance_above(ratio: Estimate) -> float | None:
    """How likely the true ratio is above 1, as the interval has it (log-normal, as `draws`); None
    without an interval.
    """
    if not ratio.low or not ratio.high:
        return None
    middle = math.log(ratio.low * ratio.high) / 2
    half = math.log(ratio.high / ratio.low) / 2
    if half == 0:
        return 0.5 if middle == 0 else float(middle > 0)
    from scipy.special import ndtr, ndtri

    return float(ndtr(middle / half * ndtri(UPPER)))


def pooled_median(repeats: Sequence[Samples]) -> float | None:
    """Median over all repeats' samples, None without any."""
    return _pooled(repeats, np.median)


def _pooled(repeats: Sequence[Samples], centre: Centre) -> float | None:
    kept = [repeat for repeat in repeats if len(repeat)]
    return float(centre(np.concatenate(kept))) if kept else None


def median_estimate(repeats: Sequence[Samples], pool: Spread = ALONE) -> Estimate:
    """Median over all repeats' samples; the interval is that of the geometric mean of the repeats'
    medians.

    `repeats`: one array of samples per repeat. `pool`: `pooled_spread` of all cells that share the
    machine. No interval below FEWEST_SAMPLES samples, where no cell has a second repeat, or where
    so few repeats lie so far apart that it exceeds WIDEST.
    """
    return _around(pooled_median(repeats), _half_width(repeats, pool), sum(map(len, repeats)))


def ratio_estimate(
    numerator: Sequence[Samples],
    denominator: Sequence[Samples],
    pool: Spread = ALONE,
    centre: Centre = np.median,
) -> Estimate:
    """Ratio of two medians, or means, with its interval; `count` is the smaller side's. `pool` is
    of the same centres.

    Cells measured in turns (`spread_in_turns`) three times or more are compared repeat by repeat.
    Of others the sides' half widths, of logarithms, add up as squares do. Source: Zou and Donner,
    "Construction of confidence limits about effect measures: a general approach", Statistics in
    Medicine 27(10), 2008.
    """
    above = _pooled(numerator, centre)
    below = _pooled(denominator, centre)
    count = min(sum(map(len, numerator)), sum(map(len, denominator)))
    if above is None or below is None:
        return UNKNOWN
    value = above / below if below else None
    bounds = _ratio_bounds(numerator, denominator, pool, centre)
    if value is None or bounds is None:
        return Estimate(value, None, None, count)
    middle, half = bounds
    # the medians of all steps hold it
    if pool.drift is not None and len(numerator) >= ENOUGH_TURNS:
        value = math.exp(middle)
    return Estimate(
        value, min(value, math.exp(middle - half)), max(value, math.exp(middle + half)), count
    )


def difference_estimate(
    first: Sequence[Samples], second: Sequence[Samples], pool: Spread = ALONE
) -> Estimate:
    """First median minus second with its interval, by `joint_draws`; `count` is the smaller
    side's.
    """
    more = pooled_median(first)
    less = pooled_median(second)
    count = min(sum(map(len, first)), sum(map(len, second)))
    if more is None or less is None:
        return UNKNOWN
    drawn = joint_draws(first, [second], pool)
    low, high = interval(drawn[0] - drawn[1]) if drawn is not None else (None, None)
    return Estimate(more - less, low, high, count)


def joint_draws(
    first: Sequence[Samples], others: Sequence[Sequence[Samples]], pool: Spread = ALONE
) -> list[Samples] | None:
    """DRAWS medians of the first cell, then of each other one, for what is computed from several;
    None if one has no interval.

    Log-normal, with the interval of `median_estimate` as the middle 95%, and so correlated with the
    first cell's that their ratio to it has the interval of `ratio_estimate`.
    """
    half, (normal, *normals) = _half_width(first, pool), _normal_draws(1 + len(others))
    if half is None:
        return None
    logs = [half * normal]
    for other, own_normal in zip(others, normals, strict=True):
        own = _half_width(other, pool)
        of_ratio = _ratio_bounds(first, other, pool)
        if own is None or of_ratio is None:
            return None
        shared = (half**2 + own**2 - of_ratio[1] ** 2) / (2 * half * own) if half and own else 0.0
        shared = min(1.0, max(-1.0, shared))
        logs.append(own * (shared * normal + math.sqrt(1 - shared**2) * own_normal))
    centres = [np.median(np.concatenate(cell)) for cell in (first, *others)]
    return [centre * np.exp(drawn) for centre, drawn in zip(centres, logs, strict=True)]


@functools.cache
def _normal_draws(count: int) -> Samples:
    """`count` independent normal numbers, DRAWS of each, 95% of them within 1 of 0.

    Each holds the same evenly likely values, in orders that fill the space of combinations more
    evenly than random ones: the ends of an interval are 10 times as exact. Source of the orders:
    Roberts, "The Unreasonable Effectiveness of Quasirandom Sequences", 2018 (multiples of the
    powers of 1/x, where x^count = x + 1).
    """
    from scipy.special import ndtri

    step = functools.reduce(lambda root, _: (1 + root) ** (1 / count), range(64), 2.0)
    places = (np.arange(DRAWS) + 0.5)[:, None] * step ** -np.arange(float(count)) % 1
    places[:, 0] = np.arange(DRAWS)
    quantiles: Samples = ndtri((np.arange(DRAWS) + 0.5) / DRAWS) / ndtri(UPPER)
    return quantiles[places.argsort(axis=0).argsort(axis=0)].T


def interval(drawn: Samples) -> tuple[float, float]:
    """The middle 95% of draws."""
    low, high = np.quantile(drawn, (1 - UPPER, UPPER))
    return float(low), float(high)


def median_slope(values: Samples, confidence: float) -> tuple[float, float, float]:
    """The median of all pairwise slopes of a series, per place, and the ends of its interval.

    Sources: Theil, 1950; Sen, "Estimates of the regression coefficient based on Kendall's tau",
    Journal of the American Statistical Association 63, 1968, equation 2.6 for the interval, which
    allows for equal values. Assumed: independent values.
    """
    from scipy.special import ndtri

    count = len(values)
    first, second = np.triu_indices(count, 1)
    slopes = np.sort((values[second] - values[first]) / (second - first))
    _, equal = np.unique(values, return_counts=True)
    variance = (
        count * (count - 1) * (2 * count + 5) - int((equal * (equal - 1) * (2 * equal + 5)).sum())
    ) / 18
    reach = float(ndtri((1 + confidence) / 2)) * math.sqrt(variance)
    low = round((len(slopes) - reach) / 2) - 1
    high = round((len(slopes) + reach) / 2)
    return (
        float(np.median(slopes)),
        float(slopes[max(low, 0)]),
        float(slopes[min(high, len(slopes) - 1)]),
    )


def _half_width(repeats: Sequence[Samples], pool: Spread) -> float | None:
    """Half the width of the interval of the logarithm of a median; None if there is no interval, or
    one beyond WIDEST.
    """
    noise = centre_noise(repeats, pool)
    half = None if noise is None else noise.quantile(UPPER)
    return half if half is None or half <= WIDEST else None


def _ratio_bounds(
    first: Sequence[Samples], second: Sequence[Samples], pool: Spread, centre: Centre = np.median
) -> tuple[float, float] | None:
    """Middle and half width of the interval of the logarithm of a ratio of medians or means; None
    if it is wider than WIDEST.

    The ratio of all steps' medians with both sides' half widths, added up as squares; of cells
    measured in turns three times or more the mean of the differences from repeat to repeat with
    that mean's half width. Two differences do not show how far they spread: what all cells show
    within turns counts, too, if enough is known of it (a difference has twice the variance of one
    repeat), and the narrower interval.
    """
    noises = centre_noise(first, pool, centre), centre_noise(second, pool, centre)
    if noises[0] is None or noises[1] is None:
        return None
    middle = math.log(float(centre(np.concatenate(first))) / float(centre(np.concatenate(second))))
    half = math.hypot(noises[0].quantile(UPPER), noises[1].quantile(UPPER))
    above = _log_centres(first, centre)
    below = _log_centres(second, centre)
    if (
        pool.within is not None
        and above is not None
        and below is not None
        and len(above) == len(below)
    ):
        differences, freedom = without_drift(above - below, first, second, pool.drift)
        if len(differences) >= ENOUGH_TURNS:
            middle = float(np.mean(differences))
            half = _mean_half_width(differences, freedom)
        else:
            noise = noise_of(differences, Spread(2 * pool.within.squares, pool.within.freedom))
            if noise is not None and noise.freedom >= FEWEST_WITHIN:
                half = min(half, noise.quantile(UPPER) + abs(middle - float(np.mean(differences))))
    return (middle, half) if half <= WIDEST else None


def _mean_half_width(values: Samples, freedom: float) -> float:
    from scipy.special import stdtrit

    squares = float(np.sum((values - values.mean()) ** 2))
    return float(stdtrit(freedom, UPPER)) * math.sqrt(squares / freedom / len(values))


def _log_centres(repeats: Sequence[Samples], centre: Centre = np.median) -> Samples | None:
    """None without samples, or where a median or mean has no logarithm."""
    found = _centres([repeat for repeat in repeats if len(repeat)], centre)
    return np.log(found) if len(found) and found.min() > 0 else None


def medians(samples: Sequence[Samples]) -> Samples:
    """The median of each."""
    return _centres(samples, np.median)


def _centres(samples: Sequence[Samples], centre: Centre) -> Samples:
    """Of equal lengths in one call of numpy, which takes longer to begin than to find a few
    medians.
    """
    if samples and all(len(sample) == len(samples[0]) for sample in samples):
        return np.asarray(centre(np.stack(samples), axis=1))
    return np.array([centre(sample) for sample in samples])


def _around(value: float | None, half: float | None, count: int) -> Estimate:
    """The value is the centre of its interval, of logarithms."""
    if value is None or half is None:
        return Estimate(value, None, None, count)
    return Estimate(value, value * math.exp(-half), value * math.exp(half), count)


def verdict(estimate: Estimate, even: float = 1.0) -> Verdict:
    """Whether an estimate is significantly above or below `even` (1 for a ratio, 0 for a
    difference), by its interval.
    """
    if estimate.low is None or estimate.high is None:
        return "too_few_samples"
    if estimate.low > even:
        return "above"
    return "below" if estimate.high < even else "no_difference_shown"


def mean_range(values: Sequence[float]) -> Range:
    """Mean with the range of the values: for few values, such as repeats or ranks."""
    return _range(np.mean, values)


def median_range(values: Sequence[float]) -> Range:
    """Median with the range of the values: for few values, such as seeds."""
    return _range(np.median, values)


def _range(centre: Callable[[Samples], Any], values: Sequence[float]) -> Range:
    if not len(values):
        return NOTHING
    return Range(
        float(centre(np.asarray(values))), float(np.min(values)), float(np.max(values)), len(values)
    )
