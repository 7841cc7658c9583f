"""Scaling laws against values worked out by hand (in the comments)."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpscope.analysis.stats.scaling_laws import (
    Scaling,
    amdahl_speedup,
    fit_scaling,
    gustafson_speedup,
    karp_flatt,
    predicted_speedup,
    speedup_draws,
    usl_speedup,
)
from tests.helpers.known import known


def test_karp_flatt() -> None:
    # S = 2 on 4 devices: (1/2 - 1/4) / (1 - 1/4) = 0.25 / 0.75 = 1/3; ideal; no gain: all serial;
    # above N.
    assert [karp_flatt(speedup, 4) for speedup in (2, 4, 1)] == pytest.approx([1 / 3, 0, 1])
    assert karp_flatt(5, 4) < 0


def test_amdahl_gustafson_usl() -> None:
    # s = 0.2, N = 4: 1/(0.2 + 0.8/4) = 1/0.4 = 2.5, and 4 - 0.2 x 3 = 3.4.
    assert (amdahl_speedup(0.2, 4), gustafson_speedup(0.2, 4)) == pytest.approx((2.5, 3.4))
    # sigma = 0.1, kappa = 0.05, N = 4: 4/(1 + 0.3 + 0.05 x 12) = 4/1.9. Without coherency the law
    # is Amdahl's.
    assert usl_speedup(0.1, 0.05, 4) == pytest.approx(4 / 1.9)
    assert usl_speedup(0.2, 0, 4) == pytest.approx(amdahl_speedup(0.2, 4))


@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_one_point_gives_karp_flatt_and_predicts_nothing(scaling: Scaling) -> None:
    fit = known(fit_scaling({1: 1.0, 4: 2.0}, scaling))
    assert (fit.law, fit.parameters["serial_fraction"].count) == ("karp_flatt", 1)
    assert fit.parameters["serial_fraction"].value == pytest.approx(1 / 3)
    prediction = predicted_speedup(fit, 8)
    assert prediction.speedup.value is None
    assert "another count" in prediction.note
    assert predicted_speedup(fit, 4).speedup.value == pytest.approx(2.0)
    assert fit_scaling({}, scaling) is fit_scaling({1: 1.0}, scaling) is None


@pytest.mark.parametrize(
    ("scaling", "law", "speedup"),
    [("strong", "amdahl", amdahl_speedup), ("weak", "gustafson", gustafson_speedup)],
)
def test_two_points_fit_amdahl_or_gustafson(
    scaling: Scaling, law: str, speedup: Callable[[float, int], float]
) -> None:
    fit = known(fit_scaling({count: speedup(0.2, count) for count in (2, 4)}, scaling))
    assert fit.law == law
    assert fit.parameters["serial_fraction"].value == pytest.approx(0.2)
    assert fit.worst_relative_error == pytest.approx(0, abs=1e-12)


def test_two_points_by_hand() -> None:
    # S = 1.6 on 2 and 2.5 on 4. Weights S/N = 0.8, 0.625; columns (S/N)(N-1) = 0.8, 1.875; right
    # sides 1 - S/N = 0.2, 0.375. s = (0.8 x 0.2 + 1.875 x 0.375) / (0.64 + 3.515625) = 0.863125 /
    # 4.155625 = 0.2077005...
    fit = known(fit_scaling({2: 1.6, 4: 2.5}, "strong"))
    assert fit.parameters["serial_fraction"].value == pytest.approx(0.863125 / 4.155625)


def test_three_points_fit_usl() -> None:
    fit = known(fit_scaling({n: usl_speedup(0.05, 0.01, n) for n in (1, 2, 4, 8)}, "strong"))
    assert fit.law == "usl"
    assert fit.parameters["contention"].value == pytest.approx(0.05)
    assert fit.parameters["coherency"].value == pytest.approx(0.01)
    assert fit.note == ""
    assert predicted_speedup(fit, 16).speedup.value == pytest.approx(usl_speedup(0.05, 0.01, 16))


def test_laws_are_clamped_where_they_describe_nothing() -> None:
    ideal_and_better = known(fit_scaling({2: 2.1, 4: 4.3, 8: 8.8}, "strong"))
    assert [one.value for one in ideal_and_better.parameters.values()] == [0, 0]
    assert ideal_and_better.note == "clamped at 0: contention, coherency"
    assert predicted_speedup(ideal_and_better, 8).speedup.value == 8
    slower = known(fit_scaling({2: 0.4, 4: 0.3}, "strong"))
    assert slower.parameters["serial_fraction"].value is None
    assert slower.worst_relative_error is None
    prediction = predicted_speedup(slower, 8)
    assert prediction.speedup.value is None
    assert "slower than one device" in prediction.note


def test_extrapolation_past_twice_the_largest_count_is_noted() -> None:
    fit = known(fit_scaling({2: 1.8, 4: 3.1}, "strong"))
    assert predicted_speedup(fit, 8).note == ""
    far = predicted_speedup(fit, 9)
    assert far.speedup.value is not None
    assert "extrapolated past twice the largest measured count (4)" in far.note


def test_a_laws_interval_holds_the_truth_and_shrinks_with_noise() -> None:
    generator = np.random.default_rng(3)

    def steps(mean_us: float, noise: float) -> list[np.ndarray]:
        return [generator.normal(mean_us, noise * mean_us, 40) for _ in range(3)]

    widths = []
    for noise in (0.001, 0.02):
        single = steps(1000, noise)
        several = {n: steps(1000 / amdahl_speedup(0.1, n), noise) for n in (2, 4)}
        draws = known(speedup_draws(single, several, "strong"))
        medians = {n: float(np.median(draws[n])) for n in draws}
        fit = known(fit_scaling(medians, "strong", draws))
        fraction = fit.parameters["serial_fraction"]
        assert known(fraction.low) - 0.01 <= 0.1 <= known(fraction.high) + 0.01
        prediction = predicted_speedup(fit, 8).speedup
        assert known(prediction.low) <= known(prediction.value) <= known(prediction.high)
        widths.append(known(fraction.high) - known(fraction.low))
    assert 0 < widths[0] < widths[1]


def test_weak_draws_are_scaled_speedups() -> None:
    # Two repeats of constant samples: every draw is 100/125, scaled by N = 4: 3.2.
    draws = known(speedup_draws([np.full(9, 100.0)] * 2, {4: [np.full(9, 125.0)] * 2}, "weak"))
    assert draws[4] == pytest.approx(3.2)
    # one repeat alone
    assert speedup_draws([np.full(9, 100.0)] * 2, {4: [np.full(9, 125.0)]}, "weak") is None


@given(
    st.dictionaries(st.integers(2, 64), st.floats(0.05, 64), min_size=1, max_size=6),
    st.sampled_from(["strong", "weak"]),
)
def test_fits_stay_in_their_limits(speedups: dict[int, float], scaling: Scaling) -> None:
    fit = known(fit_scaling(speedups, scaling))
    expected = {1: {"karp_flatt"}, 2: {"amdahl", "gustafson"}}.get(len(speedups), {"usl"})
    assert fit.law in expected
    values = [one.value for one in fit.parameters.values()]
    if fit.law == "usl":
        assert all(value is not None and value >= 0 for value in values)
    elif fit.law != "karp_flatt":
        (fraction,) = values
        assert bool(fit.note) == (fraction is None)
        assert fraction is None or 0 <= fraction <= 1
    assert fit.largest_devices == max(speedups)


@given(st.floats(0.01, 1), st.integers(2, 64))
def test_karp_flatt_inverts_amdahl(serial: float, devices: int) -> None:
    assert karp_flatt(amdahl_speedup(serial, devices), devices) == pytest.approx(serial)
