"""What is printed about a base and its scenarios, and what removing a part saves, by pocket calculation."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from dpscope.analysis.costs.calibration_files import calibration_from_logs
from dpscope.analysis.traces.ranks.ledger import BUFFER_BROADCASTS, TRANSFER, UNSPLIT, WAITING, Ledger
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.what_if.answer import (
    INFINITE_BANDWIDTH,
    TWICE_AS_FAST,
    Saving,
    base_sentences,
    ledger_table,
    run_answer,
    run_answer_sentences,
    savings,
    savings_sentences,
)
from dpscope.analysis.what_if.bases import CellErrors, Question, base_of_loaded, base_of_traces
from dpscope.analysis.what_if.options import scenarios_of
from dpscope.analysis.what_if.scenario import Scenario
from dpscope.analysis.what_if.step_profile import OtherCollective
from dpscope.profiling.records.links import REACHED_RATE
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.nccl_logs import log_text
from tests.helpers.examples import FIVE_REPEATS, loaded, reported
from tests.helpers.known import known
from tests.helpers.paths import DATA
from tests.helpers.replayed_steps import BASE, COSTS, PROFILE


def test_the_part_whose_removal_saves_most_comes_first_and_other_changes_after_the_parts() -> None:
    """Exposed are 20 us of transfer and none of waiting; a device twice as fast saves 105, but removes no part."""
    found = savings(BASE, Scenario(), COSTS)
    assert [one.change for one in found if one.is_part] == [TRANSFER, WAITING]
    assert [one.is_part for one in found] == [True, True, False, False, False]
    saved = {one.change: one.saved_us for one in found}
    assert saved[TRANSFER] == pytest.approx(20)
    assert saved[INFINITE_BANDWIDTH] == pytest.approx(20)
    assert saved[TWICE_AS_FAST] == pytest.approx(105)
    assert not next(one for one in found if one.change == WAITING).is_significant


def test_waiting_and_broadcasts_are_parts() -> None:
    """Ranks are 15 us late at each bucket: 215, 235. A broadcast of 30 us comes first, so that all else is 30 us later."""
    late = tuple(replace(one, late_us=15.0) for one in PROFILE.buckets)
    broadcast = OtherCollective("broadcast", 1e5, 0, 30.0, blocks=True)
    made = replace(PROFILE, buckets=late, others=(broadcast,), step_us=275.0)
    ledger = Ledger(275.0, 210.0, 15.0, 20.0, 30.0, 0.0, other_by_kind_us={"broadcast": 30.0})
    base = replace(BASE, profiles=(made,), step_us=275.0, ledger=ledger)
    saved = {one.change: one.saved_us for one in savings(base, Scenario(), COSTS) if one.is_part}
    assert saved == pytest.approx({BUFFER_BROADCASTS: 30, TRANSFER: 20, WAITING: 15})
    assert next(iter(saved)) == BUFFER_BROADCASTS


def test_nothing_saves_more_than_its_part_of_the_step() -> None:
    """12 us of waiting in the mean step, 15 in the step that is replayed."""
    late = replace(PROFILE, buckets=tuple(replace(one, late_us=15.0) for one in PROFILE.buckets), step_us=245.0)
    base = replace(BASE, profiles=(late,), step_us=242.0, ledger=Ledger(242.0, 210.0, 12.0, 20.0, 0.0, 0.0))
    saved = {one.change: one.saved_us for one in savings(base, Scenario(), COSTS)}
    assert saved[WAITING] == pytest.approx(12)


def test_communication_that_is_not_split_is_one_part() -> None:
    base = replace(BASE, ledger=Ledger(230.0, 210.0, None, None, 20.0, 0.0))
    assert [one.change for one in savings(base, Scenario(), COSTS) if one.is_part] == [UNSPLIT]


@pytest.fixture(scope="module")
def question() -> Question:
    """Five repeats of LeNet-5 on two processes of a CPU."""
    return base_of_loaded(loaded(FIVE_REPEATS), "ddp-d2-b128")


@pytest.mark.long
def test_the_largest_saving_is_the_part_that_the_report_advises_to_remove(question: Question) -> None:
    action = reported(FIVE_REPEATS).verdict.action
    largest = savings(question.base, Scenario(), question.costs)[0]
    assert (largest.change, action.part) == (WAITING, WAITING)
    assert largest.saved_us <= known(action.saves_us) * (1 + 1e-9)  # which is what removing it saves at most


def test_a_largest_part_whose_removal_saves_less_than_another_is_named() -> None:
    found = [
        Saving(WAITING, 2040.0, 2000.0, 2080.0, 450.0, True),
        Saving(TRANSFER, 500.0, 400.0, 600.0, 450.0, True),
        Saving(TWICE_AS_FAST, 0.0, 0.0, 0.0, 450.0, False),
    ]
    prediction = savings_sentences(found, 2, Ledger(10_000.0, 4000.0, 2100.0, 3000.0, 0.0, 900.0))
    assert prediction == [
        "Largest saving on 2 devices, one part removed at a time: waiting for late ranks saves 2.0 ms; exposed transfer saves "
        "0.5 ms (within the error).",
        "The largest of these parts is exposed transfer (3.00 ms of the step), but its removal alone saves only 500.0 µs: other "
        "parts take its place.",
        "For comparison: a device twice as fast saves nothing.",
        "Within the error: a band that reaches below the method's error on the whole step, 450.0 µs.",
    ]
    certain = [replace(one, step_error_us=399.0) for one in found]
    assert [one.is_significant for one in certain] == [True, True, False]
    assert len(savings_sentences(certain, 2, Ledger(10_000.0, 4000.0, 3100.0, 3000.0, 0.0, 900.0))) == 2


def test_a_saving_is_as_unsure_as_the_costs_that_it_saves() -> None:
    """On 4 devices by the ring's formula, 30 us a bucket, 30% either way in logarithms: 10.5 us more or 7.8 less. The method is
    assumed to be 4% off, the base's repeats 1%, and twice the devices 6%."""
    saved = {one.change: one for one in savings(BASE, Scenario(devices=4), COSTS)}
    share = math.hypot(0.04, 0.01, 0.06)
    link = saved[INFINITE_BANDWIDTH]
    assert link.saved_us == pytest.approx(30)
    assert link.low_us == pytest.approx(30 - math.hypot(30 * share, 30 * -math.expm1(-0.3)))
    assert link.high_us == pytest.approx(30 + math.hypot(30 * share, 30 * math.expm1(0.3)))
    # Ready at 75 and 100, the buckets end at 105 and 135, the optimizer at 140, 12% of which the device may be off. Cheaper ones
    # make both steps shorter: of 30 e^-0.3 = 22.2 us, by 7.8 and by 12.8.
    device = saved[TWICE_AS_FAST]
    assert device.saved_us == pytest.approx(100)
    cheaper = 30 * math.exp(-0.3)
    apart = (135 - (100 + cheaper)) - (30 - cheaper)
    assert device.saved_us - device.low_us == pytest.approx(math.hypot(100 * share, 0.12 * 140, apart))


@pytest.mark.long
def test_the_base_s_step_and_ledger_are_the_report_s(question: Question) -> None:
    row = reported(FIVE_REPEATS).comparison.rows[question.base.name]
    assert question.base.step_us == pytest.approx(known(row.step_us))
    assert known(question.base.ledger).parts_us == pytest.approx(known(row.ledger).parts_us)
    (sentence, *_) = base_sentences(run_answer(question, CellErrors(()), [({}, Scenario())]))
    assert f"{known(row.step_us) / 1e3:.1f} ms per untraced step (median over all repeats)" in sentence
    assert f"{known(row.traced_step_us) / 1e3:.1f} ms per traced step (mean)" in sentence


@pytest.mark.long
def test_the_step_of_traces_is_that_of_their_verdict() -> None:
    path = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
    question, ledger = base_of_traces([path]), analyze_traces([path]).ledger
    assert ledger is not None
    assert question.base.step_us == ledger.traced_step_us
    assert "ms per traced step (mean)" in base_sentences(run_answer(question, CellErrors(()), [({}, Scenario())]))[0]


@pytest.mark.long
def test_the_ledgers_of_base_and_predictions_are_one_table(question: Question) -> None:
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
    (words, scenario), (_, other) = scenarios_of({"inter": "reached 11GB/s,100Gb/s"})
    assert words == {"inter": "reached 11GB/s"}
    assert (known(scenario.links.inter).gb_per_s, known(scenario.links.inter).source) == (11, REACHED_RATE)
    assert (known(other.links.inter).gb_per_s, known(other.links.inter).source == REACHED_RATE) == (12.5, False)
    with pytest.raises(DpscopeError, match="--inter '11' has no unit"):
        scenarios_of({"inter": "reached 11"})


@pytest.mark.long
def test_wrong_results_in_the_calibration_are_stated(question: Question, tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.log"
    path.write_text(log_text({1 << 20: 100.0, 1 << 24: 900.0}, 4) + "# Out of bounds values : 7 FAILED\n")
    costs = replace(question.costs, every=calibration_from_logs([path]))
    answer = run_answer(replace(question, costs=costs), CellErrors(()), [({}, Scenario())])
    assert "gave wrong results (Out of bounds values: FAILED)" in base_sentences(answer)[1]
    assert [one["code"] for one in json.loads(answer.as_json())["findings"]] == ["calibration_results_wrong"]


@pytest.mark.parametrize(("idle_us", "stated"), [(44.0, True), (9.0, False)])
def test_perfect_scaling_of_a_base_that_idles_says_so(idle_us: float, stated: bool) -> None:
    """Of a traced step of 100 us; with an efficiency, t_1 being known."""
    ledger = Ledger(100.0, 100.0 - idle_us - 2.0, 1.0, 1.0, 0.0, idle_us)
    base = replace(BASE, ledger=ledger, batch_size=8, single_us={8: BASE.step_us})
    answer = run_answer(Question(base, COSTS), CellErrors(()), [({"devices": "4"}, Scenario(devices=4))])
    assert answer.predictions[0][2].efficiency is not None
    sentences = run_answer_sentences(answer)
    idles = "Perfect scaling is not full use: the base idles 44% of its step, on any number of devices."
    assert (idles in sentences) is stated
    assert any("Perfect scaling" in one for one in sentences) is stated
