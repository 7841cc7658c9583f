"""How often intervals of simulated runs leave the truth out: the tables of README.md.

    python benchmarks/interval_coverage.py

The tests simulate the same with fewer pairs (tests/analysis/stats/test_interval_coverage.py).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' helpers

from dpscope.analysis.stats.samples import (
    Samples,
    pooled_spread,
    ratio_estimate,
    spread_in_turns,
    verdict,
)
from tests.helpers.known import known
from tests.helpers.step_samples import ALIKE, STEP_US, UNLIKE, drawn_cell


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


def drawn_in_turns(
    spreads: Sequence[float], repeats: int, shared: float, generator: np.random.Generator
) -> list[list[Samples]]:
    """The cells of a run, STEP_US, 2 STEP_US and so on: what slows a repeat of one slows that of
    each, by `shared`.
    """
    turns = np.exp(shared * generator.standard_normal(repeats))
    cells = [
        drawn_cell(spread, repeats, generator, STEP_US * place)
        for place, spread in enumerate(spreads, 1)
    ]
    return [[steps * turn for steps, turn in zip(cell, turns, strict=True)] for cell in cells]


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


def main() -> None:
    for name, spreads, pairs in (
        ("2%", [0.02], 4000),
        ("5%", [0.05], 4000),
        ("alike", ALIKE, 1000),
        ("unlike", UNLIKE, 1000),
    ):
        for repeats in (2, 3, 5):
            equal, slow = simulate(spreads, repeats, pairs), simulate(spreads, repeats, pairs, 1.1)
            sys.stdout.write(
                f"| {name} | {repeats} | {equal.outside:.1%} | {equal.worst_cell:.1%} | {equal.slower:.1%} | "
                f"±{equal.half_width:.1%} | {slow.slower:.0%} |\n"
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
            sys.stdout.write(f"| {name} | {shared:.0%} | {shares}% | ±{halves}% |\n")


if __name__ == "__main__":
    main()
