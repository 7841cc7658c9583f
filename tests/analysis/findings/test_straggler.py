"""The significance of a straggler. Probabilities by hand."""

import pytest

from dpscope.analysis.runs.straggler import MOST_CHANCE, chance_of_some_rank


def test_chance_by_hand() -> None:
    # Two ranks, three of three steps: rank 0 or rank 1 in all three, 2 x (1/2)^3.
    assert chance_of_some_rank(2, 3, 3) == pytest.approx(0.25)
    assert chance_of_some_rank(2, 6, 6) == pytest.approx(2 / 64)
    # Four ranks, three of three: 4 x (1/4)^3.
    assert chance_of_some_rank(4, 3, 3) == pytest.approx(1 / 16)
    # Two ranks, nine of ten: 2 x (10 + 1) / 1024.
    assert chance_of_some_rank(2, 9, 10) == pytest.approx(22 / 1024)
    assert chance_of_some_rank(2, 0, 3) == 1.0


def test_two_ranks_need_six_steps() -> None:
    assert chance_of_some_rank(2, 5, 5) > MOST_CHANCE > chance_of_some_rank(2, 6, 6)
    assert chance_of_some_rank(8, 2, 2) > MOST_CHANCE > chance_of_some_rank(8, 3, 3)
