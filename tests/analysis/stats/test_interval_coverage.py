"""How often intervals hold the truth, by simulation: the table in benchmarks/README.md, with fewer
pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from dpscope.analysis.stats.samples import (
    difference_estimate,
    median_estimate,
    pooled_spread,
    ratio_estimate,
    spread_in_turns,
    verdict,
)
from tests.helpers.known import known
from tests.helpers.step_samples import ALIKE, STEP_US, UNLIKE, drawn_cell, drawn_in_turns


@dataclass(frozen=True)
class Coverage:
    """Over pairs of runs, the second `slower` times as slow in every cell: shares of all cells, and
    of the worst one.
    """

    outside: float  # the ratio's interval leaves the true ratio out
    worst_cell: float  # the same, of the cell in which that is most frequent
    slower: float  # found slower, by more than 5%
    half_width: float  # median half width of the interval, of the ratio


def simulate(spreads: Sequence[float], repeats: int, pairs: int, slower: float = 1.0) -> Coverage:
    """Pairs of runs with a cell for each of `spreads`, judged as `dpscope compare` judges them."""
    generator = np.random.default_rng(1)
    outside, found, widths = np.zeros(len(spreads)), 0, []
    for _ in range(pairs):
        before = [drawn_cell(spread, repeats, generator) for spread in spreads]
        after = [drawn_cell(spread, repeats, generator, STEP_US * slower) for spread in spreads]
        pool = pooled_spread([*before, *after])
        for index in range(len(spreads)):
            ratio = ratio_estimate(after[index], before[index], pool)
            outside[index] += not known(ratio.low) <= slower <= known(ratio.high)
            found += verdict(ratio) == "above" and known(ratio.value) > 1.05
            widths.append((known(ratio.high) - known(ratio.low)) / 2)
    shares = outside / pairs
    return Coverage(
        shares.mean(), shares.max(), found / pairs / len(spreads), float(np.median(widths))
    )


@pytest.mark.long
@pytest.mark.parametrize("repeats", [2, 5])
@pytest.mark.parametrize(("spreads", "pairs"), [([0.05], 400), (ALIKE, 100), (UNLIKE, 100)])
def test_equal_runs_seldom_differ(spreads: Sequence[float], pairs: int, repeats: int) -> None:
    """5% are promised; of 400 pairs 8% are 2.7 standard errors more."""
    assert simulate(spreads, repeats, pairs).outside <= 0.08


@pytest.mark.long
@pytest.mark.parametrize("repeats", [2, 5])
def test_intervals_of_medians_and_differences_hold_the_truth_too(repeats: int) -> None:
    """Six cells of one run: each median, and the difference of neighbours; 1,200 of each, not
    independent.
    """
    generator = np.random.default_rng(2)
    missed = np.zeros(2)
    for _ in range(200):
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
    assert (missed / 1200 <= 0.08).all()


def ratios_in_turns(
    spreads: Sequence[float], repeats: int, shared: float, runs: int = 150
) -> tuple[float, float]:
    """Runs of cells measured in turns: the share of ratios of neighbours left out, and the median
    half width.
    """
    generator = np.random.default_rng(3)
    outside, widths = [], []
    for _ in range(runs):
        cells = drawn_in_turns(spreads, repeats, shared, generator)
        pool = spread_in_turns(cells)
        for place in range(1, len(cells)):
            ratio = ratio_estimate(cells[place], cells[place - 1], pool)
            outside.append(not known(ratio.low) <= (place + 1) / place <= known(ratio.high))
            widths.append((known(ratio.high) - known(ratio.low)) / known(ratio.value) / 2)
    return float(np.mean(outside)), float(np.median(widths))


if __name__ == "__main__":  # the tables of benchmarks/README.md
    for name, spreads, pairs in (
        ("2%", [0.02], 4000),
        ("5%", [0.05], 4000),
        ("alike", ALIKE, 1000),
        ("unlike", UNLIKE, 1000),
    ):
        for repeats in (2, 3, 5):
            equal, slow = simulate(spreads, repeats, pairs), simulate(spreads, repeats, pairs, 1.1)
            print(  # noqa: T201
                f"| {name} | {repeats} | {equal.outside:.1%} | {equal.worst_cell:.1%} | {equal.slower:.1%} | "
                f"±{equal.half_width:.1%} | {slow.slower:.0%} |"
            )
    for name, levels in (
        ("three, 5% each", ALIKE[:3]),
        ("six, 5% each", ALIKE),
        ("six, 1 to 8%", UNLIKE),
    ):
        for shared in (0.0, 0.05, 0.15):
            found = [ratios_in_turns(levels, repeats, shared, runs=1000) for repeats in (2, 3, 5)]
            shares, halves = (
                ", ".join(f"{100 * one:.1f}" for one in column)
                for column in zip(*found, strict=True)
            )
            print(f"| {name} | {shared:.0%} | {shares}% | ±{halves}% |")  # noqa: T201
