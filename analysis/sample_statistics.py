"""Medians and means with their intervals. Raw samples are kept elsewhere; nothing is shown without spread and count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
CONFIDENCE = 0.95
FEWEST_SAMPLES = 5  # below this no interval is given and nothing is compared
_LARGEST_DRAW = 4_000_000  # numbers held at once

Samples = npt.NDArray[np.float64]
Statistic = Literal["median", "mean"]
Verdict = Literal["too_few_samples", "no_difference_shown", "above", "below"]


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval and the number of samples behind it; None is unknown."""

    value: float | None
    low: float | None
    high: float | None
    count: int


UNKNOWN = Estimate(None, None, None, 0)


def bootstrap(repeats: Sequence[Samples], generator: np.random.Generator, statistic: Statistic = "median") -> Samples:
    """RESAMPLES bootstrap medians or means: repeats are drawn first, then blocks of consecutive steps inside each.

    `repeats` holds one array per repeat, of shape (steps,) or (steps, columns); columns are drawn together, so that sums over
    them keep holding. Returns shape (RESAMPLES,) or (RESAMPLES, columns). Consecutive steps are alike (clocks, caches), so
    single steps drawn freely would make the interval too narrow; blocks are as long as the cube root of a repeat.
    Source: Kuensch, "The jackknife and the bootstrap for general stationary observations", Annals of Statistics 17(3), 1989.
    """
    longest, columns = max(len(repeat) for repeat in repeats), repeats[0].shape[1:]
    at_once = max(1, _LARGEST_DRAW // (len(repeats) * longest * max(1, math.prod(columns))))
    parts = []
    for first in range(0, RESAMPLES, at_once):
        pooled = _resampled(repeats, generator, min(at_once, RESAMPLES - first))
        whole = not np.isnan(pooled).any()
        if statistic == "mean":
            parts.append(np.mean(pooled, axis=1) if whole else np.nanmean(pooled, axis=1))
        else:
            parts.append(np.median(pooled, axis=1) if whole else np.nanmedian(pooled, axis=1))
    return np.concatenate(parts)


def _resampled(repeats: Sequence[Samples], generator: np.random.Generator, count: int) -> Samples:
    """`count` resamples, shape (count, samples, ...); NaN fills where a shorter repeat was drawn for a longer one."""
    block = max(1, round(min(len(repeat) for repeat in repeats) ** (1 / 3)))
    longest, columns = max(len(repeat) for repeat in repeats), repeats[0].shape[1:]
    drawn = np.full((count, len(repeats), longest, *columns), np.nan)
    choices = generator.integers(len(repeats), size=(count, len(repeats)))
    for index, samples in enumerate(repeats):
        resample, place = np.nonzero(choices == index)
        starts = generator.integers(len(samples) - block + 1, size=(len(resample), -(-len(samples) // block)))
        steps = (starts[:, :, None] + np.arange(block)).reshape(len(resample), -1)[:, : len(samples)]
        drawn[resample, place, : len(samples)] = samples[steps]
    return drawn.reshape(count, -1, *columns)


def interval(draws: Samples) -> tuple[float, float]:
    """The 95% interval of bootstrap draws."""
    low, high = np.quantile(draws, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(low), float(high)


def pooled_median(repeats: Sequence[Samples]) -> float | None:
    """Median over all repeats' samples, None without any."""
    kept = [repeat for repeat in repeats if len(repeat)]
    return float(np.median(np.concatenate(kept))) if kept else None


def median_estimate(repeats: Sequence[Samples]) -> Estimate:
    """Median over all repeats' samples with a hierarchical block-bootstrap interval.

    `repeats`: one array of samples per repeat. The interval is unknown below FEWEST_SAMPLES samples. With two or three
    repeats the outer level is coarse: the interval then holds what those repeats showed, not every drift there is.
    """
    kept = [repeat for repeat in repeats if len(repeat)]
    count = sum(len(repeat) for repeat in kept)
    if not count:
        return UNKNOWN
    value = float(np.median(np.concatenate(kept)))
    if count < FEWEST_SAMPLES:
        return Estimate(value, None, None, count)
    return Estimate(value, *interval(bootstrap(kept, np.random.default_rng(0))), count)


def ratio_estimate(numerator: Sequence[Samples], denominator: Sequence[Samples]) -> Estimate:
    """Ratio of two medians with its bootstrap interval; `count` is the smaller side's."""
    above = [repeat for repeat in numerator if len(repeat)]
    below = [repeat for repeat in denominator if len(repeat)]
    count = min(sum(map(len, above)), sum(map(len, below)))
    if not count:
        return UNKNOWN
    value = float(np.median(np.concatenate(above)) / np.median(np.concatenate(below)))
    if count < FEWEST_SAMPLES:
        return Estimate(value, None, None, count)
    generator = np.random.default_rng(0)
    return Estimate(value, *interval(bootstrap(above, generator) / bootstrap(below, generator)), count)


def difference_estimate(first: Sequence[Samples], second: Sequence[Samples]) -> Estimate:
    """First median less second with its bootstrap interval; `count` is the smaller side's."""
    more = [repeat for repeat in first if len(repeat)]
    less = [repeat for repeat in second if len(repeat)]
    count = min(sum(map(len, more)), sum(map(len, less)))
    if not count:
        return UNKNOWN
    value = float(np.median(np.concatenate(more)) - np.median(np.concatenate(less)))
    if count < FEWEST_SAMPLES:
        return Estimate(value, None, None, count)
    generator = np.random.default_rng(0)
    return Estimate(value, *interval(bootstrap(more, generator) - bootstrap(less, generator)), count)


def verdict(estimate: Estimate, even: float = 1.0) -> Verdict:
    """Whether an estimate is shown to lie above or below `even` (1 for a ratio, 0 for a difference).

    Refused below FEWEST_SAMPLES samples; no difference is shown when the interval holds `even`.
    """
    if estimate.low is None or estimate.high is None:
        return "too_few_samples"
    if estimate.low > even:
        return "above"
    return "below" if estimate.high < even else "no_difference_shown"


def mean_range(values: Sequence[float]) -> Estimate:
    """Mean with the range of the values themselves (not an interval): for few values, such as repeats or ranks."""
    if not len(values):
        return UNKNOWN
    return Estimate(float(np.mean(values)), float(np.min(values)), float(np.max(values)), len(values))


def median_range(values: Sequence[float]) -> Estimate:
    """Median with the range of the values themselves (not an interval): for few values, such as seeds."""
    if not len(values):
        return UNKNOWN
    return Estimate(float(np.median(values)), float(np.min(values)), float(np.max(values)), len(values))
