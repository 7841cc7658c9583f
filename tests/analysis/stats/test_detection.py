"""What runs detect, and how many repeats that takes."""

import math

import numpy as np
import pytest

from dpscope.analysis.stats.detection import (
    RepeatCost,
    choose_repeats,
    detectable_change,
    with_repeats,
)
from dpscope.analysis.stats.samples import (
    Noise,
    centre_noise,
    pooled_spread,
    ratio_estimate,
    verdict,
)
from tests.helpers.known import known
from tests.helpers.step_samples import ALIKE, STEP_US, drawn_cell


def test_by_hand() -> None:
    """Repeats spread by 2%, 5 of each side: t of 4 is 2.776 and 0.941; (2.776 + 0.941) x 0.02 /
    sqrt 5 x sqrt 2 = 0.0470.
    """
    noise = Noise(variance=0.02**2, cell_freedom=4, shared_freedom=0, repeats=5)
    assert detectable_change(noise, noise) == pytest.approx(math.exp(0.0470) - 1, rel=2e-3)
    # 2 repeats: t of 1 is 12.706 and 1.376: 14.082 x 0.02 = 0.2816
    assert detectable_change(with_repeats(noise, 2), with_repeats(noise, 2)) == pytest.approx(
        math.exp(0.2816) - 1, rel=1e-3
    )
    # 4: t of 3 is 3.182 and 0.978: 4.161 x 0.02 / 2 x sqrt 2 = 0.0588


def test_other_cells_repeats_grow_too() -> None:
    """2 repeats of a cell and of one other: 1 + 1 degrees of freedom; with 5 of each 4 + 4."""
    more = with_repeats(Noise(variance=1e-4, cell_freedom=1, shared_freedom=1, repeats=2), 5)
    assert (more.cell_freedom, more.shared_freedom, more.repeats) == (4, 4, 5)
    assert with_repeats(more, 9).shared_freedom == 4  # at most


def pairs_of_runs(repeats: int, slower: float) -> tuple[float, float]:
    """Pairs of runs of six cells, 5% between repeats: the share found slower, and what they would
    detect, their median.
    """
    generator, found, detectable = np.random.default_rng(3), 0, []
    for _ in range(100):
        before = [drawn_cell(spread, repeats, generator) for spread in ALIKE]
        after = [drawn_cell(spread, repeats, generator, STEP_US * slower) for spread in ALIKE]
        pool = pooled_spread([*before, *after])
        for first, second in zip(before, after, strict=True):
            found += verdict(ratio_estimate(second, first, pool)) == "above"
            sides = [
                noise for side in (first, second) if (noise := centre_noise(side, pool)) is not None
            ]
            detectable.append(detectable_change(sides[0], sides[1]))
    return found / 600, float(np.median(detectable))


@pytest.mark.long
@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_four_in_five_detectable_changes_are_detected(repeats: int) -> None:
    """What runs that are alike call detectable is found in about 80% of runs that differ by it,
    half of it seldom.
    """
    _, detectable = pairs_of_runs(repeats, slower=1.0)
    assert pairs_of_runs(repeats, slower=1 + detectable)[0] == pytest.approx(0.8, abs=0.08)
    assert pairs_of_runs(repeats, slower=1 + detectable / 2)[0] < 0.4


def test_more_repeats_detect_what_was_promised() -> None:
    """Predicted from two repeats for five, then five are measured."""
    generator = np.random.default_rng(4)
    promised = []
    for _ in range(100):
        run = [drawn_cell(spread, 2, generator) for spread in ALIKE]
        noise = known(centre_noise(run[0], pooled_spread(run)))
        promised.append(detectable_change(with_repeats(noise, 5), with_repeats(noise, 5)))
    assert float(np.median(promised)) == pytest.approx(pairs_of_runs(5, slower=1.0)[1], rel=0.25)


def test_repeats_go_where_the_spread_is() -> None:
    """3 repeats each: one cell spreads by 0.5%, one by 3%. (4.303 + 1.061) x 0.005 x sqrt(2 / 3) =
    0.0219 shows 5% already.
    """
    cells = {
        "quiet": RepeatCost(
            Noise(0.005**2, cell_freedom=2, shared_freedom=0, repeats=3), repeat_s=10.0
        ),
        "noisy": RepeatCost(
            Noise(0.03**2, cell_freedom=2, shared_freedom=0, repeats=3), repeat_s=10.0
        ),
    }
    chosen = choose_repeats(cells, 0.05, seconds=1e6)
    assert chosen["quiet"] == 3
    # 0.05 is 0.0488 in logarithms: t of 6 degrees 2.447 + 0.906: x 0.03 x sqrt(2 / 7) = 0.0538; of
    # 8 (9 repeats): 3.195 x 0.01414 = 0.0452; of 7 (8): 2.365 + 0.896 = 3.261 x 0.015 = 0.0489, a
    # hair over
    assert chosen["noisy"] == 9
    assert cells["noisy"].detects(9) < 0.05 < cells["noisy"].detects(8)
    # 25 seconds are two repeats more, and both go to the noisy one
    assert choose_repeats(cells, 0.001, seconds=25.0) == {"quiet": 3, "noisy": 5}
    assert choose_repeats(cells, 0.05, seconds=9.0) == {"quiet": 3, "noisy": 3}
