"""The command line as scenarios, and what is printed about the base."""

from pathlib import Path

import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.what_if.answers.bases import base_of_run, base_of_traces
from dpscope.analysis.what_if.answers.cell_errors import CellErrors
from dpscope.analysis.what_if.answers.options import WhatIfOptions, scenarios_of
from dpscope.analysis.what_if.answers.output import base_sentences, ledger_table, run_answer
from dpscope.analysis.what_if.scenarios.scenario import Scenario
from dpscope.profiling.records.links import REACHED_RATE
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.known import known
from tests.helpers.paths import DATA, EXAMPLE_RUN, ROOT


@pytest.mark.long
@pytest.mark.parametrize("path", [EXAMPLE_RUN, ROOT / "examples" / "run_cpu"])
def test_the_base_s_step_and_ledger_are_the_report_s(path: Path) -> None:
    question = base_of_run(path, None)
    row = compare(known(question.run)).rows[question.base.name]
    assert question.base.step_us == pytest.approx(known(row.step_us))
    assert known(question.base.ledger).parts_us == pytest.approx(known(row.ledger).parts_us)
    prediction = run_answer(question, CellErrors(()), [({}, Scenario())])
    assert (
        f"{known(row.step_us) / 1e3:.1f} ms per untraced step (median over all repeats)"
        in base_sentences(prediction)[0]
    )
    assert f"{known(row.traced_step_us) / 1e3:.1f} ms per traced step (mean)" in base_sentences(prediction)[0]


@pytest.mark.long
def test_the_step_of_traces_is_that_of_their_verdict() -> None:
    path = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
    question, ledger = base_of_traces([path]), analyze_traces([path]).ledger
    assert ledger is not None
    assert question.base.step_us == ledger.traced_step_us
    assert "ms per traced step (mean)" in base_sentences(run_answer(question, CellErrors(()), [({}, Scenario())]))[0]


@pytest.mark.long
def test_the_ledgers_of_base_and_predictions_are_one_table() -> None:
    question = base_of_run(ROOT / "examples" / "run_cpu", None)
    requested = [({"devices": str(count)}, Scenario(devices=count)) for count in (1, 4)]
    table = ledger_table(run_answer(question, CellErrors(()), requested))
    assert table.headings == ("configuration", "step", "compute", "wait", "transfer", "other", "idle", "tracer")
    assert [row[0] for row in table.rows] == ["base: ddp-d2-b128", "1 device", "4 devices"]
    assert table.rows[1][3:6] == ("NA", "NA", "NA")
    assert table.notes[-1] == "NA of wait, transfer, other: one device: nothing to communicate"
    for row in table.rows:
        step, *parts = (0.0 if value == "NA" else float(value) for value in row[1:])
        assert sum(parts) == pytest.approx(step, abs=0.04)


def test_a_rate_that_was_measured_is_no_specification() -> None:
    (words, scenario), (_, other) = scenarios_of(WhatIfOptions(inter="reached 11GB/s,100Gb/s"))
    assert words == {"inter": "reached 11GB/s"}
    assert (known(scenario.links.inter).gb_per_s, known(scenario.links.inter).source) == (11, REACHED_RATE)
    assert (known(other.links.inter).gb_per_s, known(other.links.inter).source == REACHED_RATE) == (12.5, False)
    with pytest.raises(DpscopeError, match="--inter: '11' has no unit"):
        scenarios_of(WhatIfOptions(inter="reached 11"))
