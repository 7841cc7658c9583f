"""Predictions from tables: made ones with values by hand, and public series with their truths held back."""

import math

import numpy as np
import pytest

from dpscope.analysis.what_if.bands import band_of
from dpscope.analysis.what_if.from_table import TableFit, fit_table, predict_step
from dpscope.analysis.what_if.score import score
from dpscope.analysis.what_if.step_model import expected_maximum
from dpscope.analysis.what_if.step_table import MeasuredStep, Placement, read_step_table
from tests.helpers.paths import DATA

SERIES = DATA / "scaling"


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
    assert str(fit_table([row(1, 100), row(2, 104)])).startswith("1 row on several devices")
    assert "something else changed" in str(fit_table([row(1, 100), row(2, 80), row(4, 81)]))


def test_a_batch_curve_of_one_batch_refuses_another() -> None:
    said = predict_step(fitted(row(1, 100), row(2, 104), row(4, 105)), Placement(4, 1, 4), 33)
    assert said.reason == "batch 33 is too far from what one device was measured at (32)"


def test_bands_widen_with_the_distance_in_devices() -> None:
    band = fitted(row(1, 100), row(2, 104), row(4, 104), row(8, 104)).band
    assert band.rows == 0  # three left-out rows tell no band: it is assumed
    shares = np.zeros(4)
    widths = band.half_width(shares, np.array([1.0, 2.0, 4.0, 8.0]))
    # 1.645 x 5% = 8.2% and beside it, squared and added, 0, 6, 12 and 25%.
    assert widths == pytest.approx([math.hypot(0.08225, floor) for floor in (0.0, 0.06, 0.12, 0.25)], rel=1e-6)


def test_a_band_holds_nine_of_ten_errors() -> None:
    generator = np.random.default_rng(1)
    shares = generator.uniform(0, 0.6, 4000)
    errors = generator.normal(0, np.hypot(0.03, 0.1 * shares))
    known, held = slice(0, 2000), slice(2000, None)
    band = band_of(errors[known], shares[known], np.full(2000, 8.0))
    inside = np.abs(errors[held]) <= band.half_width(shares[held], np.ones(2000))
    assert 0.87 < inside.mean() < 0.93
    wide, narrow = band.half_width(np.array([0.6, 0.0]), np.ones(2))
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
