"""Numbers as text: no negative zero, and decimals for means of counts."""

import pytest

from dpscope.analysis.text.units import Unit, choose_unit, show


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.0, "0.0"), (-0.04, "0.0"), (-0.06, "-0.1"), (0.04, "0.0"), (-10.0, "-10.0")]
)
def test_zero_has_no_sign(value: float, shown: str) -> None:
    assert show(value, Unit("µs", 1.0, 1)) == shown


@pytest.mark.parametrize(("values", "shown"), [([5.0, 7.0], "5"), ([5.0, 5.5], "5.0"), ([None, 3.4], "3.4")])
def test_a_mean_of_counts_has_decimals(values: list[float | None], shown: str) -> None:
    first = next(value for value in values if value is not None)
    assert show(first, choose_unit("count", values)) == shown
