"""Drifts of the machine over places in a turn."""

import numpy as np
import pytest

from dpscope.analysis.stats.turns import clear_drift


@pytest.mark.parametrize(("slope", "is_clear"), [(1.2, False), (1.4, True)])
def test_a_drift_is_clear_by_students_t_of_its_degrees_of_freedom(
    slope: float, is_clear: bool
) -> None:
    """Eight logarithms, as far from a line as its slope is 1: t is the slope times the root of 7.
    With 7 degrees of freedom 99% lie within 3.50: 3.17 is not clear, 3.70 is.
    """
    places = np.array([1.0, -1.0] * 4)
    noise = np.array([1.0, 1.0, -1.0, -1.0] * 2)
    found = clear_drift(slope * places + noise, places, freedom=8)
    assert (found is not None) is is_clear
