"""A row of the comparison: values with their intervals and errors in other columns."""

import pytest

from dpscope.analysis.cells.columns import columns
from dpscope.analysis.cells.view import INTERVAL, RANK_RANGE, VALUE_RANGE
from dpscope.analysis.stats.samples import Interval
from tests.helpers.made_rows import made_row, with_values


def test_no_column_is_the_end_of_two_kinds_of_bounds() -> None:
    names = {column.name for column in columns()}
    kinds = (INTERVAL, RANK_RANGE, VALUE_RANGE)
    ends = [
        {name for column in names for name in kind.of(column) if name in names} for kind in kinds
    ]
    assert [len(ends_of_kind) % 2 for ends_of_kind in ends] == [0, 0, 0]
    assert len(set.union(*ends)) == sum(map(len, ends))


def test_an_interval_is_read_whole_or_not_at_all() -> None:
    row = made_row(
        "ddp-d2-b8",
        step_low_us=2.0,
        step_high_us=5.0,
        exposed_rank_min_us=1.0,
        exposed_rank_max_us=4.0,
    )
    assert row.interval("step_us") == Interval(2.0, 5.0)
    assert Interval(2.0, 5.0).half_width(3.0) == 2.0
    assert with_values(row, step_high_us=None).interval("step_us") is None
    assert row.interval("exposed_us") is None  # ranks are no samples of it


def test_a_row_has_the_numbers_of_columns_as_attributes_and_no_others() -> None:
    row = made_row("ddp-d2-b8", step_us=2.0, ring_source="calibration", counter_buckets_equal=True)
    assert (row.step_us, row.exposed_us, row.devices) == (2.0, None, 2)
    assert (row.text("ring_source"), row.value("counter_buckets_equal")) == ("calibration", True)
    assert (row.number("ring_source"), row.text("step_us")) == (None, None)
    with pytest.raises(AttributeError, match="stepp_us"):
        _ = row.stepp_us
    with pytest.raises(AttributeError, match="ring_source"):  # a text, which would pass as a number
        _ = row.ring_source
