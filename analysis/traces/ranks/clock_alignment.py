"""Where the traces of a job's ranks lie on one time axis: their clocks, set by the ends of
collectives they share.

A collective that synchronises ends on all its ranks at nearly the same moment, however late some of
them came. So the median difference of the ends of matched collectives is the difference of two
ranks' clocks, and what single ends depart from it is the residual. Ranks of one host share its
clock: they are moved only where the ends disagree by more than they scatter, since ranks may also
end in a steady order, and by more than so few of them do by chance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.stats.samples import student_t
from dpscope.analysis.traces.ranks.matching import RankOrigin
from dpscope.analysis.traces.reading.event_table import FloatColumn
from dpscope.analysis.traces.reading.table import Table


@dataclass(frozen=True)
class RankClock:
    """Where one rank lies: its time t is t + `place_us` on the reference rank's axis.

    `moved_us` is the part of it by which its clock was corrected, 0 where it stands as recorded.
    `collectives` counts the ends it shares with ranks placed before it; `residual_us` is the
    median, `worst_us` the largest distance of those ends from theirs, after the correction; None
    without any.
    """

    rank: int
    place_us: float
    moved_us: float = 0.0
    collectives: int = 0
    residual_us: float | None = None
    worst_us: float | None = None


def rank_clocks(collectives: Table, origins: Sequence[RankOrigin]) -> tuple[RankClock, ...]:
    """A clock for each rank, in the order of `origins`, the first of which is the reference.

    `collectives` is `match_tables`' table; only rows with a transfer synchronise. Ranks that share
    none keep their clocks.
    """
    reference = origins[0]
    # as whole numbers: a time since 1970 in nanoseconds does not fit a float
    place_us = np.array([(origin.zero_ns - reference.zero_ns) / 1e3 for origin in origins])
    row_of = {origin.rank: row for row, origin in enumerate(origins)}
    ends = _ends(collectives, row_of, place_us)
    # when each collective ended, by the first rank placed that shares it
    anchor = np.full(ends.shape[1], np.nan)
    clocks: dict[int, RankClock] = {}
    while len(clocks) < len(origins):
        # next the rank that shares most with those placed; of equals the first
        shared = (np.isfinite(ends) & np.isfinite(anchor)).sum(axis=1)
        shared[list(clocks)] = -1
        index = int(shared.argmax())
        origin = origins[index]
        differences = anchor - ends[index]
        differences = differences[np.isfinite(differences)]
        moved_us = float(np.median(differences)) if len(differences) else 0.0
        one_host = origin.host is not None and origin.host == reference.host
        if one_host and not _clocks_differ(differences, moved_us):
            moved_us = 0.0
        clock = RankClock(
            rank=origin.rank,
            place_us=round(float(place_us[index]) + moved_us, 3),  # a trace states nanoseconds
            moved_us=round(moved_us, 3),
            collectives=len(differences),
        )
        if len(differences):
            apart_us = np.abs(differences - moved_us)
            residual_us = round(float(np.median(apart_us)), 3)
            worst_us = round(float(apart_us.max()), 3)
            clock = replace(clock, residual_us=residual_us, worst_us=worst_us)
        clocks[index] = clock
        anchor = np.where(np.isnan(anchor), ends[index] + moved_us, anchor)
    return tuple(clocks[index] for index in range(len(origins)))


def _clocks_differ(differences: FloatColumn, moved_us: float) -> bool:
    """Whether the ends of two ranks of one host are apart by more than they scatter, and than so
    few show by chance (5%).
    """
    count = len(differences)
    if count < 2:
        return False
    by_chance = student_t(count - 1) * float(np.std(differences, ddof=1)) / math.sqrt(count)
    return abs(moved_us) > max(by_chance, float(np.abs(differences - moved_us).max()))


def _ends(collectives: Table, row_of: Mapping[int, int], place_us: FloatColumn) -> FloatColumn:
    """Ends of synchronising collectives, (ranks, collectives), microseconds as recorded; NaN where
    a rank has no part.
    """
    synchronising = collectives.with_known("transfer_us")
    matches = synchronising.group("match")
    ends = np.full((len(row_of), len(matches)), np.nan)
    rows = np.array([row_of[rank] for rank in synchronising["rank"].tolist()], dtype=np.int64)
    end_us = synchronising["start_us"] + synchronising["duration_us"]
    ends[rows, matches.code] = end_us + place_us[rows]
    return ends
