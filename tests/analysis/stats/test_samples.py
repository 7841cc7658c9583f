"""Medians, intervals and ratios."""

import math

import numpy as np
import pytest
from scipy.special import stdtrit
from scipy.stats import theilslopes

from dpscope.analysis.runs.cell_findings import spread_findings
from dpscope.analysis.stats.samples import (
    Estimate,
    Noise,
    RepeatCost,
    Spread,
    chance_above,
    choose_repeats,
    detectable_change,
    difference_estimate,
    draws,
    interval,
    mean_range,
    median_estimate,
    median_noise,
    median_slope,
    pooled_median,
    pooled_spread,
    ratio_estimate,
    student_t,
    verdict,
    with_repeats,
)
from tests.helpers.known import known
from tests.helpers.step_samples import ALIKE, STEP_US, drawn_cell


def samples(seed: int, middle: float, spread: float = 1.0, count: int = 30) -> np.ndarray:
    return np.random.default_rng(seed).normal(middle, spread, count)


def steady(*middles: float) -> list[np.ndarray]:
    """A repeat of five equal steps for each value."""
    return [np.full(5, middle) for middle in middles]


def test_median_interval_holds_the_median_and_counts_all() -> None:
    repeats = [samples(1, 100), samples(2, 100)]
    found = median_estimate(repeats)
    assert found.count == 60
    assert found.value == np.median(np.concatenate(repeats)) == pooled_median(repeats)
    assert known(found.low) < known(found.value) < known(found.high)


def test_two_repeats_alone_have_one_degree_of_freedom() -> None:
    """exp(±0.01) apart: variance 2 x 0.01^2, standard error 0.01, Student's t of 1 degree of freedom 12.706."""
    found = median_estimate(steady(100 * np.exp(-0.01), 100 * np.exp(0.01)))
    assert found.low == pytest.approx(known(found.value) * np.exp(-0.12706), rel=1e-5)
    assert found.high == pytest.approx(known(found.value) * np.exp(0.12706), rel=1e-5)


def test_other_cells_show_what_a_cells_repeats_do_not() -> None:
    """Equal repeats, with five cells of two repeats exp(±0.02) apart: 5 degrees of freedom of variance 2 x 0.02^2.

    They count for 4, the 0 of the cell for 1: variance 4/5 of theirs, t of 5 degrees of freedom 2.5706.
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


def test_a_cell_that_spreads_more_than_the_others_keeps_its_spread() -> None:
    """exp(±0.02), with five cells of equal repeats: the variance is not the mean, a fifth, but that of the cell; t of 1 + 4."""
    wide = steady(100 * np.exp(-0.02), 100 * np.exp(0.02))
    found = median_estimate(wide, pooled_spread([wide, *[steady(50, 50)] * 5]))
    assert found.high == pytest.approx(known(found.value) * np.exp(2.5706 * 0.02), rel=1e-5)


def test_one_repeat_alone_has_no_interval_unless_another_cell_has_two() -> None:
    one, two = steady(100), steady(100 * np.exp(-0.02), 100 * np.exp(0.02))
    assert (median_estimate(one).value, median_estimate(one).low) == (100, None)
    assert ratio_estimate(one, two).low is None
    assert difference_estimate(one, two).low is None
    found = median_estimate(one, pooled_spread([one, two]))
    assert found.high == pytest.approx(100 * np.exp(12.706 * np.sqrt(2) * 0.02), rel=1e-5)  # not a mean of two


def test_a_value_is_the_centre_of_its_interval() -> None:
    """Nine of ten steps are of the first repeat: the median of all is 100, the repeats' mean is larger."""
    repeats = [np.full(45, 100.0), np.full(5, 101.0)]
    spread = pooled_spread([repeats, *[steady(50, 50)] * 5])
    found = ratio_estimate(repeats, steady(100, 100), Spread(spread.squares / 100, spread.freedom))
    assert found.value == 1.0
    assert known(found.low) * known(found.high) == pytest.approx(1.0)


def test_too_few_samples_have_no_interval() -> None:
    found = median_estimate([np.array([1.0, 2.0, 3.0])])
    assert (found.value, found.low, found.high, found.count) == (2.0, None, None, 3)
    assert median_estimate([]).value is None
    assert median_estimate([np.array([])]).count == 0


def test_ratio() -> None:
    """Half widths 0.12706 (exp(±0.01), two repeats) and 0 add up as squares; so do two of 0.12706."""
    spread, alike = steady(200 * np.exp(-0.01), 200 * np.exp(0.01)), steady(100, 100)
    found = ratio_estimate(spread, alike)
    assert found.value == pytest.approx(2.0, rel=1e-3)
    assert found.low == pytest.approx(known(found.value) * np.exp(-0.12706), rel=1e-5)
    assert found.high == pytest.approx(known(found.value) * np.exp(0.12706), rel=1e-5)
    both = ratio_estimate(spread, spread)
    assert both.value == 1.0
    assert both.high == pytest.approx(np.exp(0.12706 * np.sqrt(2)), rel=1e-5)


def test_a_time_of_nothing_has_no_ratio() -> None:
    assert ratio_estimate(steady(1, 2), steady(0, 0)) == Estimate(None, None, None, 10)
    assert ratio_estimate(steady(0, 0), steady(1, 2)) == Estimate(0.0, None, None, 10)


def test_difference() -> None:
    """Half widths of 200 and of 150, 0.12706 of each, add up nearly as squares do; the logarithms make it lean."""
    more, less = steady(200 * np.exp(-0.01), 200 * np.exp(0.01)), steady(150 * np.exp(-0.01), 150 * np.exp(0.01))
    found = difference_estimate(more, less)
    assert found.value == pytest.approx(50, abs=0.1)
    assert found.low == pytest.approx(50 - 0.12706 * 250, rel=0.2)
    assert found.high == pytest.approx(50 + 0.12706 * 250, rel=0.05)
    assert verdict(found, even=0.0) == "above"
    assert difference_estimate(more, []).value is None
    assert difference_estimate([np.array([1.0]), np.array([1.0])], less).low is None


def test_a_difference_and_a_ratio_agree_on_what_is_more() -> None:
    """Medians a ratio's half width apart: just above it both are above, just below it neither is significant."""
    half = 0.12706 * np.sqrt(2)
    less = steady(100 * np.exp(-0.01), 100 * np.exp(0.01))
    for factor, expected in ((np.exp(1.04 * half), "above"), (np.exp(0.96 * half), "no_difference_shown")):
        more = [repeat * factor for repeat in less]
        assert verdict(ratio_estimate(more, less)) == expected
        assert verdict(difference_estimate(more, less), even=0.0) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.1, 1.3, "above"), (0.7, 0.9, "below"), (0.9, 1.1, "no_difference_shown"), (None, None, "too_few_samples")],
)
def test_verdict(low: float | None, high: float | None, expected: str) -> None:
    assert verdict(Estimate(1.0, low, high, 9)) == expected


def test_draws_have_the_medians_interval() -> None:
    repeats = steady(100 * np.exp(-0.01), 100 * np.exp(0.01))
    drawn, found = draws(repeats, np.random.default_rng(0)), median_estimate(repeats)
    assert drawn is not None
    assert interval(drawn) == pytest.approx((found.low, found.high), rel=1e-3)
    assert draws(steady(100), np.random.default_rng(0)) is None


def test_mean_range() -> None:
    found = mean_range([1.0, 2.0, 6.0])
    assert (found.value, found.smallest, found.largest, found.count) == (3.0, 1.0, 6.0, 3)
    assert mean_range([]).value is None


def test_median_slope_of_three_points() -> None:
    """Slopes of 1, 2, 6: 1, 4 and 5/2; the 99% interval of three points is all of them."""
    assert median_slope(np.array([1.0, 2.0, 6.0]), 0.99) == (2.5, 1.0, 4.0)


@pytest.mark.parametrize("count", [10, 11, 40, 57])
def test_median_slope_is_scipys(count: int) -> None:
    drifting = samples(count, 100, count=count) + 0.3 * np.arange(count)
    for values in (
        drifting,
        np.round(drifting),
        np.full(count, 7.0),
    ):  # the second has equal values, the third no other
        assert median_slope(values, 0.9) == pytest.approx(
            [theilslopes(values, alpha=0.9)[index] for index in (0, 2, 3)], rel=1e-12
        )


@pytest.mark.parametrize(
    ("repeats", "codes"),
    [
        ([samples(1, 100), samples(2, 100)], set()),
        ([np.array([1.0, 1.0, 1.0])], {"few_samples"}),
        ([samples(1, 100, spread=20)], {"wide_spread"}),
        ([samples(1, 100), samples(2, 120)], {"wide_spread", "repeats_differ"}),
        ([], set()),
        ([samples(1, 100) + np.linspace(0, 30, 30)], {"drift", "wide_spread"}),
        ([samples(1, 100) - np.linspace(0, 8, 30), samples(2, 100) - np.linspace(0, 8, 30)], {"drift"}),
        ([samples(1, 100) + np.linspace(0, 8, 30), samples(2, 100), samples(3, 100)], set()),  # one repeat of three
        ([np.append(samples(1, 100), 300.0)], {"outliers"}),
        ([np.append(samples(1, 100), 110.0)], set()),  # 10 deviations, but 10% only
    ],
)
def test_spread_findings(repeats: list[np.ndarray], codes: set[str]) -> None:
    assert {finding.code for finding in spread_findings("cell", repeats)} == codes


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 29, 99, 100, 5000])
def test_students_t_is_scipys(freedom: int) -> None:
    assert student_t(freedom) == pytest.approx(float(stdtrit(freedom, 0.975)), rel=1e-10)


def test_by_hand() -> None:
    """Repeats spread by 2%, 5 of each side: t of 4 is 2.776 and 0.941; (2.776 + 0.941) x 0.02 / sqrt 5 x sqrt 2 = 0.0470."""
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
    """Pairs of runs of six cells, 5% between repeats: the share found slower, and what they would detect, their median."""
    generator, found, detectable = np.random.default_rng(3), 0, []
    for _ in range(100):
        before = [drawn_cell(spread, repeats, generator) for spread in ALIKE]
        after = [drawn_cell(spread, repeats, generator, STEP_US * slower) for spread in ALIKE]
        pool = pooled_spread([*before, *after])
        for first, second in zip(before, after, strict=True):
            found += verdict(ratio_estimate(second, first, pool)) == "above"
            sides = [noise for side in (first, second) if (noise := median_noise(side, pool)) is not None]
            detectable.append(detectable_change(sides[0], sides[1]))
    return found / 600, float(np.median(detectable))


@pytest.mark.long
@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_four_in_five_detectable_changes_are_detected(repeats: int) -> None:
    """What runs that are alike call detectable is found in about 80% of runs that differ by it, half of it seldom."""
    _, detectable = pairs_of_runs(repeats, slower=1.0)
    assert pairs_of_runs(repeats, slower=1 + detectable)[0] == pytest.approx(0.8, abs=0.08)
    assert pairs_of_runs(repeats, slower=1 + detectable / 2)[0] < 0.4


def test_more_repeats_detect_what_was_promised() -> None:
    """Predicted from two repeats for five, then five are measured."""
    generator = np.random.default_rng(4)
    promised = []
    for _ in range(100):
        run = [drawn_cell(spread, 2, generator) for spread in ALIKE]
        noise = known(median_noise(run[0], pooled_spread(run)))
        promised.append(detectable_change(with_repeats(noise, 5), with_repeats(noise, 5)))
    assert float(np.median(promised)) == pytest.approx(pairs_of_runs(5, slower=1.0)[1], rel=0.25)


def test_one_repeat_has_no_noise() -> None:
    assert median_noise([np.full(10, 5.0)]) is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.0, 1.1, 0.975),  # 1 is the interval's end: 2.5% lie below
        (1 / 1.05, 1.05, 0.5),
        (0.9, 1.0, 0.025),
    ],
)
def test_how_likely_a_slowdown_is(low: float, high: float, expected: float) -> None:
    assert chance_above(Estimate(math.sqrt(low * high), low, high, 20)) == pytest.approx(expected)
    assert chance_above(Estimate(1.0, None, None, 20)) is None


def test_repeats_go_where_the_spread_is() -> None:
    """3 repeats each: one cell spreads by 0.5%, one by 3%. (4.303 + 1.061) x 0.005 x sqrt(2 / 3) = 0.0219 shows 5% already."""
    cells = {
        "quiet": RepeatCost(Noise(0.005**2, cell_freedom=2, shared_freedom=0, repeats=3), repeat_s=10.0),
        "noisy": RepeatCost(Noise(0.03**2, cell_freedom=2, shared_freedom=0, repeats=3), repeat_s=10.0),
    }
    chosen = choose_repeats(cells, 0.05, seconds=1e6)
    assert chosen["quiet"] == 3
    # 0.05 is 0.0488 in logarithms: t of 6 degrees 2.447 + 0.906: x 0.03 x sqrt(2 / 7) = 0.0538;
    # of 8 (9 repeats): 3.195 x 0.01414 = 0.0452; of 7 (8): 2.365 + 0.896 = 3.261 x 0.015 = 0.0489, a hair over
    assert chosen["noisy"] == 9
    assert cells["noisy"].detects(9) < 0.05 < cells["noisy"].detects(8)
    # 25 seconds are two repeats more, and both go to the noisy one
    assert choose_repeats(cells, 0.001, seconds=25.0) == {"quiet": 3, "noisy": 5}
    assert choose_repeats(cells, 0.05, seconds=9.0) == {"quiet": 3, "noisy": 3}
