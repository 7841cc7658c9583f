"""Times of a collective carried to counts that were not measured."""

import pytest

from dpscope.analysis.what_if.links.carried import carried_us


def test_two_counts_tell_what_grows_as_the_ring_s_bytes() -> None:
    # 10 us + 100 us x (N-1)/N: 60, 85; at 8: 97.5
    assert carried_us({2: 60.0, 4: 85.0}, 8) == pytest.approx(97.5)


def test_three_counts_tell_hops_too() -> None:
    # 5 + 2 (N-1) + 80 (N-1)/N: 47, 71, 89; at 16: 5 + 30 + 75 = 110
    assert carried_us({2: 47.0, 4: 71.0, 8: 89.0}, 16) == pytest.approx(110.0)


def test_times_that_fall_with_the_count_are_carried_as_a_constant() -> None:
    # nothing may be negative: 50 everywhere is nearest
    assert carried_us({2: 50.0, 4: 50.0}, 64) == pytest.approx(50.0)
