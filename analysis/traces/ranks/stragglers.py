"""Who made whom wait, and how long; the rank that most waiting was for."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

COLUMNS = ("late_rank", "waiting_rank", "collectives", "steps", "wait_us", "wait_per_step_us", "share")


def waits_caused(table: pd.DataFrame) -> pd.DataFrame:
    """From `match_ranks`' table: a row per (late rank, waiting rank), COLUMNS, the longest wait first.

    The last to arrive at a collective is the rank whose duration is the transfer itself; the others' waits are put down
    to it. `wait_us` adds up, over steps, the length of the union of such waits (collectives that wait side by side lose
    the time once), `wait_per_step_us` divides it by the steps all ranks were matched in, `share` by the sum of the table.
    Empty where nothing is matched or nobody waited. Microseconds of the waiting rank's own clock.
    """
    waiting, steps = _waiting(table)
    if waiting.empty:
        return _frame(pd.DataFrame(columns=list(COLUMNS[:5])), 0)
    pair = [waiting["late_rank"], waiting["rank"].rename("waiting_rank")]
    rows = waiting.assign(lost_us=lost_once(waiting, ("late_rank", "rank", "step"))).groupby(pair)
    found = rows.agg(collectives=("match", "size"), wait_us=("lost_us", "sum"))
    found.insert(1, "steps", rows["job_step"].nunique(dropna=False))
    return _frame(found.reset_index(), steps)


def late_ranks(table: pd.DataFrame) -> "pd.Series[int]":
    """The rank that arrived last at each matched collective, by `match`: the one whose duration is the transfer itself."""
    known = table[table["wait_us"].notna() & table["match"].notna()].reset_index(drop=True)
    return known.loc[known.groupby("match")["duration_us"].idxmin()].set_index("match")["rank"]


@dataclass(frozen=True)
class Straggler:
    """The rank that most waiting was for, by the rows of `waits_caused` that name it late."""

    rank: int
    lateness_us: float  # what another rank waits for it in a step: mean over the other ranks and over steps
    share: float  # of all waiting, 0..1: the sum of its rows' shares
    steps: int  # in which somebody waited for it, out of...
    of_steps: int


def find_straggler(table: pd.DataFrame) -> Straggler | None:
    """The rank that made the others wait longest; None where nobody waited or nothing is matched in a step."""
    in_steps = table[table["step"].notna()]
    caused = waits_caused(in_steps)
    if caused.empty:
        return None
    rank = int(str(caused.groupby("late_rank")["share"].sum().idxmax()))
    own = caused[caused["late_rank"] == rank]
    waiting, of_steps = _waiting(in_steps)
    return Straggler(
        rank=rank,
        lateness_us=float(own["wait_per_step_us"].sum()) / (in_steps["rank"].nunique() - 1),
        share=float(own["share"].sum()),
        steps=int(waiting.loc[waiting["late_rank"] == rank, "job_step"].nunique()),
        of_steps=of_steps,
    )


def _waiting(table: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The rows that waited, each with its `late_rank` and `job_step`, and in how many steps collectives were matched.

    Step numbers are labels of a rank, which ranks may count from different values: `job_step` is the lowest label that the ranks
    of a collective give its step.
    """
    known = table[table["wait_us"].notna() & table["match"].notna()].reset_index(drop=True)
    job_step = known.groupby("match")["step"].transform("min")
    waiting = known.assign(late_rank=known["match"].map(late_ranks(known)), job_step=job_step)
    waited = (waiting["late_rank"] != waiting["rank"]) & (waiting["wait_us"] > 0)
    return waiting[waited], job_step.nunique(dropna=False)


def lost_once(waiting: pd.DataFrame, keys: Sequence[str]) -> "pd.Series[float]":
    """The part of each wait that no earlier begun wait of the same keys covers; their sum is the length of the union."""
    starts = waiting["start_us"].astype(float)
    ends = starts + waiting["wait_us"].astype(float)
    ordered = pd.DataFrame({"start": starts, "end": ends}).sort_values("start", kind="stable")
    own = [waiting[name].loc[ordered.index] for name in keys]
    reach = ordered.groupby(own, dropna=False)["end"].cummax()
    covered = reach.groupby(own, dropna=False).shift(1)
    begin = ordered["start"].where(covered.isna() | (covered < ordered["start"]), covered)
    return (ordered["end"] - begin).clip(lower=0.0).reindex(waiting.index)


def _frame(frame: pd.DataFrame, steps: int) -> pd.DataFrame:
    frame = frame.reindex(columns=list(COLUMNS[:5]))
    frame["wait_per_step_us"] = frame["wait_us"] / max(steps, 1)
    frame["share"] = frame["wait_us"] / frame["wait_us"].sum()
    frame = frame.sort_values("wait_us", ascending=False, kind="stable", ignore_index=True)
    whole = list(COLUMNS[:4])
    frame[whole] = frame[whole].astype("Int64")
    return frame.astype({"wait_us": "Float64", "wait_per_step_us": "Float64", "share": "Float64"})
