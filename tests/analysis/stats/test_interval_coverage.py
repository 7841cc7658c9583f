"""How often intervals hold the truth, by simulation: the table in benchmarks/README.md, with fewer
pairs.
"""

from collections.abc import Sequence

import numpy as np
import pytest

from dpscope.analysis.stats.samples import (
    difference_estimate,
    median_estimate,
    pooled_spread,
    ratio_estimate,
    verdict,
)
from tests.helpers.known import known
from tests.helpers.step_samples import ALIKE, STEP_US, UNLIKE, drawn_cell


@pytest.mark.long
@pytest.mark.parametrize("repeats", [2, 5])
@pytest.mark.parametrize(("spreads", "pairs"), [([0.05], 400), (ALIKE, 100), (UNLIKE, 100)])
def test_equal_runs_seldom_differ(spreads: Sequence[float], pairs: int, repeats: int) -> None:
    """5% are promised; of 400 pairs 8% are 2.7 standard errors more."""
    generator = np.random.default_rng(1)
    outside = 0
    for _ in range(pairs):
        before, after = (
            [drawn_cell(spread, repeats, generator) for spread in spreads] for _ in range(2)
        )
        pool = pooled_spread([*before, *after])
        for first, second in zip(before, after, strict=True):
            ratio = ratio_estimate(second, first, pool)
            outside += not known(ratio.low) <= 1 <= known(ratio.high)
    assert outside / pairs / len(spreads) <= 0.08


@pytest.mark.long
@pytest.mark.parametrize("repeats", [2, 5])
def test_intervals_of_medians_and_differences_hold_the_truth_too(repeats: int) -> None:
    """Six cells of one run: each median, and the difference of neighbours; 600 of each, not
    independent: 8% are 3.4 standard errors more than 5%.
    """
    generator = np.random.default_rng(2)
    missed = np.zeros(2)
    for _ in range(100):
        cells = [
            drawn_cell(spread, repeats, generator, STEP_US * (1 + index))
            for index, spread in enumerate(ALIKE)
        ]
        pool = pooled_spread(cells)
        for index, one in enumerate(cells):
            median = median_estimate(one, pool)
            difference = difference_estimate(cells[(index + 1) % 6], one, pool)
            truth = STEP_US * (1 if index < 5 else -5)
            missed += (
                not known(median.low) <= STEP_US * (1 + index) <= known(median.high),
                verdict(difference, even=truth) != "no_difference_shown",
            )
    assert (missed / 600 <= 0.08).all()
