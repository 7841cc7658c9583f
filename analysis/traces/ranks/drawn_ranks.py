"""Which ranks' steps are drawn where there are more than a page can show: the ends, the middle, and who is late or waits."""

from collections.abc import Sequence

import numpy as np

from dpscope.analysis.traces.reading.table import Table

MOST_TO_DRAW = 32  # ranks: up to so many all are at hand, of which a page draws the first
_CHOSEN = 8
_LATE = 3  # that most waiting is for


def drawn_ranks(ranks: Sequence[int | None], steps: Table, caused: Table) -> list[int]:
    """Indices into `ranks`, in order: all, or of many the first, the last, the latest, who waits most and least, the middle.

    `steps` are those of `with_waits`, `caused` that of `waits_by_pair`. What is left of _CHOSEN is spread over all ranks.
    """
    if len(ranks) <= MOST_TO_DRAW:
        return list(range(len(ranks)))
    late, own = _by_wait(caused, "late_rank"), _by_wait(steps, "rank")[::-1]
    told = [ranks[0], *late[:_LATE]]
    if len(own):
        told += [own[-1], own[len(own) // 2], own[0]]
    place = {rank: index for index, rank in enumerate(ranks)}
    wanted = [place[rank] for rank in told if rank in place]
    spread = np.linspace(len(ranks) - 1, 0, _CHOSEN).astype(int).tolist()
    return sorted(list(dict.fromkeys([*wanted, *spread]))[:_CHOSEN])


def _by_wait(table: Table, rank: str) -> list[int]:
    """Known ranks by the mean of `wait_us` over their rows, the largest first."""
    known = table.take(table.known("wait_us") & table.known(rank))
    ranks = known.group(rank, in_order=True)
    order = np.argsort(-ranks.means(known["wait_us"]), kind="stable")
    found: list[int] = known[rank][ranks.first[order]].tolist()
    return found
