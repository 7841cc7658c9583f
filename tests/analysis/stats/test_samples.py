"""Medians, intervals and ratios."""

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri, stdtrit
from scipy.stats import theilslopes

from dpscope.analysis.runs.cell_findings import spread_findings
from dpscope.analysis.stats.samples import (
    Estimate,
    centre_noise,
    difference_estimate,
    interval,
    joint_draws,
    median_estimate,
    median_slope,
    pooled_spread,
    ratio_estimate,
    spread_in_turns,
    student_t,
    verdict,
)
from dpscope.analysis.stats.turns import TurnSamples
from tests.helpers.known import known


def samples(seed: int, middle: float, spread: float = 1.0, count: int = 30) -> np.ndarray:
    return np.random.default_rng(seed).normal(middle, spread, count)


def steady(*middles: float) -> list[np.ndarray]:
    """A repeat of five equal steps for each value."""
    return [np.full(5, middle) for middle in middles]


APART = steady(100 * np.exp(-0.01), 100 * np.exp(0.01))


def test_two_repeats_alone_have_one_degree_of_freedom() -> None:
    """exp(±0.01) apart: variance 2 x 0.01^2, standard error 0.01, Student's t of 1 degree of
    freedom 12.706.
    """
    found = median_estimate(APART)
    bounds = known(found.value) * np.exp([-0.12706, 0.12706])
    assert (found.low, found.high) == pytest.approx(tuple(bounds), rel=1e-5)
    (drawn,) = known(joint_draws(APART, []))
    assert interval(drawn) == pytest.approx((found.low, found.high), rel=1e-3)
    assert joint_draws(steady(100), []) is None


def test_an_interval_that_says_nothing_is_not_known() -> None:
    """exp(±0.2) apart: 12.706 x 0.2 = 2.54 is beyond ln 10 = 2.30; exp(±0.18) apart: 2.29 is not.
    Of a ratio as of a median.
    """
    for distance, is_known in ((0.2, False), (0.18, True)):
        apart, alone = steady(100 * np.exp(-distance), 100 * np.exp(distance)), steady(100)
        assert (median_estimate(apart).low is not None) is is_known
        assert (joint_draws(apart, []) is not None) is is_known
        pool = pooled_spread([apart, alone])
        # both have the one degree of freedom: 2.29 x sqrt(3) for the two
        found = ratio_estimate(apart, alone, pool)
        assert (found.low, found.high) == (None, None)
        difference = difference_estimate(apart, alone, pool)
        assert (difference.low, difference.high) == (None, None)


def test_other_cells_show_what_a_cells_repeats_do_not() -> None:
    """Equal repeats, with five cells of two repeats exp(±0.02) apart: 5 degrees of freedom of
    variance 2 x 0.02^2.

    They count for 4, the 0 of the cell for 1: variance 4/5 of theirs, t of 5 degrees of freedom
    2.5706.
    """
    others = [steady(50 * np.exp(-0.02), 50 * np.exp(0.02))] * 5
    alike = steady(100, 100)
    pool = pooled_spread([alike, *others])
    assert pool.freedom == 6
    assert pool.squares == pytest.approx(5 * 2 * 0.02**2)
    found = median_estimate(alike, pool)
    half = 2.5706 * np.sqrt(0.8 * 2 * 0.02**2 / 2)
    assert found.high == pytest.approx(100 * np.exp(half), rel=1e-5)
    assert found.low == pytest.approx(100 * np.exp(-half), rel=1e-5)


def test_too_few_samples_have_no_interval() -> None:
    found = median_estimate([np.array([1.0, 2.0, 3.0])])
    assert (found.value, found.low, found.high, found.count) == (2.0, None, None, 3)
    assert median_estimate([]).value is None
    assert median_estimate([np.array([])]).count == 0
    assert centre_noise([np.full(10, 5.0)]) is None


def test_ratio() -> None:
    """Half widths 0.12706 (exp(±0.01), two repeats) and 0 add up as squares; so do two of
    0.12706.
    """
    double = [2 * repeat for repeat in APART]
    found, both = ratio_estimate(double, steady(100, 100)), ratio_estimate(double, double)
    assert found.value == pytest.approx(2.0, rel=1e-3)
    bounds = known(found.value) * np.exp([-0.12706, 0.12706])
    assert (found.low, found.high) == pytest.approx(tuple(bounds), rel=1e-5)
    assert (both.value, both.high) == pytest.approx((1.0, np.exp(0.12706 * np.sqrt(2))), rel=1e-5)


def test_difference() -> None:
    """Half widths of 200 and of 150, 0.12706 of each, add up nearly as squares do; the logarithms
    make it lean.
    """
    more, less = [2 * repeat for repeat in APART], [1.5 * repeat for repeat in APART]
    found = difference_estimate(more, less)
    assert found.value == pytest.approx(50, abs=0.1)
    assert found.low == pytest.approx(50 - 0.12706 * 250, rel=0.2)
    assert found.high == pytest.approx(50 + 0.12706 * 250, rel=0.05)
    assert verdict(found, even=0.0) == "above"
    assert difference_estimate(more, []).value is None
    assert difference_estimate([np.array([1.0]), np.array([1.0])], less).low is None


@pytest.mark.parametrize(("more", "less"), [(120.0, 100.0), (150.0, 20.0), (101.0, 100.0)])
def test_each_end_of_a_difference_leaves_one_case_in_forty_beyond(more: float, less: float) -> None:
    """By an integral over the first cell's values instead of draws: the chance of a smaller
    difference.
    """
    first, second = (
        [more * repeat / 100 for repeat in APART],
        [less * repeat / 100 for repeat in steady(97, 103, 100)],
    )
    pool = pooled_spread([first, second])
    of_first, of_second, found = (
        median_estimate(first, pool),
        median_estimate(second, pool),
        difference_estimate(first, second, pool),
    )
    halves = [
        math.log(known(one.high) / known(one.value)) / ndtri(0.975) for one in (of_first, of_second)
    ]
    normal = np.linspace(-9, 9, 20_001)
    weights = np.exp(-(normal**2) / 2) / math.sqrt(2 * math.pi) * (normal[1] - normal[0])
    for end, chance in ((found.low, 0.025), (found.high, 0.975)):
        left = known(of_first.value) * np.exp(halves[0] * normal) - known(end)
        enough = ndtr(-np.log(np.maximum(left, 1e-300) / known(of_second.value)) / halves[1])
        assert float(weights @ enough) == pytest.approx(chance, abs=0.0005)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.1, 1.3, "above"),
        (0.7, 0.9, "below"),
        (0.9, 1.1, "no_difference_shown"),
        (None, None, "too_few_samples"),
    ],
)
def test_verdict(low: float | None, high: float | None, expected: str) -> None:
    assert verdict(Estimate(1.0, low, high, 9)) == expected


def test_what_the_cells_of_a_turn_share_is_left_out_of_their_ratio() -> None:
    """Five turns exp(-0.2) to exp(0.2), of three cells, one of which is 0.01 off in four of them.

    The differences' own squares are 4e-4, of 4 degrees of freedom: variance 1e-4, t of 4 2.776,
    over the root of 5. The other cells, which are steadier, do not count.
    """
    turns, off = np.array([-0.2, -0.1, 0, 0.1, 0.2]), np.array([0.01, -0.01, 0, 0.01, -0.01])
    one, two, three = (
        steady(*100 * np.exp(turns + off)),
        steady(*80 * np.exp(turns)),
        steady(*60 * np.exp(turns)),
    )
    pool = spread_in_turns([one, two, three])
    within = known(pool.within)
    assert within.squares == pytest.approx(2 / 3 * 4e-4)
    assert within.freedom == 8
    half = 2.77645 * 0.01 / math.sqrt(5)
    ratio = ratio_estimate(one, two, pool)
    assert (ratio.low, ratio.high) == pytest.approx(
        (1.25 * math.exp(-half), 1.25 * math.exp(half)), rel=1e-5
    )
    first, second = known(joint_draws(one, [two], pool))
    assert interval(first / second) == pytest.approx((ratio.low, ratio.high), rel=1e-3)
    alone, difference = median_estimate(one, pool), difference_estimate(one, two, pool)
    assert interval(first) == pytest.approx((alone.low, alone.high), rel=1e-3)
    # A fifth of the first, whose level is uncertain; apart, it would be 20 - 20 to 20 + 20.
    assert (difference.low, difference.high) == pytest.approx(
        (known(alone.low) / 5, known(alone.high) / 5), rel=0.03
    )


def test_two_turns_are_judged_by_what_all_cells_show_within_turns() -> None:
    """Six cells, 0.01 or 0.02 off: squares 24e-4 of 5 degrees of freedom, of a difference twice.

    The two that are compared are off alike, so their own difference has none of it: variance
    48e-4 / 5, t of 5 2.5706, over the root of 2.
    """
    turns, off = np.array([-0.1, 0.1]), np.array([1, -1])
    factors = (0.01, 0.01, -0.01, -0.01, 0.02, -0.02)
    levels = (100, 80, 60, 50, 40, 30)
    cells = [
        steady(*level * np.exp(turns + factor * off))
        for level, factor in zip(levels, factors, strict=True)
    ]
    ratio = ratio_estimate(cells[0], cells[1], spread_in_turns(cells))
    half = 2.5706 * math.sqrt(48e-4 / 5 / 2)
    assert (ratio.low, ratio.high) == pytest.approx(
        (1.25 * math.exp(-half), 1.25 * math.exp(half)), rel=1e-4
    )


def test_a_drift_is_taken_out_of_a_ratio_where_the_cells_had_other_places_in_each_turn() -> None:
    """0.02 more from place to place, three cells in three orders: the first two differ by -0.02,
    0.04 and -0.02 more.

    Off by 0.001, -0.001 and 0 in the turns, the places 0, 2, 1 of the first and 1, 0, 2 of the second leave a slope of 0.02 less
    0.00025: the offs' product with the first's distances 0 - 1, 2 - 1 and 1 - 1, less the mean of the turn, over 6.
    """
    places = [[0, 2, 1], [1, 0, 2], [2, 1, 0]]
    off = np.array([0.001, -0.001, 0.0])
    cells = [
        TurnSamples(
            steady(*level * np.exp(0.02 * np.array(own) + (off if level == 100 else 0))), own
        )
        for level, own in zip((100, 80, 60), places, strict=True)
    ]
    pool = spread_in_turns(cells)
    drift = known(pool.drift)
    assert drift.information == pytest.approx(6)
    assert drift.slope == pytest.approx(0.02 - 0.002 / 6)
    apart = np.array([-1, 2, -1])
    left = off + (0.02 - drift.slope) * apart
    freedom = 2 - 6 / 2 / 6  # half of the slope's information is of these two cells
    half = stdtrit(freedom, 0.975) * math.sqrt(np.sum((left - left.mean()) ** 2) / freedom / 3)
    ratio = ratio_estimate(cells[0], cells[1], pool)
    # that of all steps' medians, of the second turn's, has 0.04 of the drift
    assert ratio.value == pytest.approx(1.25)
    assert ratio.high == pytest.approx(1.25 * math.exp(half), rel=1e-5)
    # In one order in every turn the drift is a part of each ratio, and no repeat shows it.
    alike = [TurnSamples(cell, [place] * 3) for place, cell in enumerate(cells)]
    assert spread_in_turns(alike).drift is None


@pytest.mark.parametrize("count", [10, 11, 40, 57])
def test_median_slope_is_scipys(count: int) -> None:
    drifting = samples(count, 100, count=count) + 0.3 * np.arange(count)
    # with equal values, and no other
    for values in (drifting, np.round(drifting), np.full(count, 7.0)):
        expected = theilslopes(values, alpha=0.9)
        assert median_slope(values, 0.9) == pytest.approx(
            [expected[index] for index in (0, 2, 3)], rel=1e-12
        )


@pytest.mark.parametrize(
    ("repeats", "codes"),
    [
        ([samples(1, 100), samples(2, 100)], set()),
        ([np.ones(4)], {"few_samples"}),
        ([np.ones(5)], set()),
        ([samples(1, 100, spread=20)], {"wide_spread"}),
        ([samples(1, 100), samples(2, 120)], {"wide_spread"}),
        ([], set()),
        ([samples(1, 100) + np.linspace(0, 30, 30)], {"drift", "wide_spread"}),
        (
            [samples(1, 100) - np.linspace(0, 8, 30), samples(2, 100) - np.linspace(0, 8, 30)],
            {"drift"},
        ),
        # one repeat of three
        ([samples(1, 100) + np.linspace(0, 8, 30), samples(2, 100), samples(3, 100)], set()),
        ([np.append(samples(1, 100), 300.0)], {"wide_spread"}),
        ([np.append(samples(1, 100), 110.0)], set()),  # 10 deviations, but 10% only
    ],
)
def test_spread_findings(repeats: list[np.ndarray], codes: set[str]) -> None:
    assert {finding.code for finding in spread_findings("cell", repeats)} == codes


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 29, 99, 100, 5000])
def test_students_t_is_scipys(freedom: int) -> None:
    assert student_t(freedom) == pytest.approx(float(stdtrit(freedom, 0.975)), rel=1e-10)


def test_a_third_cell_that_spreads_more_says_nothing_of_a_ratio() -> None:
    """Differences of the first two 0.001 from turn to turn: squares 4e-6, whatever the third
    does.
    """
    turns, off = np.array([-0.2, -0.1, 0, 0.1, 0.2]), np.array([0.001, -0.001, 0, 0.001, -0.001])
    one, two, three = (
        steady(*100 * np.exp(turns + off)),
        steady(*80 * np.exp(turns)),
        steady(*60 * np.exp(turns + 80 * off)),
    )
    ratio = ratio_estimate(one, two, spread_in_turns([one, two, three]))
    assert known(ratio.high) / 1.25 == pytest.approx(
        math.exp(2.77645 * 0.001 / math.sqrt(5)), rel=1e-5
    )
