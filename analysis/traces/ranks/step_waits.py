"""Per step of a rank: what its matched collectives transferred and waited, and how much of the waiting was exposed.

One pass over all ranks and steps: every (rank, device, step) gets its own stretch of one axis, so that unions and
intersections of thousands of them are one sort and two searches.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd

from dpscope.analysis.traces.steps import intervals

_KEYS = ["rank", "device", "step"]
_SUMS = ["transfer_us", "wait_us", "exposed_wait_us"]

_Codes = npt.NDArray[np.int64]
_Times = npt.NDArray[np.float64]


def step_waits(table: pd.DataFrame, exposed: pd.DataFrame | None = None) -> pd.DataFrame:
    """From `match_ranks`' table, per (rank, device, step): `transfer_us`, `wait_us`, `exposed_wait_us`, microseconds.

    `transfer_us` is the sum of transfer_j. `wait_us` is the length of the union of the waiting parts (a collective's first
    wait_j microseconds): gloo's collectives queue side by side, and a wait shared by several of them is lost once.
    `exposed_wait_us` is the part of that union in which the device did not compute, by `exposed`, the rows of
    `exposed_stretches` of all ranks; NA without them. It is never more than the step's exposed_us.
    """
    known = table[table["wait_us"].notna()]
    code, groups = _codes(known)
    frame = groups.astype("Int64")
    starts = known["start_us"].to_numpy(dtype=float)
    ends = starts + known["wait_us"].to_numpy(dtype=float)
    transfers = np.bincount(code, known["transfer_us"].to_numpy(dtype=float), minlength=len(groups))
    origin = np.full(len(groups), np.inf)
    np.minimum.at(origin, code, starts)
    own = None if exposed is None else _of_groups(exposed, groups)
    if own is not None:
        np.minimum.at(origin, own[0], own[1])
    span = _span(origin, [(code, ends)] + ([] if own is None else [(own[0], own[2])]))
    waiting, waiting_code = _unions(code, starts, ends, origin, span)
    frame["transfer_us"] = transfers
    frame["wait_us"] = np.bincount(waiting_code, waiting[:, 1] - waiting[:, 0], minlength=len(groups))
    frame["exposed_wait_us"] = pd.NA
    if own is not None:
        stretches, _ = _unions(*own, origin, span)
        inside = intervals.length_before(stretches, waiting[:, 1]) - intervals.length_before(stretches, waiting[:, 0])
        frame["exposed_wait_us"] = np.bincount(waiting_code, inside, minlength=len(groups))
    return frame.astype(dict.fromkeys(_SUMS, "Float64"))


def _codes(table: pd.DataFrame) -> tuple[_Codes, pd.DataFrame]:
    """A number for each row's (rank, device, step), and these in the order of their numbers."""
    grouped = table.groupby(_KEYS, dropna=False, sort=True)
    code = np.asarray(grouped.ngroup(), dtype=np.int64)
    groups = table[_KEYS].assign(code=code).drop_duplicates("code").sort_values("code")[_KEYS]
    return code, groups.reset_index(drop=True)


def _of_groups(exposed: pd.DataFrame, groups: pd.DataFrame) -> tuple[_Codes, _Times, _Times]:
    """The stretches of those groups that have matched collectives: their codes, starts and ends."""
    named = groups.assign(code=np.arange(len(groups)))
    joined = exposed.merge(named, on=_KEYS, how="inner")
    return (
        joined["code"].to_numpy(dtype=np.int64),
        joined["start_us"].to_numpy(dtype=float),
        joined["end_us"].to_numpy(dtype=float),
    )


def _span(origin: _Times, ends: list[tuple[_Codes, _Times]]) -> float:
    """The length of axis that every group gets: as much as the longest needs."""
    longest = [float((times - origin[code]).max()) for code, times in ends if len(times)]
    return max(longest, default=0.0) + 1.0


def _unions(
    code: _Codes, starts: _Times, ends: _Times, origin: _Times, span: float
) -> tuple[intervals.Intervals, _Codes]:
    """The union within each group, on the common axis, and the group of each interval."""
    moved = code * span - origin[code] + 0.5  # away from the edges, where rounding could name the neighbour
    union = intervals.union(starts + moved, ends + moved)
    return union, np.floor(union[:, 0] / span).astype(np.int64)
