"""What is printed about a base and its scenarios."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from dpscope.analysis.figures.efficiency import efficiency_figure
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.what_if.answer import Predicted, RunAnswer, facts, run_answer
from dpscope.analysis.what_if.bases import Question
from dpscope.analysis.what_if.cell_errors import CellError, CellErrors
from dpscope.analysis.what_if.scenario import Prediction, Scenario
from dpscope.analysis.what_if.step_profile import typical
from tests.helpers.examples import reported
from tests.helpers.known import known
from tests.helpers.replayed_steps import BASE, COSTS


@pytest.mark.long
def test_the_base_s_step_and_exposed_time_are_the_report_s(question: Question) -> None:
    row = reported().comparison.rows[question.base.name]
    assert question.base.step_us == pytest.approx(known(row.step_us))
    assert question.base.exposed_us == pytest.approx(known(row.ledger).exposed_us)
    (fact, *_) = facts(run_answer(question, CellErrors(()), [({}, Scenario())]))
    assert f"{known(row.step_us) / 1e3:.1f} ms a step (median untraced step of all repeats)" in fact


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
    (axes,) = known(efficiency_figure(answer.efficiencies)).axes
    assert [tuple(point) for point in np.asarray(axes.get_lines()[0].get_xydata())] == [
        (2, 80),
        (8, 80),
    ]
    ends = np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1]
    assert (ends.min(), ends.max()) == pytest.approx((64, 800 / 9))
    unknown = RunAnswer(Question(BASE, COSTS), CellErrors(()), (Predicted({}, rows[2]),))
    assert efficiency_figure(unknown.efficiencies) is None


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


def test_what_has_no_prediction_stands_first_and_in_no_row() -> None:
    """Each reason once, with its counts."""
    known_step = Prediction(2, 1, 8, 100.0, 90.0, 125.0, rests_on=("the replay",))
    far = [Prediction(count, 1, 8, reason="too far") for count in (32, 64)]
    question = Question(BASE, COSTS)

    def of(*predictions: Prediction) -> RunAnswer:
        return RunAnswer(question, CellErrors(()), tuple(Predicted({}, one) for one in predictions))

    assert of(*far).refusals == ["No prediction for 32, 64 devices: too far."]
    tested = CellErrors((CellError("ddp-d4", "", 100.0, known_step, 100.0),))
    refused = RunAnswer(question, tested, (Predicted({}, far[0]),))
    assert not refused.known
    (table,) = refused.tables.values()
    assert table.rows == (("No prediction for 32 devices: too far.",),)
    some = of(known_step, *far)
    assert some.refusals == ["No prediction for 32, 64 devices: too far."]
    assert [row[0] for row in some.tables["what_if"].rows] == ["2", "2"]
    assert some.tables["what_if"].notes[0] == some.refusals[0]
    limited = [replace(known_step, devices=count, limit="few cores") for count in (8, 4)]
    assert of(known_step, *limited).limits == ["4, 8 devices: few cores."]
    assert of(*limited).limits == ["Few cores."]


def test_a_refusal_names_its_scenarios() -> None:
    """All combinations of two options as lists, others one by one."""
    refused = Prediction(2, 1, 8, reason="too uncertain")
    scenarios = [
        Predicted({"comm_hook": hook, "bucket_mb": cap, "devices": "2"}, refused)
        for hook in ("fp16", "bf16")
        for cap in ("1", "5")
    ]

    def line(*predictions: Predicted) -> str:
        (found,) = RunAnswer(Question(BASE, COSTS), CellErrors(()), predictions).refusals
        return found

    every = "2 devices (--comm-hook fp16, bf16 with --bucket-mb 1, 5): too uncertain."
    assert line(*scenarios) == f"No prediction for {every}"
    some = "--comm-hook fp16 with --bucket-mb 1 or --comm-hook bf16 with --bucket-mb 5"
    assert (
        line(scenarios[0], scenarios[3]) == f"No prediction for 2 devices ({some}): too uncertain."
    )
    spaced = Predicted({"link": "reached 1GB/s"}, refused)
    assert line(spaced) == 'No prediction for 2 devices (--link "reached 1GB/s"): too uncertain.'


def test_a_scenario_that_is_the_base_is_named() -> None:
    scenarios = [({"accumulate": str(count)}, Scenario(accumulate=count)) for count in (1, 2)]
    answer = run_answer(Question(BASE, COSTS), CellErrors(()), scenarios)
    assert "As measured: --accumulate 1." in facts(answer)
    assert answer.tables["what_if"].title.endswith("first row: the base as measured")


def test_the_first_row_is_the_measured_base() -> None:
    """230 us, of which 20 are exposed; one device takes 210: 91.3%."""
    scenarios = [
        ({"hook": "fp16"}, Scenario(hook="fp16")),
        ({"hook": "none"}, Scenario(hook="none")),
    ]
    answer = run_answer(Question(BASE, COSTS), CellErrors(()), scenarios)
    base, changed = answer.tables["what_if"].rows
    assert list(base) == ["2", "1", "4", "as measured", "0.2", "NA", "NA", "NA", "0.0", "91.3"]
    assert changed[3] == "fp16"
    assert answer.hint is None
    frame = answer.tables["what_if"].frame()
    assert np.isnan(frame["low_us"][0])
    prediction = answer.predictions[0].prediction
    assert (frame["low_us"][1], frame["high_us"][1]) == (prediction.low_us, prediction.high_us)


def test_first_it_is_said_whether_a_change_can_be_told_apart_from_none() -> None:
    """Of 230 ms 10 less, and 50 more. On 4 devices in place of 2 a step of 280 ms, 230 to 400, holds
    twice the samples: 2 x 230/280 = 1.64 times as many per second, 1.15 to 2.
    """
    slow = replace(BASE, step_us=230e3)
    base_ms = 230.0
    fp16 = Prediction(2, 1, 4, 220e3, change_us=-10e3, change_low_us=-19e3, change_high_us=1e3)
    slower = replace(fp16, step_us=280e3, change_us=50e3, change_low_us=30e3, change_high_us=60e3)
    far = replace(slower, devices=4, low_us=230e3, high_us=400e3)
    rows = (
        Predicted({"comm_hook": "fp16"}, fp16),
        Predicted({"bucket_mb": "1"}, slower),
        Predicted({"bucket_mb": "5"}, replace(slower, change_us=0.0, change_low_us=-1e3)),
        Predicted({"devices": "4"}, far),
        Predicted({"devices": "4"}, replace(far, high_us=500e3)),
    )
    unsure, longer, unchanged, more, perhaps = RunAnswer(
        Question(slow, COSTS), CellErrors(()), rows
    ).changes
    assert unsure == (
        "--comm-hook fp16: 10.0 ms shorter (4.3%); -19.0 to +1.0 ms: within the error, cannot be "
        "told apart from no change."
    )
    assert longer == f"--bucket-mb 1: 50.0 ms longer ({5000 / base_ms:.1f}%); +30.0 to +60.0 ms."
    assert unchanged.startswith("--bucket-mb 5: unchanged; -1.0 to +60.0 ms: within the error")
    assert more == ("--devices 4: 1.64 times the samples/s (1.15 to 2.00), in steps of 280.0 ms.")
    assert "(0.92 to 2.00), in steps of 280.0 ms: within the error" in perhaps


def test_a_question_without_a_scenario_is_answered_with_what_to_give() -> None:
    answer = run_answer(Question(BASE, COSTS), CellErrors(()), [({}, Scenario())])
    assert len(answer.tables["what_if"].rows) == 1
    assert str(answer.hint).startswith(
        "Nothing differs from what was measured: give another scenario"
    )


def test_the_replayed_steps_are_counted_as_steps_of_single_ranks() -> None:
    """Three of the two steps of four ranks, of 1 to 8 ms: 4, 5 and 3 ms are the nearest to the
    median of 4.5.
    """
    every = tuple(
        replace(BASE.profiles[0], rank=at // 2, step_us=(at + 1) * 1e3) for at in range(8)
    )
    base = replace(BASE, profiles=typical(every), every=every)
    (_, replay, *_) = facts(run_answer(Question(base, COSTS), CellErrors(()), [({}, Scenario())]))
    assert (
        "of 8 traced steps of single ranks the 3 nearest to the median (4.0 ms on average) are replayed, each within"
        in replay
    )
