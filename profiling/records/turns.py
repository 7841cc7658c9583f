"""In which order the cells of a run are measured in each turn, that is in the repeats of one
number.
"""

import random
from collections.abc import Sequence

Order = tuple[int, ...]
"""Which cell comes first, second and so on: places among the plan's measured cells."""


def balanced_orders(
    cells: int, turns: int, seed: int, begun: Sequence[Order] = ()
) -> tuple[Order, ...]:
    """Orders for `turns` turns or more that continue those `begun`; later ones are drawn from
    `seed`.

    A machine that becomes slower or faster at a steady rate favours no cell: every cell has the
    same mean place over two turns that are the reverse of each other, or over three (half a place
    apart at most for an even number of cells). Only a single turn has no counterpart. The first
    turn has the plan's order: small batches first, so that larger ones are left out where those run
    out of memory.
    """
    orders = list(begun)
    while len(orders) < turns:
        draw = random.Random(f"{seed} {len(orders)}")
        left = turns - len(orders)
        is_odd = left % 2 == 1 and left > 1
        first, *others = _three(cells) if is_odd else _two(cells)
        named = draw.sample(range(cells), cells) if orders else range(cells)
        block = [first, *draw.sample(others, len(others))]
        orders += [tuple(named[cell] for cell in order) for order in block[:left]]
    return tuple(orders)


def _two(cells: int) -> list[Order]:
    return [tuple(range(cells)), tuple(reversed(range(cells)))]


def _three(cells: int) -> list[Order]:
    """By the places of each cell: in order, half the cells later, and what adds up to the same sum
    for each.
    """
    half = cells // 2
    later = [(cell + half) % cells for cell in range(cells)]
    rest = []
    for cell, place in enumerate(later):
        total = 3 * half
        if cells % 2 == 0:  # then no order has the same sum for all
            total -= 1 if cell < half else 2
        rest.append(total - cell - place)
    return [tuple(range(cells)), _order_of(later), _order_of(rest)]


def _order_of(places: Sequence[int]) -> Order:
    return tuple(sorted(range(len(places)), key=places.__getitem__))
