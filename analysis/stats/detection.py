"""The smallest change that a comparison would show, and how many repeats show a smaller one.

A change is shown where the 95% interval of the ratio leaves 1 out. The smallest one that is shown in POWER of cases lies above 1
by half that interval and by what the measured ratio falls short of the true one in the other cases, both from the repeats'
spread as `ratio_estimate` has it. Source: Cohen, "Statistical power analysis for the behavioral sciences", 1988, chapter 2, with
Student's t for both. What comes of it is simulated in tests/analysis/stats/test_detection.py.
"""

import math
from dataclasses import replace

from dpscope.analysis.stats.samples import CONFIDENCE, MOST_SHARED, Noise

POWER = 0.8  # of the changes of that size that are shown
MOST_REPEATS = 50
_UPPER = (1 + CONFIDENCE) / 2


def detectable_change(first: Noise, second: Noise) -> float:
    """The smallest slowdown that would be shown in POWER of cases: 0.05 is 5%."""
    return math.expm1(math.hypot(_reach(first), _reach(second)))


def with_repeats(noise: Noise, repeats: int) -> Noise:
    """The noise after `repeats` (2 or more) repeats of every cell, one of them spreading as it has."""
    before = max(1, noise.repeats - 1)
    shared = min(MOST_SHARED, round(noise.shared_freedom * max(1.0, (repeats - 1) / before)))
    return replace(noise, own_freedom=repeats - 1, shared_freedom=shared, repeats=repeats)


def repeats_to_detect(first: Noise, second: Noise, change: float) -> int | None:
    """The fewest repeats of both sides that show `change`; None where MOST_REPEATS do not."""
    fewest = range(2, MOST_REPEATS + 1)
    return next((one for one in fewest if detectable_change(*_repeated(first, second, one)) <= change), None)


def _repeated(first: Noise, second: Noise, repeats: int) -> tuple[Noise, Noise]:
    return with_repeats(first, repeats), with_repeats(second, repeats)


def _reach(noise: Noise) -> float:
    return noise.quantile(_UPPER) + noise.quantile(POWER)
