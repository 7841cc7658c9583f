"""Scaling laws against values worked out by hand (in the comments)."""

from collections.abc import Callable

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
