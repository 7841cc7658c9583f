"""How columns are declared and computed: once, in the order in which they ask each other, with the
reason of what is missing.
"""

from collections.abc import Iterator

import pytest

from dpscope.analysis.cells.columns import GROUPS, columns
from dpscope.analysis.cells.row import row_of
from dpscope.analysis.cells.view import REGISTERED, CellView, Group, if_known, once, quotient
from dpscope.analysis.stats.missing import Missing, known
from dpscope.profiling.records.run import Cell
from tests.helpers.run_cells import timed_cell

VIEW_OF = Cell(strategy="ddp", devices=2, batch_size=8)


@pytest.fixture
def own() -> Iterator[Group]:
    """A group of a test's own columns, which are forgotten after it."""
    before = dict(REGISTERED)
    yield Group("own", "Own")
    REGISTERED.clear()
    REGISTERED.update(before)


def view() -> CellView:
    return CellView(timed_cell(VIEW_OF, 1000.0, 1000.0))


def test_a_column_asks_others_whatever_the_order_and_each_is_computed_once(own: Group) -> None:
    calls = []

    @own.column("rate", "rate", "Two steps' samples per second")
    def doubled_per_s(cell: CellView) -> float:
        return 2 * cell.counted_per_s

    @own.column("counted", "rate", "Samples per second")
    def counted_per_s(cell: CellView) -> float:
        calls.append(cell)
        return cell.samples_per_s

    cell = view()
    # 2 devices x 8 samples in 1,000 us: 16,000 samples/s
    assert (doubled_per_s(cell), cell.counted_per_s, cell.doubled_per_s) == (
        32_000.0,
        16_000.0,
        32_000.0,
    )
    assert calls == [cell]
    assert counted_per_s(view()) == 16_000.0
    assert len(calls) == 2


def test_what_is_missing_is_asked_once_and_its_reason_is_that_of_all_columns_that_need_it(
    own: Group,
) -> None:
    calls = []

    @own.column(
        "meter", "count", "What a meter showed", interval=lambda cell, value: (value - 1, value + 1)
    )
    def meter_watts(cell: CellView) -> float:
        calls.append(cell)
        raise Missing("no meter is attached")

    @own.column("energy", "count", "Energy of a step")
    def step_joules(cell: CellView) -> float:
        return cell.meter_watts * cell.step_us / 1e6

    cell = view()
    for column in own.columns:
        with pytest.raises(Missing, match="no meter is attached"):
            column.compute(cell)
    assert [column.name for column in own.columns] == [
        "meter_watts",
        "meter_watts_low",
        "meter_watts_high",
        "step_joules",
    ]
    assert len(calls) == 1
    assert if_known(step_joules, cell) is None


def test_columns_that_ask_each_other_in_a_circle_are_an_error(own: Group) -> None:
    @own.column("first", "count", "Asks the second")
    def first_count(cell: CellView) -> float:
        return cell.second_count

    @own.column("second", "count", "Asks the first")
    def second_count(cell: CellView) -> float:
        return cell.first_count

    for column in (first_count, second_count, first_count):
        with pytest.raises(
            RecursionError,
            match=r"in a circle: (first_count -> second|second_count -> first)_count",
        ):
            column(view())


def test_what_a_group_and_a_column_need_is_asked_before_it(own: Group) -> None:
    def never(cell: CellView) -> None:
        raise Missing("not here")

    @own.column("value", "count", "Needs what is not", needs=never)
    def needy_count(cell: CellView) -> float:
        raise AssertionError

    with pytest.raises(Missing, match="not here"):
        needy_count(view())
    closed = Group("closed", "Closed", needs=never)

    @closed.column("value", "count", "Of a group that needs what is not")
    def closed_count(cell: CellView) -> float:
        raise AssertionError

    with pytest.raises(Missing, match="not here"):
        closed_count(view())


def test_a_number_that_is_not_finite_is_missing(own: Group) -> None:
    @own.column("nothing", "count", "Not a number")
    def nothing_count(cell: CellView) -> float:
        return float("nan")

    with pytest.raises(Missing, match="not measured"):
        nothing_count(view())
    with pytest.raises(Missing, match="why"):
        known(float("inf"), "why")
    assert known(0.0, "why") == 0.0
    assert quotient(1.0, 4.0, "why") == 0.25
    for divisor in (0.0, -1.0):
        with pytest.raises(Missing, match="why"):
            quotient(1.0, divisor, "why")


def test_what_several_columns_share_is_computed_once_for_each_cell() -> None:
    calls = []

    @once
    def shared(cell: CellView) -> int:
        calls.append(cell)
        return len(calls)

    one, other = view(), view()
    assert [shared(one), shared(one), shared(other), shared(one)] == [1, 1, 2, 1]


def test_an_unknown_column_is_an_error() -> None:
    with pytest.raises(AttributeError, match="stepp_us"):
        _ = view().stepp_us


def test_two_columns_of_one_name_are_refused(own: Group) -> None:
    with pytest.raises(ValueError, match="there is a column step_us"):

        @own.column("again", "time", "The step")
        def step_us(cell: CellView) -> float:
            return 0.0


def test_every_value_of_a_row_is_known_or_has_its_reason() -> None:
    for cell in (
        VIEW_OF,
        Cell(strategy="single", devices=1, batch_size=8),
        Cell(strategy="dp-host", devices=2, batch_size=8),
    ):
        row = row_of(CellView(timed_cell(cell, 1000.0, 1010.0)))
        assert set(row.values) | set(row.reasons) == {column.name for column in columns()}
        assert not set(row.values) & set(row.reasons)
        assert all(row.reasons.values())


def test_every_group_declares_its_columns_in_one_place() -> None:
    """Else the order of columns would depend on which module was imported first."""
    for group in (one for one in GROUPS if one.columns):
        assert (
            len(
                {
                    column.compute.__module__
                    for column in group.columns
                    if column.name == column.compute.__name__
                }
            )
            == 1
        )
