"""What communication costs, and that no share and no saving is stated where tracing slows a step.
Numbers by hand.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.cost import ledger_table
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.profiling.records.run import Cell
from tests.helpers.known import known
from tests.helpers.made_traces import operator
from tests.helpers.made_verdicts import cell, said, verdict_on
from tests.helpers.paths import DATA
from tests.helpers.run_cells import all_reduces, cell_data, run_of, windows, with_tables


def test_what_is_exposed_its_share_its_interval_and_its_parts() -> None:
    """Of 30 ms 20 are exposed; the device computes for 79 of 100 ms."""
    found = known(
        verdict_on(cell("ddp", 4, 32, exposed_low_us=15e3, exposed_high_us=25e3)).fact("cost")
    )
    assert found.lines == (
        "communication takes 20.0 (15.0 to 25.0) of the 100 ms of a step, 20%: 0 waiting for late ranks, "
        "20.0 moving data",
        "devices compute 79.0 (79%), idle 1.0 (1%)",
        "10.0 ms more is hidden: compute runs at the same time",
    )
    assert "95% interval" in found.basis
    assert "no interval" in known(verdict_on(cell("ddp", 4, 32)).fact("cost")).basis


def test_communication_without_an_interval_is_marked_so_in_a_run() -> None:
    """Of one repeat; traces alone have none, so that nothing is marked there."""
    row = cell("ddp", 4, 32)
    timed = replace(row, ledger=replace(known(row.ledger), tracer_us=0.0))
    shown = said(verdict_on(timed), "cost")
    assert "takes 20.0 (no interval: 0 traced repeats, 2 are needed) of the 100 ms" in shown
    assert "no interval" not in said(verdict_on(row), "cost")


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
    assert ("untraced), 50%" in cost) == stated
    assert (", 50%)" in action) == stated
    assert any("hidden" in one for one in findings) == stated
    if not stated:
        assert f"{factor:.1f}x as long" in cost
        assert "4.00 MB in 2 collectives" in cost
        assert "no saving can be stated" in action
        assert not any("%" in one for one in (cost, action, *findings))


@pytest.mark.long
def test_the_late_rank_has_a_row_where_its_cause_is_seen() -> None:
    """Rank 7 waits least and idles longest: its host launches late."""
    table = known(ledger_table(analyze_traces(DATA / "v100x8_ddp_dlrm")))
    assert [row[0] for row in table.rows] == ["mean of 8 ranks", "rank 1, slowest", "rank 7, late"]
    assert table.rows[2][1:] == ("10.97", "1.06", "1.38", "0.20", "0.00", "8.33")


def test_a_rank_that_the_trace_does_not_name_is_called_unknown(tmp_path: Path) -> None:
    trace = tmp_path / "unnamed.json"
    trace.write_text(json.dumps({"traceEvents": [operator("aten::add", 1, 5)]}))
    analysis = analyze_traces([trace])
    assert known(ledger_table(analysis)).rows[0][0] == "rank unknown"
