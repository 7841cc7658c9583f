"""A row of the comparison: values with their intervals and errors in other columns."""

from dpscope.analysis.cells.columns import INTERVAL, NAMES, RANK_RANGE, VALUE_RANGE
from dpscope.analysis.cells.row import RowBuilder
from dpscope.analysis.stats.samples import UNKNOWN, Interval, Range


def test_no_column_is_the_end_of_two_kinds_of_bounds() -> None:
    kinds = (INTERVAL, RANK_RANGE, VALUE_RANGE)
    ends = [{name for column in NAMES for name in kind.of(column) if name in NAMES} for kind in kinds]
    assert [len(names) % 2 for names in ends] == [0, 0, 0]
    assert len(set.union(*ends)) == sum(map(len, ends))


def test_an_interval_is_read_as_it_was_put_and_only_whole() -> None:
    row = RowBuilder()
    row.put_interval("no interval", "step_us", Interval(2.0, 5.0))
    assert row.row().interval("step_us") == Interval(2.0, 5.0)
    assert Interval(2.0, 5.0).half_width(3.0) == 2.0
    row.put_interval("one repeat", "step_us", UNKNOWN)
    assert row.row().interval("step_us") is None
    assert row.reasons["step_low_us"] == row.reasons["step_high_us"] == "one repeat"
    row.put("", step_low_us=2.0)
    assert row.row().interval("step_us") is None
    row.put_rank_range("not measured", "exposed_us", Range(value=2.0, smallest=1.0, largest=4.0, count=3))
    assert (row.number("exposed_rank_min_us"), row.number("exposed_rank_max_us")) == (1.0, 4.0)
    assert row.row().interval("exposed_us") is None  # ranks are no samples of it
