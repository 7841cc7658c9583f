"""A row of the comparison: values with their intervals and errors in other columns."""

from dpscope.analysis.stats.samples import Interval
from tests.helpers.made_rows import made_row, with_values


def test_an_interval_is_read_whole_or_not_at_all() -> None:
    row = made_row("ddp-d2-b8", step_low_us=2.0, step_high_us=5.0, step_count=5)
    assert row.interval("step_us") == Interval(2.0, 5.0)
    assert Interval(2.0, 5.0).half_width(3.0) == 2.0
    assert with_values(row, step_high_us=None).interval("step_us") is None
    assert row.interval("step_count") is None  # a column without one
