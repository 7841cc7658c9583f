"""Which position a collective without a sequence number has among its group's: the same on every rank.

Ranks whose windows begin at different collectives hold shifted pieces of one series; kinds and sizes tell by how much.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

_UNKNOWN = -1  # agrees with anything
_VARIABLE_SIZE = "all_to_all"  # each rank may send another amount
_APART = 1 << 40  # positions from here on agree with no other rank's

_Codes = npt.NDArray[np.int64]


def order_in_step(table: pd.DataFrame) -> "pd.Series[int]":
    """Position of a collective among its rank's of the same group and step.

    A device runs a group's collectives in order. gloo's run on several threads and may begin out of order, so there the
    position is counted among those of the same kind and size.
    """
    on_device = table["device"].notna()
    kind = table["kind"].where(~on_device)
    size = table["bytes"].where(~on_device)
    keys = table[["rank", "group", "step"]].assign(on_device=on_device, kind=kind, size=size)
    return keys.groupby(list(keys.columns), dropna=False, sort=False).cumcount()


def aligned_order(table: pd.DataFrame) -> "pd.Series[int]":
    """`order_in_step`, shifted where a rank's series of a group and step begins at another collective.

    The shift is the one at which all that two ranks share agrees in kind and size, with as much shared as possible. Where
    none fits, positions stay, and the disagreement shows; where several fit as well, nothing is matched.
    """
    order = order_in_step(table)
    unnumbered = table["device"].notna() & table["sequence"].isna()
    if _are_alike(table[unnumbered].assign(order=order[unnumbered])):
        return order
    for _, own in table[unnumbered].groupby(["group", "step"], dropna=False, sort=False):
        by_rank = [rows for _, rows in own.groupby("rank", dropna=False, sort=True)]
        if len(by_rank) < 2:
            continue
        series = list(_series(own, by_rank))
        reference = max(range(len(series)), key=lambda index: len(series[index][0]))
        for index, rows in enumerate(by_rank):
            shift = 0 if index == reference else _shift(series[reference], series[index])
            if shift is None:
                order.loc[rows.index] += _APART * (index + 1)
            elif shift:
                order.loc[rows.index] += shift
    return order


def _are_alike(ordered: pd.DataFrame) -> bool:
    """Whether every rank shows the same kinds and sizes in the same places, so that nothing is shifted."""
    places = ordered[["group", "step", "order", "kind", "bytes"]]  # a rank has one collective at most in each
    return len(places.drop_duplicates()) * ordered["rank"].nunique(dropna=False) == len(places)


def _series(own: pd.DataFrame, by_rank: list[pd.DataFrame]) -> Iterator[tuple[_Codes, _Codes]]:
    """Kinds and sizes of each rank's collectives in order, as numbers; _UNKNOWN where they do not tell."""
    kinds = {kind: code for code, kind in enumerate(own["kind"].dropna().unique())}
    for rows in by_rank:
        kind = np.array([kinds.get(name, _UNKNOWN) for name in rows["kind"].fillna("")], dtype=np.int64)
        size = rows["bytes"].fillna(_UNKNOWN).to_numpy(dtype=np.int64)
        yield kind, np.where(kind == kinds.get(_VARIABLE_SIZE, _APART), _UNKNOWN, size)


def _shift(reference: tuple[_Codes, _Codes], own: tuple[_Codes, _Codes]) -> int | None:
    """By how much `own` is behind the reference's beginning; 0 where none fits, None where several fit as well."""
    length, count = len(reference[0]), len(own[0])
    if length == count and _agree(reference, own, 0):
        return 0
    fitting: dict[int, list[int]] = {}
    best = max(1, min(length, count) // 2)  # less in common is no evidence
    for shift in range(-(count - 1), length):
        shared = min(length, shift + count) - max(0, shift)
        if shared >= best and _agree(reference, own, shift):
            best = shared
            fitting.setdefault(shared, []).append(shift)
    found = fitting.get(best, [])
    return 0 if not found else found[0] if len(found) == 1 else None


def _agree(reference: tuple[_Codes, _Codes], own: tuple[_Codes, _Codes], shift: int) -> bool:
    """Whether all that both hold agrees when `own` begins `shift` behind the reference."""
    start, stop = max(0, shift), min(len(reference[0]), shift + len(own[0]))
    for theirs, ours in zip(reference, own, strict=True):
        one, other = theirs[start:stop], ours[start - shift : stop - shift]
        if not ((one == other) | (one == _UNKNOWN) | (other == _UNKNOWN)).all():
            return False
    return True
