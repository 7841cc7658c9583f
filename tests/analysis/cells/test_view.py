"""How columns are declared and computed: once, in the order in which they ask each other, with the
reason of what is missing.
"""

from collections.abc import Iterator

import pytest

from dpscope.analysis.cells.columns import columns
from dpscope.analysis.cells.row import row_of
from dpscope.analysis.cells.view import REGISTERED, CellView, Group, quotient
from dpscope.analysis.stats.missing import Missing, known
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.run_cells import timed_cell

VIEW_OF = Cell(strategy="ddp", devices=2, batch_size=8)


@pytest.fixture
def own() -> Iterator[Group]:
    """A group of a test's own columns, which are forgotten after it."""
    before = dict(REGISTERED)
    yield Group("own", "Own")
    REGISTERED.clear()
    REGISTERED.update(before)


@pytest.fixture
def user() -> Iterator[Group]:
    """A group as a user's own columns are in."""
    before = dict(REGISTERED)
    yield Group("user", "User", redefinable=True)
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


def test_a_user_s_column_that_fails_is_named_and_no_longer_declared(user: Group) -> None:
    @user.column("typo", "rate", "Asks for a column that does not exist")
    def typo_per_s(cell: CellView) -> float:
        return cell.sampels_per_s

    message = "your column typo_per_s fails for ddp-d2-b8: .*did you mean samples_per_s"
    with pytest.raises(DpscopeError, match=message):
        typo_per_s(view())
    assert "typo_per_s" not in REGISTERED
    assert user.columns == []

    @user.column("empty", "rate", "Returns nothing")
    def empty_per_s(cell: CellView) -> None:
        return None

    with pytest.raises(Missing, match="the function empty_per_s returned None"):
        empty_per_s(view())
    assert "empty_per_s" in REGISTERED


def test_a_quantity_that_does_not_exist_is_refused(user: Group) -> None:
    with pytest.raises(ValueError, match="there is no quantity 'speed'; choose from text, count"):
        user.column("x", "speed", "Of an unknown kind")  # type: ignore[arg-type]
