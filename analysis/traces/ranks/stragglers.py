"""Which rank made which other rank wait, and how long; the rank that most waiting was for."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from dpscope.analysis.stats.arrays import Floats

COLUMNS = ("late_rank", "waiting_rank", "collectives", "steps", "wait_us", "wait_per_step_us", "share")
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Straggler:
    """The rank that most waiting was for, from the rows of `waits_caused` that name it late."""

    rank: int
    lateness_us: float  # what another rank waits for it in a step: mean over the other ranks and over steps
    share: float  # of all waiting, 0..1: the sum of its rows' shares
    steps: int  # in which another rank waited for it, out of...
    of_steps: int


@dataclass(frozen=True)
class _Waits:
    """One entry per rank that waited in a matched collective; `lost_us` is the part that no earlier wait covers.

    Step numbers are labels of a rank, which ranks may count from different values: `job_step` is the lowest label that the ranks
    of a collective give its step. `of_steps` counts the steps in which collectives were matched.
    """

    late: _Ints
    waiting: _Ints
    job_step: Floats
    lost_us: Floats
    of_steps: int


def waits_caused(table: pd.DataFrame) -> pd.DataFrame:
    """From `match_ranks`' table: a row per (late rank, waiting rank), COLUMNS, the longest wait first.

    The last rank to arrive at a collective is the one whose duration is the transfer itself; the others wait for it. `wait_us`
    adds up, over steps, the length of the union of such waits (collectives that wait at the same time lose the time once),
    `wait_per_step_us` divides it by the steps in which all ranks were matched, `share` by the sum of the table. Empty if nothing
    is matched or no rank waited. Microseconds of the waiting rank's clock.
    """
    waits = _waits_of(table)
    pairs, pair = _groups(waits.late, waits.waiting)
    pairs_and_steps, _ = _groups(pair, waits.job_step)
    wait_us = np.bincount(pair, waits.lost_us, len(pairs))
    frame = pd.DataFrame(
        {
            "late_rank": pairs[:, 0],
            "waiting_rank": pairs[:, 1],
            "collectives": np.bincount(pair, minlength=len(pairs)),
            "steps": np.bincount(pairs_and_steps[:, 0].astype(np.int64), minlength=len(pairs)),
            "wait_us": wait_us,
            "wait_per_step_us": wait_us / max(waits.of_steps, 1),
            "share": wait_us / (wait_us.sum() or 1.0),
        }
    )
    types = {name: "Int64" if name in COLUMNS[:4] else "Float64" for name in COLUMNS}
    return frame.iloc[np.argsort(-wait_us, kind="stable")].reset_index(drop=True).astype(types)


def find_straggler(table: pd.DataFrame) -> Straggler | None:
    """The rank that made the others wait longest; None if no rank waited or nothing is matched in a step."""
    in_steps = table[table["step"].notna().to_numpy()]
    waits = _waits_of(in_steps)
    if not len(waits.late):
        return None
    ranks, late = np.unique(waits.late, return_inverse=True)
    caused_us = np.bincount(late, waits.lost_us)
    most = int(np.argmax(caused_us))
    return Straggler(
        rank=int(ranks[most]),
        lateness_us=float(caused_us[most]) / waits.of_steps / (in_steps["rank"].nunique() - 1),
        share=float(caused_us[most] / caused_us.sum()),
        steps=len(np.unique(waits.job_step[late == most])),
        of_steps=waits.of_steps,
    )


def late_ranks(table: pd.DataFrame) -> "pd.Series[int]":
    """The rank that arrived last at each matched collective, by `match`: the one whose duration is the transfer itself."""
    known = _matched(table)
    match, rank = (known[name].to_numpy(dtype=np.int64) for name in ("match", "rank"))
    order = np.lexsort((known["duration_us"].to_numpy(dtype=float), match))
    collectives, first = np.unique(match[order], return_index=True)
    return pd.Series(rank[order][first], index=pd.Index(collectives, name="match"), dtype="Int64", name="rank")


def _matched(table: pd.DataFrame) -> pd.DataFrame:
    return table[(table["wait_us"].notna() & table["match"].notna()).to_numpy()]


def lost_once(starts_us: Floats, waits_us: Floats, *keys: npt.NDArray[np.generic]) -> Floats:
    """The part of each wait that no earlier wait with the same keys covers; their sum is the length of the union."""
    ends_us = starts_us + waits_us
    _, group = _groups(*keys)
    lost_us = np.empty(len(starts_us))
    order = np.lexsort((starts_us, group))
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        covered_us = np.maximum.accumulate(np.concatenate(([-np.inf], ends_us[rows])))[:-1]
        lost_us[rows] = np.maximum(ends_us[rows] - np.maximum(starts_us[rows], covered_us), 0.0)
    return lost_us


def _waits_of(table: pd.DataFrame) -> _Waits:
    known = _matched(table)
    rank = known["rank"].to_numpy(dtype=np.int64)
    start_us, wait_us = (known[name].to_numpy(dtype=float) for name in ("start_us", "wait_us"))
    step = known["step"].to_numpy(dtype=float, na_value=np.inf)  # inf: of no step
    _, collective = np.unique(known["match"].to_numpy(dtype=np.int64), return_inverse=True)
    late = late_ranks(known).to_numpy(dtype=np.int64)[collective]
    lowest = np.full(len(step), np.inf)
    np.minimum.at(lowest, collective, step)
    job_step = lowest[collective]
    own = (late != rank) & (wait_us > 0)
    lost_us = lost_once(start_us[own], wait_us[own], late[own], rank[own], step[own])
    return _Waits(late[own], rank[own], job_step[own], lost_us, len(np.unique(job_step)))


def _groups(*keys: npt.NDArray[np.generic]) -> tuple[Floats, _Ints]:
    """The distinct rows of the keys in order, and the row that each entry has."""
    rows, group = np.unique(np.column_stack([key.astype(float) for key in keys]), axis=0, return_inverse=True)
    return rows, group.reshape(-1)
