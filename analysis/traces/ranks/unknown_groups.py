"""Collectives whose group no trace records: did all ranks take part in one, or several groups in one each?

Kinds, sizes and order agree where groups run the same program side by side. What they do not share is the moment of the
end: a collective that synchronises ends on all its ranks at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn
from dpscope.analysis.traces.steps.event_kind import ROOTED

SMALLEST_DIVISIBLE = 4  # ranks: two or three are one group, if a group has two ranks or more
CLOSE_US = 20.0  # ends on GPUs of one host, in traces that state whole microseconds
CLOSE_SHARE = 0.1  # or of the collective itself


@dataclass(frozen=True)
class RankOrigin:
    """What a rank's trace says of its clock: `zero_ns` is what its host's clock showed at the trace's time 0."""

    rank: int
    zero_ns: int
    host: str | None = None


def of_several_groups(table: pd.DataFrame, match: "pd.Series[int]", origins: Sequence[RankOrigin]) -> BoolColumn:
    """Rows of unknown groups that were taken for one of all ranks and do not end together: marked all or none.

    `match` numbers the collectives found on all their ranks, NA elsewhere. Ranks of one host, and those that name none,
    share a clock; of several hosts, and without `origins`, the distance of their ends has to be steady while durations vary.
    gloo's ranges end when their thread has a core again: their ends tell nothing, and they stay as matched.
    """
    unknown = table["device"].notna() & table["group"].isna() & match.notna()
    unknown &= (table["group_size"] >= SMALLEST_DIVISIBLE).fillna(False)
    if "group_ranks" in table:
        unknown &= table["group_ranks"].isna()
    timed = table[unknown & ~table["kind"].isin(list(ROOTED)) & table["kind"].notna()]
    if timed.empty:
        return np.zeros(len(table), dtype=bool)
    places = pd.DataFrame(
        {
            "rank": timed["rank"],
            "match": match[timed.index],
            "end": (timed["start_us"] + timed["duration_us"]).astype(float),
            "duration": timed["duration_us"].astype(float),
        }
    ).pivot_table(index="match", columns="rank", values=["end", "duration"])
    ends, durations = places["end"].to_numpy(), places["duration"].to_numpy()
    close = np.maximum(CLOSE_US, CLOSE_SHARE * durations.min(axis=1))
    of_rank = {origin.rank: origin for origin in origins}
    clocks = [of_rank.get(rank) for rank in places["end"].columns]
    together = [
        _end_together(
            ends[:, index] - ends[:, 0], durations[:, index] - durations[:, 0], close, clocks[0], clocks[index]
        )
        for index in range(1, len(clocks))
    ]
    return np.asarray(unknown & (not all(together)), dtype=bool)


def _end_together(
    ends_apart: FloatColumn,
    durations_apart: FloatColumn,
    close: FloatColumn,
    first: RankOrigin | None,
    other: RankOrigin | None,
) -> bool:
    """Whether most ends of two ranks' collectives fall together, `close` being how near each must be.

    Where no clock is shared, or a shared one says otherwise and so may be off, ends in a steady distance alone show nothing:
    groups that run the same program side by side have that, too. Steady ends of durations that vary from one collective to the
    next are of one group, in which somebody comes late.
    """
    if first is not None and other is not None and first.host == other.host:
        ends_apart = ends_apart + (other.zero_ns - first.zero_ns) / 1e3
        if _mostly(np.abs(ends_apart) <= close):
            return True
    steady = _mostly(np.abs(ends_apart - np.median(ends_apart)) <= close)
    return steady and _mostly(np.abs(durations_apart - np.median(durations_apart)) > close)


def _mostly(truths: BoolColumn) -> bool:
    return bool(truths.mean() > 0.5)
