"""Collectives whose group no trace records: did all ranks take part in one, or several groups in one each?

Kinds, sizes and order agree where groups run the same program side by side. What they do not share is the moment of the
end: a collective that synchronises ends on all its ranks at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Table
from dpscope.analysis.traces.steps.event_kind import ROOTED

SMALLEST_DIVISIBLE = 4  # ranks: two or three are one group, if a group has two ranks or more
CLOSE_US = 20.0  # ends on GPUs of one host, in traces that state whole microseconds
CLOSE_SHARE = 0.1  # or of the transfer
CLOSE_TO_WAITS = 0.001  # or of the longest wait

FloatTable = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RankOrigin:
    """The clock of a rank's trace: `zero_ns` is what its host's clock showed at the trace's time 0."""

    rank: int
    zero_ns: int
    host: str | None = None


def of_several_groups(table: Table, match: IntColumn, origins: Sequence[RankOrigin]) -> BoolColumn:
    """Rows of unknown groups that were taken for one of all ranks and do not end together: marked all or none.

    `match` numbers the collectives found on all their ranks, UNKNOWN elsewhere. Ranks of one host, and those that name none,
    share a clock; of several hosts, and without `origins`, the distance of their ends must be steady while one rank or another
    makes the others wait. All ranks are judged together: two that wait equally long for a third are no evidence against it.
    gloo's ranges end when their thread has a core again: their ends are no evidence, and they stay as matched.
    """
    unknown = table.known("device") & ~table.known("group") & (match != UNKNOWN)
    unknown &= table["group_size"] >= SMALLEST_DIVISIBLE
    if "group_ranks" in table:
        unknown &= ~table.known("group_ranks")
    rows = np.flatnonzero(unknown & ~table.words("kind").isin(*ROOTED) & table.known("kind"))
    if not len(rows):
        return np.zeros(len(table), dtype=bool)
    _, collective = np.unique(match[rows], return_inverse=True)
    ranks, rank = np.unique(table["rank"][rows], return_inverse=True)
    ends, durations = np.full((2, collective.max() + 1, len(ranks)), np.nan)
    durations[collective, rank] = table["duration_us"][rows]
    ends[collective, rank] = table["start_us"][rows] + table["duration_us"][rows]
    of_rank = {origin.rank: origin for origin in origins}
    clocks = [of_rank.get(one) for one in ranks.tolist()]
    return np.asarray(unknown & (not _end_together(ends, durations, clocks)), dtype=bool)


def _end_together(ends: FloatTable, durations: FloatTable, clocks: Sequence[RankOrigin | None]) -> bool:
    """Whether most collectives (rows) end at the same time on all ranks (columns).

    Ends may be apart by CLOSE_US, by CLOSE_SHARE of the transfer, or by CLOSE_TO_WAITS of the longest wait: the later a rank
    arrives, the more the moment shows that the others waited for it. Without a common clock, and where a common one may be off, a
    steady distance of ends is not enough, since groups that run the same program have that, too: then the transfer of ranks
    that share a clock must also vary against that of the others, as it does where one rank makes all of them wait.
    """
    shortest, longest = durations.min(axis=1), durations.max(axis=1)
    close = np.maximum(np.maximum(CLOSE_US, CLOSE_SHARE * shortest), CLOSE_TO_WAITS * (longest - shortest))
    hosts = {None if clock is None else clock.host for clock in clocks}
    known = [clock for clock in clocks if clock is not None]
    if len(known) == len(clocks) and len(hosts) == 1:
        ends = ends + np.array([(clock.zero_ns - known[0].zero_ns) / 1e3 for clock in known])
        if _mostly(np.ptp(ends, axis=1) <= close):
            return True
    steady_ends = ends - np.median(ends - ends[:, :1], axis=0)
    if not _mostly(np.ptp(steady_ends, axis=1) <= close):
        return False
    together = [durations[:, block].min(axis=1) for block in _one_clock(ends, close, clocks)]
    apart = [block - together[0] for block in together[1:]]
    return any(_mostly(np.abs(one - np.median(one)) > close) for one in apart)


def _one_clock(ends: FloatTable, close: FloatColumn, clocks: Sequence[RankOrigin | None]) -> list[list[int]]:
    """Columns of ranks of one host whose ends fall together as recorded; a rank that records no clock stands alone."""
    blocks: list[list[int]] = []
    for column, clock in enumerate(clocks):
        for block in blocks:
            first = clocks[block[0]]
            if clock is not None and first is not None and clock.host == first.host:
                apart_us = ends[:, column] - ends[:, block[0]] + (clock.zero_ns - first.zero_ns) / 1e3
                if _mostly(np.abs(apart_us) <= close):
                    block.append(column)
                    break
        else:
            blocks.append([column])
    return blocks


def _mostly(truths: BoolColumn) -> bool:
    return bool(truths.mean() > 0.5)
