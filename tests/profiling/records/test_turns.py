"""The orders in which the cells of a run are measured: each cell has the same mean place."""

from itertools import pairwise

import pytest

from dpscope.profiling.records.turns import Order, balanced_orders


def sums(orders: tuple[Order, ...], cells: int) -> list[int]:
    return [sum(order.index(cell) for order in orders) for cell in range(cells)]


@pytest.mark.parametrize("turns", [2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("cells", range(1, 9))
def test_every_cell_has_the_same_mean_place(cells: int, turns: int) -> None:
    orders = balanced_orders(cells, turns, seed=7)
    assert len(orders) == turns
    assert all(sorted(order) == list(range(cells)) for order in orders)
    assert orders[0] == tuple(range(cells))  # the plan's: small batches first
    found = sums(orders, cells)
    assert max(found) - min(found) <= (turns % 2 == 1 and cells % 2 == 0)


def test_no_two_turns_in_a_row_have_one_order() -> None:
    assert all(one != other for one, other in pairwise(balanced_orders(3, 3, seed=0)))


def test_more_turns_continue_those_that_were_measured() -> None:
    begun = balanced_orders(5, 3, seed=1)
    longer = balanced_orders(5, 5, seed=1, begun=begun)
    assert longer[:3] == begun
    assert len(set(sums(longer, 5))) == 1
    assert balanced_orders(5, 2, seed=1, begun=begun) == begun  # what was measured stays


def test_the_seed_chooses_the_orders() -> None:
    assert balanced_orders(6, 4, seed=1) == balanced_orders(6, 4, seed=1)
    assert len({balanced_orders(6, 4, seed) for seed in range(10)}) > 5
