"""Medians, intervals and ratios."""

import numpy as np
import pytest

from dpscope.analysis.sample_findings import spread_findings
from dpscope.analysis.sample_statistics import (
    Estimate,
    bootstrap,
    difference_estimate,
    mean_range,
    median_estimate,
    pooled_median,
    ratio_estimate,
    verdict,
)


def samples(seed: int, middle: float, spread: float = 1.0, count: int = 30) -> np.ndarray:
    return np.random.default_rng(seed).normal(middle, spread, count)


def test_median_interval_holds_the_median_and_counts_all() -> None:
    repeats = [samples(1, 100), samples(2, 100)]
    found = median_estimate(repeats)
    assert found.count == 60
    assert found.value == np.median(np.concatenate(repeats)) == pooled_median(repeats)
    assert found.low is not None
    assert found.high is not None
    assert found.value is not None
    assert 99 < found.low < found.value < found.high < 101


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """40 experiments with a known median: 95% intervals must hold it nearly always, and not by being endless."""
    hits, width = 0, 0.0
    for seed in range(40):
        found = median_estimate([samples(100 + 3 * seed + repeat, 50.0) for repeat in range(3)])
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 50.0 <= found.high
        width += (found.high - found.low) / 40
    assert hits >= 34
    assert width < 1.5


def test_too_few_samples_have_no_interval() -> None:
    found = median_estimate([np.array([1.0, 2.0, 3.0])])
    assert (found.value, found.low, found.high, found.count) == (2.0, None, None, 3)
    assert median_estimate([]).value is None
    assert median_estimate([np.array([])]).count == 0


def test_ratio() -> None:
    found = ratio_estimate([samples(1, 200)], [samples(2, 100)])
    assert found.value == pytest.approx(2.0, rel=0.02)
    assert found.low is not None
    assert found.high is not None
    assert 1.9 < found.low < 2.0 < found.high < 2.1
    same = ratio_estimate([samples(3, 100)], [samples(4, 100)])
    assert same.low is not None
    assert same.high is not None
    assert same.low < 1 < same.high


def test_difference() -> None:
    found = difference_estimate([samples(1, 200)], [samples(2, 150)])
    assert found.value == pytest.approx(50, abs=1)
    assert verdict(found, even=0.0) == "above"
    assert difference_estimate([samples(1, 200)], []).value is None
    assert difference_estimate([np.array([1.0])], [samples(2, 150)]).low is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.1, 1.3, "above"), (0.7, 0.9, "below"), (0.9, 1.1, "no_difference_shown"), (None, None, "too_few_samples")],
)
def test_verdict(low: float | None, high: float | None, expected: str) -> None:
    assert verdict(Estimate(1.0, low, high, 9)) == expected


def test_bootstrap_draws_columns_together() -> None:
    """The second column is twice the first in every step, so it is in every draw's mean; repeats may differ in length."""
    one, other = samples(1, 100, count=12), samples(2, 120, count=7)
    draws = bootstrap(
        [np.column_stack([one, 2 * one]), np.column_stack([other, 2 * other])], np.random.default_rng(0), "mean"
    )
    assert draws.shape == (2000, 2)
    assert draws[:, 1] == pytest.approx(2 * draws[:, 0])
    # with repeats as outer level a draw may hold one of them twice
    assert draws[:, 0].min() < 102
    assert draws[:, 0].max() > 118


def test_mean_range() -> None:
    found = mean_range([1.0, 2.0, 6.0])
    assert (found.value, found.low, found.high, found.count) == (3.0, 1.0, 6.0, 3)
    assert mean_range([]).value is None


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
