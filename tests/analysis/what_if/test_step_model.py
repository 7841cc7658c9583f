"""Predictions from tables: made ones with values by hand, and public series with their truths held back."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpscope.analysis.what_if.prediction import Prediction, answer_sentences
from dpscope.analysis.what_if.step_model import TableFit, expected_maximum, fit_table, predict_step
from dpscope.analysis.what_if.step_table import MeasuredStep, read_step_table
from dpscope.analysis.what_if.table_answer import score
from tests.helpers.known import known
from tests.helpers.paths import DATA

SERIES = DATA / "scaling"


def row(ranks: int, step_ms: float, nodes: int = 1, batch: int = 32, sync_ms: float | None = None) -> MeasuredStep:
    sync_us = None if sync_ms is None else sync_ms * 1e3
    return MeasuredStep(ranks, nodes, -(-ranks // nodes), batch, step_ms * 1e3, sync_us, single=ranks == 1)


def at(ranks: int, nodes: int = 1, batch: int = 32) -> MeasuredStep:
    return row(ranks, 0.0, nodes, batch)


def fitted(*rows: MeasuredStep) -> TableFit:
    fit = fit_table(rows)
    assert isinstance(fit, TableFit)
    return fit


@pytest.mark.parametrize(
    ("rows", "place", "expected_ms", "rel"),
    [
        ([row(1, 100), row(2, 104), row(4, 104), row(8, 104)], at(16), 104, 0.03),
        # 10 ms for each further device: 110, 120, 130, 150, 170 ms at 2, 3, 4, 6, 8 devices, and 250 at 16
        ([row(1, 100), *(row(n, 90 + 10 * n) for n in (2, 3, 4, 6, 8))], at(16), 250, 0.12),
        # 10 ms a doubling: 120 ms at 4, 150 at 32, 170 at 128; the ring's line and the nearest count saturate
        ([row(1, 100), *(row(2**n, 100 + 10 * n) for n in range(1, 6))], at(128), 170, 0.05),
        # without one device, a ring between nodes: 240 and 340 ms on 2 and 4 nodes, 390 on 8
        ([row(2, 240, nodes=2), row(4, 340, nodes=4)], at(8, 8), 390, 0.2),
    ],
    ids=["constant", "by device", "by doubling", "without one device"],
)
def test_steps_grow_as_they_did(rows: list[MeasuredStep], place: MeasuredStep, expected_ms: float, rel: float) -> None:
    prediction = predict_step(fitted(*rows), place)
    assert prediction.step_us == pytest.approx(expected_ms * 1e3, rel=rel)
    assert known(prediction.low_us) < expected_ms * 1e3 < known(prediction.high_us)


def test_a_ring_between_nodes_grows_as_its_formula() -> None:
    # t_1 = 100 ms, of which nothing hides 400 ms of wire: T = 2(N-1)/N x 200 ms = 200, 300, 350, 375 ms at N = 2, 4, 8, 16.
    # Exposed is T - h t_1 with the h that the rows show, here 60 ms: steps of 240, 340, 390, and 415 ms at 16.
    exposed_ms = {n: 400 * (n - 1) / n - 60 for n in (2, 4, 8)}
    rows = [row(1, 100), *(row(n, 100 + late, nodes=n, sync_ms=late) for n, late in exposed_ms.items())]
    prediction = predict_step(fitted(*rows), at(16, 16))
    assert prediction.step_us == pytest.approx(415e3, rel=0.05)
    assert prediction.exposed_us == pytest.approx(315e3, rel=0.08)
    assert prediction.bound_by == "communication"


def test_one_device_is_interpolated_between_batches() -> None:
    # t_1: 50 ms at 16, 90 ms at 32: 70 ms at 24; at 64 two times beyond, by the same line, 170 ms; at 8 30 ms.
    rows = [row(1, 50, batch=16), row(1, 90, batch=32), *(row(n, 90, batch=32) for n in (2, 4))]
    single = fitted(*rows).single
    steps_us = [single.at(batch) for batch in (7, 8, 16, 24, 32, 64, 65)]
    assert steps_us[1:-1] == pytest.approx([30e3, 50e3, 70e3, 90e3, 170e3])
    assert (steps_us[0], steps_us[-1]) == (None, None)


def test_what_cannot_be_known_is_refused_with_its_reason() -> None:
    fit = fitted(row(1, 100), row(2, 104), row(4, 105))
    refusals = {
        "no row between nodes was measured": predict_step(fit, at(8, 2)),
        "batch 33 is too far from what one device was measured at (32)": predict_step(fit, at(4, batch=33)),
        "16x the largest measured count (4): no number": predict_step(fit, at(64)),
    }
    for reason, prediction in refusals.items():
        assert prediction.step_us is None
        assert str(prediction.reason).startswith(reason)
    far = refusals["16x the largest measured count (4): no number"]
    assert far.low_us == pytest.approx(100e3)
    assert known(far.high_us) > 105e3


def test_tables_that_cannot_be_used_are_refused() -> None:
    assert str(fit_table([row(1, 100), row(2, 104, batch=16)])).startswith("no two device counts at a batch per device")
    assert str(fit_table([row(2, 104), row(2, 105)])).startswith("no two device counts at a batch per device")
    assert "something else changed" in str(fit_table([row(1, 100), row(2, 80), row(4, 81)]))
    assert str(fit_table([row(1, 0.1), row(2, 104)])).startswith("2 devices take 1,040x the time of one")
    assert "2 devices take 0.001x the time of one" in str(fit_table([row(1, 1e5), row(2, 100)]))
    assert str(fit_table([row(2, 0.1), row(4, 104)])).endswith("check the units")


def test_without_one_device_there_is_no_efficiency() -> None:
    assert predict_step(fitted(row(1, 100), row(2, 104), row(4, 104)), at(8)).efficiency == pytest.approx(
        1 / 1.04, rel=0.03
    )
    fit = fitted(row(2, 240, nodes=2), row(4, 340, nodes=4))
    prediction = predict_step(fit, at(8, 8))
    assert prediction.efficiency is None
    assert "t_1 not measured, assumed to be 95% of the shortest step" in str(prediction.rests_on)
    assert predict_step(fit, at(1)).reason == "no row of one device"


def test_one_wild_row_refuses_no_table() -> None:
    # Of three repeats on two devices one is faster than one device; their median, 102 ms, is not.
    # Of three batches on two devices two lie 6% low, among rows that differ by as much: noise, too.
    by_count = {1: (100, 100, 100), 2: (94, 102, 94), 4: (108, 97, 101)}
    fitted(*(row(n, ms, batch=b) for n, of in by_count.items() for b, ms in zip((8, 16, 32), of, strict=True)))
    rows = [row(1, 100), row(2, 85), row(2, 102), row(2, 107), row(4, 104)]
    fitted(*rows)
    fitted(row(1, 100), row(2, 96), row(4, 101))  # noise of 4%
    assert "2 devices take 0.85x" in str(fit_table([rows[0], rows[1], rows[4]]))


def test_one_row_of_several_devices_is_carried_on_with_an_assumed_band() -> None:
    prediction = predict_step(fitted(row(1, 100), row(4, 130)), at(8))
    # 130 ms if nothing changes, 135 on a ring's line through one device's 100 ms, 145 on a line in log N.
    assert prediction.step_us == pytest.approx(138e3, rel=0.06)
    assert known(prediction.high_us) > 145e3
    assert "an assumed band" in str(prediction.rests_on)


def test_the_band_comes_from_errors_near_the_requested_count() -> None:
    # Eight times the assumed width at 2 devices, a quarter at 16: each decides where it is near; in between all three count.
    fit = fitted(row(1, 100), row(2, 104), row(4, 105))
    fit = replace(fit, errors=((2, 1.0, 8 * 1.645), (16, 1.0, 1.645 / 4)))
    # Without exposed communication and distance the shape is 3%.
    small, middle, large = (fit.half_width(0.0, ranks, 1.0) / 0.03 for ranks in (2, 6, 16))
    assert small == pytest.approx(1.645 * math.sqrt((0.3 + 64) / 1.3), rel=1e-3)
    assert large == pytest.approx(1.645 * math.sqrt((0.3 + 1 / 16) / 1.3), rel=1e-3)
    assert large < middle < small


def test_bands_widen_with_distance_and_exposed_share() -> None:
    fit = fitted(row(1, 100), row(2, 104))  # one count: no errors, twice the assumed width
    assert fit.half_width(0.0, 8, 1.0) == pytest.approx(2 * 1.645 * 0.03)
    assert fit.half_width(0.0, 8, 4.0) == pytest.approx(2 * 1.645 * math.hypot(0.03, 2 * 0.03))
    assert fit.half_width(0.5, 8, 1.0) == pytest.approx(2 * 1.645 * math.hypot(0.03, 0.5 * 0.17))


def test_distance_counts_devices_over_the_same_link() -> None:
    # Eight devices on one node show little of nodes: between those two devices were measured, so 32 are 16 times as many.
    rows = [row(1, 100), row(2, 101), row(4, 102), row(8, 103), row(2, 150, nodes=2)]
    prediction = predict_step(fitted(*rows), at(32, 4))
    assert prediction.step_us is None
    assert str(prediction.reason).startswith("16x the largest measured count (2)")


def test_one_device_is_what_was_measured_and_ddp_on_it_is_more() -> None:
    fit = fitted(row(1, 100), row(2, 106), row(4, 106))
    assert predict_step(fit, at(1)).step_us == 100e3
    assert 100e3 < known(predict_step(fit, replace(at(1), single=False)).step_us) < 107e3


def test_the_slowest_of_several() -> None:
    # Expected maxima of 2 and 8 standard normal numbers: 0.564 and 1.424 (Harter, Biometrika 48, 1961); Blom's is near.
    assert expected_maximum(np.array([1.0, 2.0, 8.0])) == pytest.approx([0.0, 0.564, 1.424], abs=0.03)
    assert np.isfinite(expected_maximum(np.array([2.0**53])))


@pytest.mark.long
def test_a_public_series_without_one_device_is_predicted_as_well() -> None:
    rows = read_step_table(SERIES / "ddp_t4_imagenet.csv")
    fit = fitted(*(one for one in rows if 1 < one.ranks <= 4))
    held = [one for one in rows if 5 <= one.ranks <= 8]
    result = score(fit, [(one, predict_step(fit, one)) for one in held])
    assert (result.rows, result.declined) == (len(held), 0)
    assert known(result.step_error) <= 0.05
    assert known(result.exposed_error) <= 0.3


@pytest.mark.long
def test_a_public_series_is_predicted_beyond_the_devices_it_was_fitted_on() -> None:
    rows = read_step_table(SERIES / "ddp_t4_cifar10.csv")
    fit = fitted(*(one for one in rows if one.ranks <= 8))
    held = [one for one in rows if 9 <= one.ranks <= 16]
    result = score(fit, [(one, predict_step(fit, one)) for one in held])
    assert result.rows - result.declined == len(held)
    assert len(held) > 500
    assert known(result.step_error) <= 0.05
    assert known(result.exposed_error) <= 0.25
    assert 0.85 <= known(result.inside) <= 0.97
    assert known(result.half_width) <= 0.135
    assert known(result.step_error) < 0.5 * known(result.rules["perfect scaling"])


def test_the_v100_rows_are_within_two_percent_or_refused() -> None:
    rows = read_step_table(SERIES / "ddp_v100_pytorch_benchmark.csv")
    for model in ("resnet50", "resnet101"):
        of_model = [one for one in rows if ("model", model) in one.identity]
        fit = fitted(*(one for one in of_model if one.ranks <= 4))
        eight, sixteen = (next(one for one in of_model if one.ranks == count) for count in (8, 16))
        step_us = known(predict_step(fit, eight).step_us)
        assert step_us == pytest.approx(eight.step_us, rel=0.02)
        assert abs(step_us - eight.step_us) <= 0.35 * (eight.step_us - known(fit.single.at(32)))
        reason = "no row between nodes was measured: the cost of that link is not known"
        assert predict_step(fit, sixteen).reason == reason


def predicted(step_ms: float | None) -> Prediction:
    if step_ms is None:
        return Prediction(16, 2, 8, reason="nothing was measured between nodes")
    return Prediction(4, 1, 8, step_us=step_ms * 1e3, low_us=step_ms * 900, high_us=step_ms * 1100, efficiency=0.5)


@pytest.mark.parametrize(
    ("steps_ms", "expected"),
    [
        ([12, None], ["a: 12.0 ms a step (90% band 10.8 to 13.2), 50% of perfect scaling.",
                      "b: no number: nothing was measured between nodes."]),
        ([14, 12, 30, 20, 25], ["5 configurations, all with a number: 12.0 ms a step (b) to 30.0 ms (c)."]),
        ([14, 12, None, 20, 25], ["5 configurations, 4 with a number: 12.0 ms a step (b) to 25.0 ms (e)."]),
        ([12] * 6, ["6 configurations, all with a number: 12.0 ms a step."]),
        ([None] * 5, ["None of 5 configurations has a number: nothing was measured between nodes."]),
    ],
)  # fmt: skip
def test_a_sentence_each_or_the_ends_of_many(steps_ms: list[float | None], expected: list[str]) -> None:
    assert answer_sentences("abcdef"[: len(steps_ms)], [predicted(one) for one in steps_ms]) == expected
