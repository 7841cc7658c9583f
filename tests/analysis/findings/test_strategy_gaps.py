"""Where a gap between DP and DDP comes from: one rule for the sentence and for the hatching of the figure."""

import pytest

from dpscope.analysis.cells.comparison import StrategyGap
from dpscope.analysis.figures.waterfall import _title
from dpscope.analysis.findings.strategy_gaps import gap_finding
from dpscope.analysis.stats.samples import Estimate


def gap(tracer_us: float, exposed_us: float = 60.0) -> StrategyGap:
    """A gap of 100 us of which the tracer's part is this; the rest is exposed communication and idle."""
    rest = 100.0 - exposed_us - tracer_us
    ratio = Estimate(1.5, 1.4, 1.6, 30)
    return StrategyGap("dp-d2-b8", "ddp-d2-b8", 2, 8, "DP", ratio, 100.0, exposed_us, 0.0, 0.0, rest, tracer_us)


@pytest.mark.parametrize(
    ("tracer_us", "explained"),
    [(0.0, True), (25.0, True), (-25.0, True), (25.1, False), (-26.0, False), (80.0, False)],
)
def test_sentence_and_hatching_follow_one_rule(tracer_us: float, explained: bool) -> None:
    """A quarter of the gap is the limit: what the sentence does not explain is hatched, and nothing else is."""
    one = gap(tracer_us)
    assert one.explained is explained
    assert ("Tracing changed the timing too much" in gap_finding(one).next_step) is not explained
    assert ("hatched" in _title(one)) is not explained


def test_a_part_smaller_than_the_tracers_explains_nothing() -> None:
    """Exposed and idle are 9 us each of a gap of 99: the tracer's 10 are less than a quarter, and more than either."""
    small = StrategyGap(
        "dp-d2-b8", "ddp-d2-b8", 2, 8, "DP", Estimate(1.5, 1.4, 1.6, 30), 99.0, 9.0, 0.0, 0.0, 9.0, 10.0
    )
    assert small.tracer_us is not None
    assert small.tracer_us < 0.25 * 99.0
    assert not small.explained
    assert small.largest_part == "exposed"
