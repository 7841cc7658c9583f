"""Medians and means with their intervals. Raw samples are kept elsewhere; nothing is shown without spread and count."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpscope.profiling.run_types import Finding

RESAMPLES = 2000
CONFIDENCE = 0.95
FEWEST_SAMPLES = 5  # below this no interval is given and nothing is compared

Samples = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval and the number of samples behind it; None is unknown."""

    value: float | None
    low: float | None
    high: float | None
    count: int


UNKNOWN = Estimate(None, None, None, 0)


def _resampled(repeats: Sequence[Samples], generator: np.random.Generator) -> Samples:
    """RESAMPLES bootstrap medians: repeats are drawn first, then blocks of consecutive steps inside each.

    Consecutive steps are alike (clocks, caches), so single steps drawn freely would make the interval too narrow.
    """
    block = max(1, round(min(len(repeat) for repeat in repeats) ** (1 / 3)))
    medians = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        drawn = []
        for choice in generator.integers(len(repeats), size=len(repeats)):
            samples = repeats[choice]
            starts = generator.integers(len(samples) - block + 1, size=-(-len(samples) // block))
            drawn.append(samples[(starts[:, None] + np.arange(block)).ravel()[: len(samples)]])
        medians[index] = np.median(np.concatenate(drawn))
    return medians


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
    low, high = np.quantile(_resampled(kept, np.random.default_rng(0)), _tails())
    return Estimate(value, float(low), float(high), count)


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
    low, high = np.quantile(_resampled(above, generator) / _resampled(below, generator), _tails())
    return Estimate(value, float(low), float(high), count)


def mean_range(values: Sequence[float]) -> Estimate:
    """Mean with the range of the values themselves (not an interval): for few values, such as repeats or ranks."""
    if not len(values):
        return UNKNOWN
    return Estimate(float(np.mean(values)), float(np.min(values)), float(np.max(values)), len(values))


def _tails() -> tuple[float, float]:
    return (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2


def spread_findings(name: str, repeats: Sequence[Samples]) -> list[Finding]:
    """Findings about samples that are too few, too wide or drift between repeats."""
    kept = [repeat for repeat in repeats if len(repeat)]
    if not kept:
        return []
    pooled = np.concatenate(kept)
    findings = []
    if len(pooled) < FEWEST_SAMPLES:
        findings.append(
            Finding(
                severity="warning",
                code="few_samples",
                message=f"{name} has only {len(pooled)} timed steps and no interval",
                next_step=f"time at least {FEWEST_SAMPLES} steps (--steps)",
            )
        )
    lower, middle, upper = np.quantile(pooled, (0.25, 0.5, 0.75))
    if len(pooled) >= FEWEST_SAMPLES and upper - lower > 0.1 * middle:
        findings.append(
            Finding(
                severity="warning",
                code="wide_spread",
                message=f"{name}: the middle half of its step times spans {(upper - lower) / middle:.0%} of their median",
                next_step="close other programs, raise --steps or --repeats; small differences cannot be trusted",
            )
        )
    medians = [float(np.median(repeat)) for repeat in kept]
    if len(medians) > 1 and max(medians) > 1.1 * min(medians):
        findings.append(
            Finding(
                severity="warning",
                code="repeats_differ",
                message=f"{name}: its repeats' medians differ by {max(medians) / min(medians) - 1:.0%}",
                next_step="something changed between repeats (clocks, other load): raise --repeats",
            )
        )
    return findings
