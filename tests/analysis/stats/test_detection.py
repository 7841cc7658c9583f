"""What runs detect, and how many repeats that takes."""

import math

import pytest

from dpscope.analysis.stats.detection import (
    RepeatCost,
    choose_repeats,
    detectable_change,
    with_repeats,
)
from dpscope.analysis.stats.samples import Noise


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
