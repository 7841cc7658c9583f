"""How often intervals hold the truth, by simulation: the table in docs/measures.md, with fewer
pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from dpscope.analysis.stats.samples import (
    Samples,
    difference_estimate,
    median_estimate,
    pooled_spread,
    ratio_estimate,
    spread_in_turns,
    verdict,
)
from dpscope.analysis.stats.turns import TurnSamples
from dpscope.profiling.records.turns import Order, balanced_orders
from tests.helpers.known import known
from tests.helpers.step_samples import ALIKE, STEP_US, UNLIKE, drawn_cell, drawn_in_turns

Pair = tuple[int, int]


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


def test_a_tenth_more_is_found_with_five_repeats_that_spread_by_a_fiftieth() -> None:
    assert simulate([0.02], repeats=5, pairs=400, slower=1.1).slower >= 0.95
    # which two repeats of one cell do not
    assert simulate([0.02], repeats=2, pairs=400, slower=1.1).slower <= 0.9


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


@pytest.mark.long
@pytest.mark.parametrize("shared", [0.0, 0.15])
@pytest.mark.parametrize("repeats", [2, 5])
@pytest.mark.parametrize("spreads", [ALIKE[:3], UNLIKE])
def test_ratios_within_a_run_hold_the_truth(
    spreads: Sequence[float], repeats: int, shared: float
) -> None:
    """Whatever the cells of a turn share: 5% are promised; the neighbours' ratios are not
    independent.
    """
    assert ratios_in_turns(spreads, repeats, shared)[0] <= 0.08


def pairs_in_turns(
    spreads: Sequence[float], repeats: int, drift: float = 0.0, runs: int = 700
) -> dict[Pair, float]:
    """Runs of cells measured in balanced orders: how often each pair's ratio is held.

    `drift`: how much longer each measurement takes than the one before it, whatever the cell, as a
    logarithm.
    """
    generator = np.random.default_rng(4)
    count = len(spreads)
    held = dict.fromkeys(combinations(range(count), 2), 0)
    for run in range(runs):
        cells = _drifting(
            drawn_in_turns(spreads, repeats, 0.0, generator),
            balanced_orders(count, repeats, run),
            drift,
        )
        pool = spread_in_turns(cells)
        for first, second in held:
            ratio = ratio_estimate(cells[first], cells[second], pool)
            held[first, second] += (
                known(ratio.low) <= (first + 1) / (second + 1) <= known(ratio.high)
            )
    return {pair: times / runs for pair, times in held.items()}


def _drifting(
    cells: Sequence[Sequence[Samples]], orders: Sequence[Order], drift: float
) -> list[TurnSamples]:
    found = []
    for cell, repeats in enumerate(cells):
        places = [order.index(cell) for order in orders]
        times = [turn * len(cells) + place for turn, place in enumerate(places)]
        slower = [steps * np.exp(drift * time) for steps, time in zip(repeats, times, strict=True)]
        found.append(TurnSamples(slower, places))
    return found


@pytest.mark.long
@pytest.mark.parametrize("repeats", [3, 5])
@pytest.mark.parametrize(
    ("spreads", "drift"),
    [((0.01,) * 3, 0.02), ((0.01,) * 3, 0.05 / 3), ((0.01, 0.08, 0.01), 0.0)],
    ids=["2% per cell", "5% per turn", "1, 8 and 1%"],
)
def test_the_ratio_of_every_pair_is_held_as_often_as_promised(
    spreads: Sequence[float], drift: float, repeats: int
) -> None:
    """95% are promised; of 700 runs 93 and 98% are 2.4 and 3.6 standard errors away."""
    held = pairs_in_turns(spreads, repeats, drift)
    assert min(held.values()) >= 0.93, held
    assert max(held.values()) <= 0.98, held


if __name__ == "__main__":  # the tables of docs/measures.md
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
