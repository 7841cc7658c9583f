"""What is typed, read: a link by its specification or as reached, and what cannot be read."""

import pytest

from dpscope.analysis.what_if.answers.asked import AskedText, scenarios_of
from dpscope.profiling.records.links import REACHED_RATE
from dpscope.profiling.store.errors import DpscopeError


def test_a_rate_that_was_measured_is_no_specification() -> None:
    (asked, scenario), (_, other) = scenarios_of(AskedText(inter="reached 11GB/s,100Gb/s"))
    assert asked == {"inter": "reached 11GB/s"}
    assert scenario.links.inter is not None
    assert (scenario.links.inter.gb_per_s, scenario.links.inter.source) == (11, REACHED_RATE)
    assert other.links.inter is not None
    assert (other.links.inter.gb_per_s, other.links.inter.source == REACHED_RATE) == (12.5, False)
    with pytest.raises(DpscopeError, match="--inter: '11' has no unit"):
        scenarios_of(AskedText(inter="reached 11"))
