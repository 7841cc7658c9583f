"""What is printed about a base and its scenarios."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from dpscope.analysis.costs.calibration_files import calibration_from_logs
from dpscope.analysis.figures.efficiency import efficiency_figure
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.what_if.answer import (
    Predicted,
    RunAnswer,
    chapter_of,
    facts,
    ledger_table,
    run_answer,
)
from dpscope.analysis.what_if.bases import Question, base_of_loaded, base_of_traces
from dpscope.analysis.what_if.cell_errors import CellError, CellErrors
from dpscope.analysis.what_if.options import placed, scenarios_of
from dpscope.analysis.what_if.scenario import Prediction, Scenario
from dpscope.profiling.records.links import REACHED_RATE
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.nccl_logs import log_text
from tests.helpers.examples import FIVE_REPEATS, loaded, reported
from tests.helpers.known import known
from tests.helpers.paths import DATA
from tests.helpers.replayed_steps import BASE, COSTS


@pytest.fixture(scope="module")
def question() -> Question:
    """Five repeats of LeNet-5 on two processes of a CPU."""
    return base_of_loaded(loaded(FIVE_REPEATS), "ddp-d2-b128")


@pytest.mark.long
def test_the_base_s_step_and_ledger_are_the_report_s(question: Question) -> None:
    row = reported(FIVE_REPEATS).comparison.rows[question.base.name]
    assert question.base.step_us == pytest.approx(known(row.step_us))
    assert known(question.base.ledger).parts_us == pytest.approx(known(row.ledger).parts_us)
    (fact, *_) = facts(run_answer(question, CellErrors(()), [({}, Scenario())]))
    assert f"{known(row.step_us) / 1e3:.1f} ms a step (median untraced step of all repeats)" in fact


@pytest.mark.long
def test_the_step_of_traces_is_that_of_their_verdict() -> None:
    path = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
    question, ledger = base_of_traces([path]), analyze_traces([path]).ledger
    assert ledger is not None
    assert question.base.step_us == ledger.traced_step_us
    assert (
        "ms a step (mean traced step)"
        in facts(run_answer(question, CellErrors(()), [({}, Scenario())]))[0]
    )


@pytest.mark.long
def test_the_ledgers_of_base_and_predictions_are_one_table(question: Question) -> None:
    requested = [({"devices": str(count)}, Scenario(devices=count)) for count in (1, 4)]
    table = ledger_table(run_answer(question, CellErrors(()), requested))
    assert table.headings == (
        "configuration",
        "step",
        "compute",
        "wait",
        "transfer",
        "other",
        "idle",
        "tracer",
    )
    assert [row[0] for row in table.rows] == ["base: ddp-d2-b128", "1 device", "4 devices"]
    assert table.rows[1][3:6] == ("0.00", "0.00", "0.00")
    for row in table.rows:
        step, *parts = (0.0 if value == "NA" else float(value) for value in row[1:])
        assert sum(parts) == pytest.approx(step, abs=0.04)


def test_a_rate_that_was_measured_is_no_specification() -> None:
    (words, scenario), (_, other) = scenarios_of({"link": "reached 11GB/s,100Gb/s"})
    assert words == {"link": "reached 11GB/s"}
    assert (known(scenario.links.inter).gb_per_s, known(scenario.links.inter).source) == (
        11,
        REACHED_RATE,
    )
    assert (known(other.links.inter).gb_per_s, known(other.links.inter).source == REACHED_RATE) == (
        12.5,
        False,
    )
    with pytest.raises(DpscopeError, match="--link '11' has no unit"):
        scenarios_of({"link": "reached 11"})


def test_one_link_is_that_between_several_nodes_else_that_within_the_node() -> None:
    within, between = (
        placed(BASE, scenarios_of({"link": "1GB/s", "devices": "4", "per_node": each}))[0][1].links
        for each in ("4", "2")
    )
    assert (known(within.intra).gb_per_s, within.inter) == (1, None)
    assert (between.intra, known(between.inter).gb_per_s) == (None, 1)


@pytest.mark.long
def test_wrong_results_in_the_calibration_are_stated(question: Question, tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.log"
    path.write_text(
        log_text({1 << 20: 100.0, 1 << 24: 900.0}, 4) + "# Out of bounds values : 7 FAILED\n"
    )
    costs = replace(question.costs, calibration=calibration_from_logs([path]))
    answer = run_answer(replace(question, costs=costs), CellErrors(()), [({}, Scenario())])
    assert "gave wrong results (Out of bounds values: FAILED)" in facts(answer)[2]
    assert [one["code"] for one in json.loads(answer.as_json())["findings"]] == [
        "calibration_results_wrong"
    ]


@pytest.mark.long
def test_a_chapter_holds_counts_beyond_the_measured_one() -> None:
    chapter = known(chapter_of(loaded(FIVE_REPEATS)))
    table = chapter.tables["what_if"]
    assert [row[0] for row in table.rows] == ["2", "4", "8", "16"]
    base = chapter.question.base
    assert table.rows[0][table.headings.index("step [ms]")] == f"{base.step_us / 1e3:.1f}"
    widths = [
        float(high) - float(low) for low, high in (row[4].split(" to ") for row in table.rows[:3])
    ]
    assert widths == sorted(widths)
    assert table.notes[2].startswith("Layout assumed: all 16 devices on one node")
    notes = " ".join(table.notes)
    # Calibrated on 2 devices alone, collectives are not predicted beyond 8.
    assert table.rows[3][table.headings.index("step [ms]")] == "NA"
    assert (
        "16 devices: no prediction: all_reduce calibrated on 2 devices: 8 times beyond the measured counts"
        in notes
    )
    assert "ddp-d2-b128" in notes
    assert "not valid for GPUs" in notes
    predicted, measured = (
        np.asarray(line.get_xydata())
        for line in known(efficiency_figure(*chapter.efficiencies)).axes[0].get_lines()
    )
    assert predicted[:, 0].tolist() == [2, 4, 8]
    assert measured.tolist() == [pytest.approx(predicted[0].tolist(), rel=1e-6)]


def test_a_run_without_a_ddp_cell_and_traces_alone_have_no_chapter() -> None:
    example = loaded(FIVE_REPEATS)
    alone = {name: data for name, data in example.cells.items() if data.cell.strategy != "ddp"}
    assert chapter_of(replace(example, cells=alone)) is None
    assert chapter_of(replace(example, recorded=None)) is None


def test_efficiencies_have_the_band_of_their_steps_and_none_is_drawn_without_one() -> None:
    """Efficiency 0.8 of a step of 100, 90 to 125 us: 0.8 * 100 / 125 = 0.64 to 0.8 * 100 / 90 =
    0.889.
    """
    known_step = Prediction(8, 1, 8, 100.0, 90.0, 125.0, efficiency=0.8)
    rows = [replace(known_step, devices=count) for count in (8, 2)] + [
        Prediction(4, 1, 8, 100.0, 90.0, 125.0)
    ]
    answer = RunAnswer(
        Question(BASE, COSTS), CellErrors(()), tuple(Predicted({}, one) for one in rows)
    )
    (axes,) = known(efficiency_figure(*answer.efficiencies)).axes
    assert [tuple(point) for point in np.asarray(axes.get_lines()[0].get_xydata())] == [
        (2, 80),
        (8, 80),
    ]
    ends = np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1]
    assert (ends.min(), ends.max()) == pytest.approx((64, 800 / 9))
    unknown = RunAnswer(Question(BASE, COSTS), CellErrors(()), (Predicted({}, rows[2]),))
    assert efficiency_figure(*unknown.efficiencies) is None


def test_measured_efficiencies_are_of_the_base_and_cells_that_differ_in_their_devices_alone() -> (
    None
):
    """t_1 is 80: of the base 80 / 100, of the same variant on 4 devices 80 / 160."""
    times = ((4, 8, "hook-fp16", 160.0), (8, 8, "", 90.0), (8, 16, "hook-fp16", 95.0))
    errors = tuple(
        CellError(f"ddp-d{devices}", variant, step, Prediction(devices, 1, batch), 100.0)
        for devices, batch, variant, step in times
    )
    base = replace(BASE, batch_size=8, step_us=100.0, single_us={8: 80.0})
    cell = SimpleNamespace(variant="hook-fp16")
    question = Question(base, COSTS, cell=cast(Job, cell))
    assert RunAnswer(question, CellErrors(errors), ()).measured_efficiencies == [(2, 0.8), (4, 0.5)]
