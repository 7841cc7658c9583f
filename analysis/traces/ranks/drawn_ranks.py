"""Which ranks' steps are drawn where there are more than a page can show: the ends, the middle, and who is late or waits."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

MOST_TO_DRAW = 32  # ranks: up to so many all are at hand, of which a page draws the first
_CHOSEN = 8
_LATE = 3  # that most waiting is for


def drawn_ranks(ranks: Sequence[int | None], steps: pd.DataFrame, caused: pd.DataFrame) -> list[int]:
    """Indices into `ranks`, in order: all, or of many the first, the last, the latest, who waits most and least, the middle.

    `steps` are those of `with_waits`, `caused` that of `waits_caused`. What is left of _CHOSEN is spread over all ranks.
    """
    if len(ranks) <= MOST_TO_DRAW:
        return list(range(len(ranks)))
    late = caused.groupby("late_rank")["wait_us"].sum().sort_values(ascending=False, kind="stable").index
    own = (
        steps.dropna(subset=["wait_us"])
        .groupby("rank")["wait_us"]
        .mean()
        .astype(float)
        .sort_values(kind="stable")
        .index
    )
    told = [ranks[0], *late[:_LATE]]
    if len(own):
        told += [own[-1], own[len(own) // 2], own[0]]
    place = {rank: index for index, rank in enumerate(ranks)}
    wanted = [place[rank] for rank in told if rank in place]
    spread = np.linspace(len(ranks) - 1, 0, _CHOSEN).astype(int).tolist()
    return sorted(list(dict.fromkeys([*wanted, *spread]))[:_CHOSEN])
