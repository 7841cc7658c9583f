"""Slow tracing: above 1.5 times, no share of a step and no saving is stated. The significance of a
straggler, by hand.
"""

import numpy as np
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.ledger_text import ledger_table
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.traces.ranks.lateness import MOST_CHANCE, chance_of_some_rank
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.profiling.records.run import Cell
from tests.helpers.run_cells import all_reduces, cell_data, run_of, windows, with_tables


def traced(cost: float) -> RunData:
    """DDP on two devices, untraced steps of 10 ms: half of a traced one is exposed; two all-reduces
    of 4 MB in all.
    """
    cell, step_us = Cell("ddp", 2, 8), 10_000 * cost
    data = cell_data(
        cell,
        [[10_000.0] * 8] * 2,
        windows(
            cell, 3, 2, step_us=step_us, compute_us=step_us / 2, communication_us=step_us / 2, hidden_us=0.0,
            exposed_us=step_us / 2, idle_us=0.0,
        ),
    )  # fmt: skip
    samples = data.tables.samples
    slower = np.where(samples.words("measuring_pass").isin("traced"), cost, 1.0)
    samples = samples.assign(step_us=samples["step_us"] * slower)
    reduced = all_reduces(cell, 3, [(3e6, 0.0, 100.0), (1e6, 200.0, 100.0)], 2)
    return run_of(with_tables(data, samples=samples, collectives=reduced))


def texts(run: RunData) -> list[str]:
    comparison = compare(run)
    found = run_verdict(run, comparison)
    messages = (one.message for one in conclusions(run, comparison) if one.code == "no_overlap")
    return [found.cost.text, found.action.text, *messages]


@pytest.mark.parametrize(
    ("cost", "stated"), [(1.0, True), (1.49, True), (1.51, False), (3.35, False)]
)
def test_shares_and_savings_are_stated_only_where_tracing_slows_a_step_little(
    cost: float, stated: bool
) -> None:
    cost_text, action, *findings = texts(traced(cost))
    assert ("traced step (50%" in cost_text) == stated
    assert ("ms traced step (50%)" in action) == stated
    assert any("hidden" in one for one in findings) == stated
    if not stated:
        assert cost_text == (
            f"Communication's share of a step is unknown: a traced step takes {cost:.2f}x as long as an untraced one, "
            "so its parts do not describe the training. What tracing does not change: 4.00 MB a step in 2 collectives."
        )
        assert "no saving can be stated" in action
        assert not any("%" in one for one in (cost_text, action, *findings))


def test_means_of_traces_come_with_their_count() -> None:
    (note,) = ledger_table(Ledger(10.0, 4.0, 1.0, 2.0, 0.0, 3.0, windows=8)).notes
    assert note.startswith("means over 8 windows, one per rank and step; wait")


@pytest.mark.parametrize(
    ("ranks", "steps", "of_steps", "chance"),
    [
        (2, 3, 3, 0.25),  # rank 0 or rank 1 in all three, 2 x (1/2)^3
        (2, 6, 6, 2 / 64),
        (4, 3, 3, 1 / 16),  # 4 x (1/4)^3
        (2, 9, 10, 22 / 1024),  # 2 x (10 + 1) / 1024
        (2, 0, 3, 1.0),
    ],
)
def test_chance_by_hand(ranks: int, steps: int, of_steps: int, chance: float) -> None:
    assert chance_of_some_rank(ranks, steps, of_steps) == pytest.approx(chance)


def test_two_ranks_need_six_steps() -> None:
    assert chance_of_some_rank(2, 5, 5) > MOST_CHANCE > chance_of_some_rank(2, 6, 6)
    assert chance_of_some_rank(8, 2, 2) > MOST_CHANCE > chance_of_some_rank(8, 3, 3)
