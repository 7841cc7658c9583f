"""The smallest slowdown that two runs would detect, and how many repeats that takes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dpscope.analysis.stats.samples import MOST_SHARED, UPPER, Noise

POWER = 0.8  # share of the changes of that size that are detected
MOST_REPEATS = 50


def detectable_change(first: Noise, second: Noise) -> float:
    """The smallest slowdown that would be detected in POWER of cases: 0.05 is 5%.

    A change is detected where the 95% interval of the ratio excludes 1. The smallest one that is
    detected in POWER of cases lies above 1 by half that interval and by what the measured ratio
    falls short of the true one in the other cases, both from the repeats' spread as in
    `ratio_estimate`. Source: Cohen, "Statistical power analysis for the behavioral sciences", 1988,
    chapter 2, with Student's t for both. The power is simulated in
    tests/analysis/stats/test_detection.py.
    """
    reaches = (noise.quantile(UPPER) + noise.quantile(POWER) for noise in (first, second))
    return math.expm1(math.hypot(*reaches))


def with_repeats(noise: Noise, repeats: int) -> Noise:
    """The noise after `repeats` (2 or more) repeats of every cell, one of them spreading as it
    has.
    """
    before = max(1, noise.repeats - 1)
    shared = min(MOST_SHARED, round(noise.shared_freedom * max(1.0, (repeats - 1) / before)))
    return replace(noise, cell_freedom=repeats - 1, shared_freedom=shared, repeats=repeats)


@dataclass(frozen=True)
class RepeatCost:
    """What is known of a cell after its first repeats: their noise, and how long one takes."""

    noise: Noise
    repeat_s: float

    def detects(self, repeats: int) -> float:
        """The smallest slowdown of this cell that two runs with that many repeats each detect: 0.05
        is 5%.
        """
        noise = self.noise if repeats == self.noise.repeats else with_repeats(self.noise, repeats)
        return detectable_change(noise, noise)


def choose_repeats(
    cells: Mapping[str, RepeatCost], change: float, seconds: float
) -> dict[str, int]:
    """Repeats of each cell, including those it has, so that each detects `change`, as far as
    `seconds` more allow.

    Each further repeat goes to the cell that detects least, so that time is spent where the spread
    is.
    """
    chosen = {name: cell.noise.repeats for name, cell in cells.items()}
    while lacking := [
        (detected, name)
        for name, cell in cells.items()
        if chosen[name] < MOST_REPEATS
        and cell.repeat_s <= seconds
        and (detected := cell.detects(chosen[name])) > change
    ]:
        _, name = max(lacking)
        chosen[name] += 1
        seconds -= cells[name].repeat_s
    return chosen
