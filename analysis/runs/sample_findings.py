"""Findings about a cell's samples: too few, too wide, drifting, with outliers, different from repeat to repeat."""

from collections.abc import Sequence

import numpy as np

from dpscope.analysis.stats.samples import FEWEST_SAMPLES, Samples, median_slope
from dpscope.analysis.text.units import show_time
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode

FEWEST_FOR_DRIFT = 10
DRIFT = 0.05  # of the median, from a repeat's first step to its last
DRIFT_CONFIDENCE = 0.99
OUTLIER_DEVIATIONS = 10.0  # robust standard deviations, as hyperfine has it
OUTLIER_DISTANCE = 0.25  # and of the median
WIDE_SPREAD = 0.1  # of the median, the middle half of the samples
REPEATS_APART = 1.1


def spread_findings(name: str, repeats: Sequence[Samples]) -> list[Finding]:
    """What is wrong with the timed steps of a cell; `repeats` has one array of step times in microseconds per repeat."""
    kept = [repeat for repeat in repeats if len(repeat)]
    if not kept:
        return []
    findings = [_few(name, kept), _wide(name, kept), _apart(name, kept), _drift(name, kept), _outliers(name, kept)]
    return [finding for finding in findings if finding is not None]


def _few(name: str, repeats: Sequence[Samples]) -> Finding | None:
    count = sum(map(len, repeats))
    if count >= FEWEST_SAMPLES:
        return None
    return RunCode.FEW_SAMPLES.finding(
        f"{name} has only {counted(count, 'timed step')} and no interval",
        f"time at least {counted(FEWEST_SAMPLES, 'step')} (--steps)",
    )


def _wide(name: str, repeats: Sequence[Samples]) -> Finding | None:
    pooled = np.concatenate(repeats)
    lower, middle, upper = np.quantile(pooled, (0.25, 0.5, 0.75))
    if len(pooled) < FEWEST_SAMPLES or upper - lower <= WIDE_SPREAD * middle:
        return None
    return RunCode.WIDE_SPREAD.finding(
        f"{name}: the middle half of its step times spans {(upper - lower) / middle:.0%} of their median"
    )


def _apart(name: str, repeats: Sequence[Samples]) -> Finding | None:
    medians = [float(np.median(repeat)) for repeat in repeats]
    if max(medians) <= REPEATS_APART * min(medians):
        return None
    return RunCode.REPEATS_DIFFER.finding(
        f"{name}: its repeats' medians differ by {max(medians) / min(medians) - 1:.0%}"
    )


def relative_drift(samples: Samples) -> float | None:
    """Change from the first step to the last over the median; None where no trend is shown.

    The slope is the median of all pairwise slopes; a trend is shown if its 99% interval leaves 0 out and it amounts to DRIFT.
    """
    if len(samples) < FEWEST_FOR_DRIFT:
        return None
    slope, low, high = median_slope(samples, DRIFT_CONFIDENCE)
    change = slope * (len(samples) - 1) / float(np.median(samples))
    return change if (low > 0 or high < 0) and abs(change) >= DRIFT else None


def _drift(name: str, repeats: Sequence[Samples]) -> Finding | None:
    """Steps that grow longer (or shorter) in most repeats, the same way."""
    changes = [change for repeat in repeats if (change := relative_drift(repeat)) is not None]
    longer = sum(change > 0 for change in changes)
    if 2 * max(longer, len(changes) - longer) <= len(repeats):
        return None
    change = float(np.median(changes))
    return RunCode.DRIFT.finding(
        f"{name}: steps grow {'longer' if change > 0 else 'shorter'} by {abs(change):.0%} of their median from the first of "
        f"a repeat to the last ({len(changes)} of {counted(len(repeats), 'repeat')})",
        "warm up longer (--warmup)"
        if change < 0
        else "watch clocks and temperature: `dpscope doctor`, and pause between runs",
    )


def _outliers(name: str, repeats: Sequence[Samples]) -> Finding | None:
    """Steps far above the rest of their own repeat, by the median absolute deviation."""
    far: list[float] = []
    worst = 1.0
    for samples in repeats:
        middle = float(np.median(samples))
        deviation = 1.4826 * float(np.median(np.abs(samples - middle)))
        distance = max(OUTLIER_DEVIATIONS * deviation, OUTLIER_DISTANCE * middle)
        own = samples[samples > middle + distance]
        far += own.tolist()
        worst = max([worst, *(own / middle).tolist()])
    count = sum(map(len, repeats))
    if not far or count < FEWEST_SAMPLES:
        return None
    return RunCode.OUTLIERS.finding(
        f"{name}: {len(far)} of {counted(count, 'step')} stand far above the others, the longest at {show_time(max(far))}, "
        f"{worst:.1f} "
        "times its repeat's median"
    )
