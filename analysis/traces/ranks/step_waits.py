"""Per step of a rank: what its matched collectives transferred and waited, and the three parts of its exposed communication."""

import numpy as np
import pandas as pd

from dpscope.analysis.traces.ranks.exposed_parts import PARTS, exposed_parts
from dpscope.analysis.traces.ranks.stragglers import lost_once

_KEYS = ["rank", "device", "step"]
EXPOSED = tuple(f"exposed_{part}_us" for part in PARTS)


def step_waits(table: pd.DataFrame, exposed: pd.DataFrame | None = None) -> pd.DataFrame:
    """From `match_ranks`' table, per (rank, device, step): `transfer_us`, `wait_us` and the columns EXPOSED, microseconds.

    `transfer_us` is the sum of transfer_j. `wait_us` is the length of the union of the waiting parts (a collective's first
    wait_j microseconds): gloo's collectives queue side by side, and a wait shared by several of them is lost once. Both are NA
    without matched collectives. EXPOSED are the sums of `exposed_parts`, by `exposed`, the rows of `exposed_stretches` of all
    ranks; NA without them.
    """
    waits = _waits(table)
    if exposed is None:
        return waits.reindex(columns=[*waits.columns, *EXPOSED]).astype(dict.fromkeys(EXPOSED, "Float64"))
    return waits.merge(sums_of_parts(exposed_parts(table, exposed)), on=_KEYS, how="outer")


def sums_of_parts(parts: pd.DataFrame) -> pd.DataFrame:
    """`exposed_parts` as a row per (rank, device, step) with the columns EXPOSED; a part without time is 0."""
    frame = parts[_KEYS].drop_duplicates().reset_index(drop=True)
    for part, column in zip(PARTS, EXPOSED, strict=True):
        own = parts[parts["part"] == part].groupby(_KEYS, dropna=False)["time_us"].sum().rename(column)
        frame = frame.merge(own.reset_index(), on=_KEYS, how="left")
        frame[column] = frame[column].fillna(0.0).astype("Float64")
    return frame


def with_waits(steps: pd.DataFrame, table: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """`steps` with the columns of `step_waits`; a step's parts add up to its exposed_us, and are NA where that is unknown.

    If no collective of the job was matched, wait and transfer are NA and all exposed communication is `other`: not split.
    """
    waits = _waits(table).merge(sums_of_parts(parts), on=_KEYS, how="outer")
    frame = steps.merge(waits, on=_KEYS, how="left")
    known = frame["exposed_us"].notna()
    split = bool(table["wait_us"].notna().any()) or not (frame["exposed_us"] > 0).any()
    for column in EXPOSED:
        value = frame[column].fillna(0.0).where(known)
        frame[column] = value if split or column == "exposed_other_us" else pd.array([pd.NA] * len(frame), "Float64")
    return frame


def _waits(table: pd.DataFrame) -> pd.DataFrame:
    known = table[table["wait_us"].notna()]
    keys = (known[name].to_numpy(dtype=float, na_value=np.inf) for name in _KEYS)
    lost = known.assign(
        lost_us=lost_once(*(known[name].to_numpy(dtype=float) for name in ("start_us", "wait_us")), *keys)
    )
    summed = lost.groupby(_KEYS, dropna=False, sort=True)[["transfer_us", "lost_us"]].sum().reset_index()
    named = summed.rename(columns={"lost_us": "wait_us"})
    return named.astype(dict.fromkeys(_KEYS, "Int64") | dict.fromkeys(("transfer_us", "wait_us"), "Float64"))
