"""What communication costs, and that no share and no saving is stated where tracing slows a step.
Numbers by hand.
"""

from dataclasses import replace

import numpy as np
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.cost import late_facts, ledger_table
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.traces.ranks.lateness import LastRank, LateRank
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.profiling.records.run import Cell
from tests.helpers.known import known
from tests.helpers.made_verdicts import cell, said, verdict_on
from tests.helpers.run_cells import all_reduces, cell_data, run_of, windows, with_tables


def test_what_is_exposed_its_share_its_interval_and_its_parts() -> None:
    """Of 30 ms 20 are exposed; the device computes for 79 of 100 ms."""
    found = known(
        verdict_on(cell("ddp", 4, 32, exposed_low_us=15e3, exposed_high_us=25e3)).fact("cost")
    )
    assert found.lines == (
        "communication adds 20.0 ms (15.0 to 25.0) to a 100 ms step, 20%: 0 waiting for late ranks, "
        "20.0 moving data",
        "devices compute 79.0 (79%), idle 1.0 (1%)",
        "10.0 ms more is hidden: compute runs at the same time",
    )
    assert "95% interval" in found.basis
    assert "no interval" in known(verdict_on(cell("ddp", 4, 32)).fact("cost")).basis


def test_broadcasts_of_buffers_are_not_called_moving_data() -> None:
    """Of 20 ms exposed 5 ms wait, 6 ms are transfers and 9 ms DDP's broadcasts."""
    row = cell("ddp", 4, 32, exposed_wait_us=5e3, exposed_transfer_us=6e3, exposed_other_us=9e3)
    found = said(verdict_on(row), "cost")
    assert ": 5.0 waiting for late ranks, 6.0 moving data, 9.0 broadcast" in found


def test_what_a_trace_does_not_show_is_not_measured() -> None:
    lost = (
        "communication_us",
        "exposed_us",
        "exposed_wait_us",
        "exposed_transfer_us",
        "exposed_other_us",
    )
    unknown = known(verdict_on(cell("ddp", 4, 32, **dict.fromkeys(lost))).fact("cost"))
    assert unknown.lines == ("not measured: the trace of ddp-d4-b32 does not show it",)
    assert unknown.basis == "not measured"


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


@pytest.mark.parametrize(
    ("factor", "stated"), [(1.0, True), (1.49, True), (1.51, False), (3.35, False)]
)
def test_shares_and_savings_are_stated_only_where_tracing_slows_a_step_little(
    factor: float, stated: bool
) -> None:
    run = traced(factor)
    compared = compare(run)
    verdict = run_verdict(run, compared)
    cost, action = said(verdict, "cost"), said(verdict, "next")
    findings = [one.message for one in conclusions(run, compared) if one.code == "no_overlap"]
    assert ("step, 50%" in cost) == stated
    assert (", 50%)" in action) == stated
    assert any("hidden" in one for one in findings) == stated
    if not stated:
        assert f"{factor:.1f}x as long" in cost
        assert "4.00 MB in 2 collectives" in cost
        assert "no saving can be stated" in action
        assert not any("%" in one for one in (cost, action, *findings))


def test_means_of_traces_come_with_their_count_and_add_up() -> None:
    """Two ranks in three steps of two repeats, each alike."""
    run = traced(1.0)
    table = known(ledger_table(run.cells["ddp-d2-b8"]))
    assert table.notes[0].startswith("means over 12 steps of 2 ranks; wait")
    assert table.rows[0][0] == "mean of ranks"
    assert table.rows[0][1:3] == ("10.00", "5.00")


def test_a_rank_that_is_last_without_exposed_waiting_is_no_fact() -> None:
    last = LastRank(1, ranks=2, steps=4, of_steps=4, lateness_us=0.0)
    late = LateRank(last, 0.0, 0.0, lateness_us=0.0, step_us=10e3, exposed_us=1e3)
    ledger = Ledger(10e3, 8e3, 0.0, 1e3, 0.0, 1e3)
    assert late_facts(late, ledger) == []
    (fact,) = late_facts(replace(late, wait_us=3e3, share=0.75), ledger)
    assert "rank 1 causes 75% of the waiting (3.0 of 4.0 ms a step" in fact.lines[0]
