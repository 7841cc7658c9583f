"""Predictions from tables: made ones with values by hand, and public series with their truths held back."""

import math

import numpy as np
import pytest

from dpscope.analysis.what_if.bands import Bands, Errors
from dpscope.analysis.what_if.forecasts import Trust, combined_us, disagreement
from dpscope.analysis.what_if.from_table import TableFit, fit_table, predict_step
from dpscope.analysis.what_if.growth import growth_of
from dpscope.analysis.what_if.score import score
from dpscope.analysis.what_if.step_model import expected_maximum
from dpscope.analysis.what_if.step_table import MeasuredStep, Placement, read_step_table
from tests.helpers.paths import DATA

SERIES = DATA / "scaling"
NONE = Errors(*(np.zeros(0) for _ in range(5)))


def row(ranks: int, step_ms: float, nodes: int = 1, batch: int = 32, sync_ms: float | None = None) -> MeasuredStep:
    place = Placement(ranks, nodes, -(-ranks // nodes))
    return MeasuredStep(place, batch, step_ms * 1e3, None if sync_ms is None else sync_ms * 1e3, single=ranks == 1)


def fitted(*rows: MeasuredStep) -> TableFit:
    fit = fit_table(rows)
    assert isinstance(fit, TableFit)
    return fit


def test_steps_that_do_not_grow_are_predicted_not_to_grow() -> None:
    fit = fitted(row(1, 100), row(2, 104), row(4, 104), row(8, 104))
    said = predict_step(fit, Placement(16, 1, 16), 32)
    assert said.step_us == pytest.approx(104e3, rel=0.01)
    assert said.efficiency == pytest.approx(100 / 104, rel=0.01)
    assert said.low_us is not None
    assert said.high_us is not None
    assert said.low_us < 104e3 < said.high_us


def test_a_ring_between_nodes_grows_as_its_formula() -> None:
    # t_1 = 100 ms, of which nothing hides 400 ms of wire: T = 2(N-1)/N x 200 ms = 200, 300, 350, 375 ms at N = 2, 4, 8, 16.
    # Exposed is T - h t_1 with the h that the rows tell, here 60 ms: steps of 240, 340, 390, and 415 ms at 16.
    rows = [
        row(1, 100),
        *(row(n, 100 + 400 * (n - 1) / n - 60, nodes=n, sync_ms=400 * (n - 1) / n - 60) for n in (2, 4, 8)),
    ]
    said = predict_step(fitted(*rows), Placement(16, 16, 1), 32)
    assert said.step_us == pytest.approx(415e3, rel=0.05)
    assert said.exposed_us == pytest.approx(315e3, rel=0.08)
    assert said.bound_by == "communication"


def test_one_device_is_interpolated_between_batches() -> None:
    # t_1: 50 ms at 16, 90 ms at 32: 70 ms at 24; at 64 two times beyond, by the same line, 170 ms; at 8 30 ms.
    rows = [row(1, 50, batch=16), row(1, 90, batch=32), *(row(n, 90, batch=32) for n in (2, 4))]
    fit = fitted(*rows)
    assert [fit.single.at(batch) for batch in (8, 16, 24, 32, 64)] == pytest.approx([30e3, 50e3, 70e3, 90e3, 170e3])
    assert fit.single.at(65) is None
    assert fit.single.at(7) is None


def test_what_cannot_be_known_is_refused_with_its_reason() -> None:
    fit = fitted(row(1, 100), row(2, 104), row(4, 105))
    refusals = {
        "no row between nodes was measured": predict_step(fit, Placement(8, 2, 4), 32),
        "batch 256 is too far": predict_step(fit, Placement(8, 1, 8), 256),
        "16x the largest measured count (4): no number": predict_step(fit, Placement(64, 1, 64), 32),
    }
    for reason, said in refusals.items():
        assert said.step_us is None
        assert said.reason is not None
        assert said.reason.startswith(reason)
    far = refusals["16x the largest measured count (4): no number"]
    assert far.low_us == pytest.approx(100e3)
    assert far.high_us is not None
    assert far.high_us > 105e3


def test_tables_that_tell_nothing_are_refused() -> None:
    assert "no row of one device" in str(fit_table([row(2, 104), row(4, 105)]))
    assert str(fit_table([row(1, 100), row(2, 104, batch=16)])).startswith("no row of several devices at a batch")
    assert "something else changed" in str(fit_table([row(1, 100), row(2, 80), row(4, 81)]))
    assert str(fit_table([row(1, 0.1), row(2, 104)])).startswith("2 devices take 1,040x the time of one")
    assert "2 devices take 1/1,000 of the time of one" in str(fit_table([row(1, 1e5), row(2, 100)]))


def test_one_wild_row_refuses_no_table() -> None:
    # Of three repeats on two devices one is faster than one device; their median, 102 ms, is not.
    # Of three batches on two devices two lie 6% low, among rows that differ by as much: noise, too.
    batches = [(0.94, 1.02, 0.94), (1.08, 0.97, 1.01)]
    noisy = [
        row(n, 100 * one, batch=b)
        for n, of in zip((2, 4), batches, strict=True)
        for b, one in zip((8, 16, 32), of, strict=True)
    ]
    assert isinstance(fit_table([*(row(1, 100, batch=b) for b in (8, 16, 32)), *noisy]), TableFit)
    rows = [row(1, 100), row(2, 85), row(2, 102), row(2, 107), row(4, 104)]
    assert isinstance(fit_table(rows), TableFit)
    assert isinstance(fit_table([row(1, 100), row(2, 96), row(4, 101)]), TableFit)  # noise of 4%
    assert "2 devices take 0.85x" in str(fit_table([rows[0], rows[1], rows[4]]))


def test_one_row_of_several_devices_is_carried_on_with_an_assumed_band() -> None:
    said = predict_step(fitted(row(1, 100), row(4, 130)), Placement(8, 1, 8), 32)
    # 130 ms if nothing changes, 135 on a ring's line through one device's 100 ms, 145 on a line in log N.
    assert said.step_us == pytest.approx(135e3, rel=0.04)
    assert said.high_us is not None
    assert said.high_us > 150e3
    assert said.rests_on is not None
    assert "band assumed in part" in said.rests_on


def test_steps_that_keep_growing_are_predicted_to_grow() -> None:
    # Overhead of 10 ms a doubling: 120 ms at 4, 150 at 32, 170 at 128. The ring's line and the nearest count saturate.
    rows = [row(1, 100), *(row(2**n, 100 + 10 * n) for n in range(1, 6))]
    said = predict_step(fitted(*rows), Placement(128, 1, 128), 32)
    assert said.step_us == pytest.approx(170e3, rel=0.05)
    assert said.low_us is not None
    assert said.high_us is not None
    assert said.low_us < 170e3 < said.high_us


def test_an_overhead_that_grows_as_the_devices_do_is_predicted_to_go_on() -> None:
    # 10 ms for every further device: 110, 120, 130, 150, 170 ms at 2, 3, 4, 6, 8 devices, and 250 at 16, 410 at 32.
    fit = fitted(row(1, 100), *(row(n, 100 + 10 * (n - 1)) for n in (2, 3, 4, 6, 8)))
    growth = fit.fitted.growths["within a node"]
    assert growth.steep
    assert 0.7 < growth.slope <= 1.0
    for ranks, truth in ((16, 250e3), (32, 410e3)):
        said = predict_step(fit, Placement(ranks, 1, ranks), 32)
        assert said.step_us == pytest.approx(truth, rel=0.2)
        assert said.low_us is not None
        assert said.high_us is not None
        assert said.low_us < truth < said.high_us
    assert (
        not fitted(row(1, 100), *(row(n, 100 + 40 * (n - 1) / n) for n in (2, 3, 4, 6, 8)))
        .fitted.growths["within a node"]
        .steep
    )


def test_one_count_leaves_every_growth_likely() -> None:
    # 20 ms at 4 devices, log(N - 1) = log 3. Nothing tells the slope but the prior, 0.3 +- 0.35: at 13 devices, 4 times the hops,
    # the overhead is 20 x 4^0.3 = 30.3 ms, and at most 20 x 4^(0.3 + 1.645 x 0.35) = 67.3 ms.
    growth = growth_of([row(4, 120)], lambda _: 100e3)
    assert growth.step_us(100e3, 32, 13) == pytest.approx(130.3e3, rel=1e-3)
    assert growth.steepest_us(100e3, 32, 13) == pytest.approx(167.3e3, rel=1e-3)
    assert not growth.steep
    assert growth.step_us(100e3, 64, 13) is None  # a batch that was not measured


def test_forecasts_that_disagree_widen_the_band() -> None:
    # Two of equal weight, 100 and 121 ms: their geometric mean is 110, each is log 1.1 off.
    trust = Trust({"nearest": 1.0, "ring": 1.0})
    said = {"nearest": 100e3, "ring": 121e3}
    assert combined_us(said, trust) == pytest.approx(110e3)
    assert disagreement(said, trust) == pytest.approx(math.log(1.1))
    narrow, wide = Bands(NONE, NONE).at(8).half_width(np.zeros(2), np.ones(2), np.array([0.0, 0.1]))
    assert wide == pytest.approx(math.hypot(narrow, 0.1))


def test_rows_of_one_share_tell_a_band_for_other_shares() -> None:
    # Errors of 5% where 4% of the step are exposed: which of the two parts of the band they are nobody knows, so without any
    # exposed communication the band is no point.
    errors = np.random.default_rng(2).normal(0, 0.05, 30)
    band = Bands(Errors(errors, np.full(30, 0.04), np.full(30, 8.0), np.ones(30), np.zeros(30)), NONE).at(8)
    none, known = band.half_width(np.array([0.0, 0.04]), np.ones(2), np.zeros(2))
    assert 0.05 < none <= known < 0.12  # truth: 1.645 x 5% = 8.2%


def test_errors_of_counts_far_from_the_one_asked_for_tell_nothing_of_it() -> None:
    # Twelve rows at 2 devices err by 20%, twelve at 8 by 2%.
    ranks = np.repeat([2.0, 8.0], 12)
    band = Bands(Errors(np.repeat([0.2, 0.02], 12), np.zeros(24), ranks, np.ones(24), np.zeros(24)), NONE)
    assert band.at(2).steady == pytest.approx(0.2, rel=1e-3)
    assert band.at(8).steady == band.at(64).steady == pytest.approx(0.02, rel=1e-3)


def test_distance_counts_devices_over_the_same_link() -> None:
    # Eight devices on one node tell little of nodes: between those two devices were measured, so 32 are 16 times as many.
    rows = [row(1, 100), row(2, 101), row(4, 102), row(8, 103), row(2, 150, nodes=2)]
    said = predict_step(fitted(*rows), Placement(32, 4, 8), 32)
    assert said.step_us is None
    assert str(said.reason).startswith("16x the largest measured count (2)")


def test_one_device_is_what_was_measured_and_ddp_on_it_is_more() -> None:
    fit = fitted(row(1, 100), row(2, 106), row(4, 106))
    assert predict_step(fit, Placement(1, 1, 1), 32).step_us == 100e3
    wrapped = predict_step(fit, Placement(1, 1, 1), 32, single=False)
    assert wrapped.step_us is not None
    assert 100e3 < wrapped.step_us < 107e3


def test_a_batch_curve_of_one_batch_refuses_another() -> None:
    said = predict_step(fitted(row(1, 100), row(2, 104), row(4, 105)), Placement(4, 1, 4), 33)
    assert said.reason == "batch 33 is too far from what one device was measured at (32)"


def test_bands_widen_with_the_distance_in_devices() -> None:
    band = Bands(NONE, NONE).at(8)
    assert band.rows == 0  # no row tells the band: it is assumed
    widths = band.half_width(np.zeros(4), np.array([1.0, 2.0, 4.0, 8.0]), np.zeros(4))
    # 1.645 x 6% = 9.9% and beside it, squared and added, 0, 6, 12 and 25%.
    assert widths == pytest.approx([math.hypot(0.0987, floor) for floor in (0.0, 0.06, 0.12, 0.25)], rel=1e-6)


def test_few_rows_correct_the_size_of_an_assumed_band() -> None:
    # Four rows without error beside four that are assumed: half of the variance. Four that err by 12%, twice what is assumed:
    # (4 + 4 x 4) / 8 = 2.5 times it.
    for error, times in ((0.0, 0.5), (0.12, 2.5)):
        band = Bands(Errors(np.full(4, error), np.zeros(4), np.full(4, 4.0), np.ones(4), np.zeros(4)), NONE).at(4)
        assert band.steady == pytest.approx(1.645 * 0.06 * math.sqrt(times), rel=1e-3)
        assert band.rows == 0


def test_what_larger_counts_were_wrong_by_widens_the_band_of_distance() -> None:
    # One count, twice the largest shown, was 20% off where 1.645 x 6% is explained: (0.2^2 - 0.06^2) x 1.645^2 = 0.0985 is
    # beyond, beside the assumed 0.06^2: the distance counts sqrt((0.0985 + 0.0036) / (2 x 0.0036)) = 3.77 times.
    forward = Errors(np.array([-0.2]), np.zeros(1), np.array([8.0]), np.array([2.0]), np.zeros(1))
    assert Bands(NONE, forward).growth == pytest.approx(3.77, rel=0.01)
    exact = Errors(np.zeros(1), np.zeros(1), np.array([8.0]), np.array([2.0]), np.zeros(1))
    assert Bands(NONE, exact).growth == pytest.approx(math.sqrt(0.5))


def test_a_band_holds_nine_of_ten_errors() -> None:
    generator = np.random.default_rng(1)
    shares = generator.uniform(0, 0.6, 4000)
    errors = generator.normal(0, np.hypot(0.03, 0.1 * shares))
    known, held = slice(0, 2000), slice(2000, None)
    band = Bands(Errors(errors[known], shares[known], np.full(2000, 8.0), np.ones(2000), np.zeros(2000)), NONE).at(8)
    inside = np.abs(errors[held]) <= band.half_width(shares[held], np.ones(2000), np.zeros(2000))
    assert 0.87 < inside.mean() < 0.93
    wide, narrow = band.half_width(np.array([0.6, 0.0]), np.ones(2), np.zeros(2))
    assert 1.5 < wide / narrow < 3.5  # truth: hypot(3, 6) / 3 = 2.2


def test_the_slowest_of_several() -> None:
    # Expected maxima of 2 and 8 standard normal numbers: 0.564 and 1.424 (Harter, Biometrika 48, 1961); Blom's is near.
    assert expected_maximum(np.array([1.0, 2.0, 8.0])) == pytest.approx([0.0, 0.564, 1.424], abs=0.03)


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_a_public_series_is_predicted_beyond_the_devices_it_was_fitted_on(name: str) -> None:
    rows = read_step_table(SERIES / f"ddp_t4_{name}.csv")
    fit = fitted(*(one for one in rows if one.placement.ranks <= 8))
    held = [one for one in rows if 9 <= one.placement.ranks <= 16]
    result = score(fit, [predict_step(fit, one.placement, one.batch_size) for one in held], held)
    assert result.rows - result.declined == len(held)
    assert len(held) > 500
    assert result.step_error is not None
    assert result.step_error <= 0.05
    assert result.exposed_error is not None
    assert result.exposed_error <= 0.25
    assert result.inside is not None
    assert 0.85 <= result.inside <= 0.97
    assert result.half_width is not None
    assert result.half_width <= 0.13
    assert result.skill is not None
    assert result.skill > 0.5


def test_the_v100_rows_are_within_two_percent_or_refused() -> None:
    rows = read_step_table(SERIES / "ddp_v100_pytorch_benchmark.csv")
    for model in ("resnet50", "resnet101"):
        own = [one for one in rows if ("model", model) in one.identity]
        fit = fitted(*(one for one in own if one.placement.ranks <= 4))
        eight, sixteen = (next(one for one in own if one.placement.ranks == count) for count in (8, 16))
        said = predict_step(fit, eight.placement, 32)
        assert said.step_us == pytest.approx(eight.step_us, rel=0.02)
        alone = fit.single.at(32)
        assert alone is not None
        assert said.step_us is not None
        assert abs(said.step_us - eight.step_us) <= 0.35 * (eight.step_us - alone)
        assert predict_step(fit, sixteen.placement, 32).reason == (
            "no row between nodes was measured: what that link costs is not known"
        )
