"""Who made whom wait, and how long."""

import pandas as pd

from dpscope.analysis import intervals

COLUMNS = ("late_rank", "waiting_rank", "collectives", "steps", "wait_us", "wait_per_step_us", "share")


def waits_caused(table: pd.DataFrame) -> pd.DataFrame:
    """From `match_ranks`' table: a row per (late rank, waiting rank), COLUMNS, the longest wait first.

    The last to arrive at a collective is the rank whose duration is the transfer itself; the others' waits are put down
    to it. `wait_us` adds up, over steps, the length of the union of such waits (collectives that wait side by side lose
    the time once), `wait_per_step_us` divides it by the steps all ranks were matched in, `share` by the sum of the table.
    Empty where nothing is matched or nobody waited. Microseconds of the waiting rank's own clock.
    """
    known = table[table["wait_us"].notna() & table["match"].notna()].reset_index(drop=True)
    steps = known["step"].nunique(dropna=False)
    if known.empty or known["rank"].nunique() < 2:
        return _frame([], 0)
    last = known.loc[known.groupby("match")["duration_us"].idxmin()].set_index("match")["rank"]
    waiting = known.assign(late_rank=known["match"].map(last))
    waiting = waiting[(waiting["late_rank"] != waiting["rank"]) & (waiting["wait_us"] > 0)]
    rows = []
    for key, own in waiting.groupby(["late_rank", "rank"]):
        late, rank = (int(str(one)) for one in (key if isinstance(key, tuple) else (key, key)))
        lost = 0.0
        for _, in_step in own.groupby("step", dropna=False):
            starts = in_step["start_us"].to_numpy(dtype=float)
            lost += intervals.length(intervals.union(starts, starts + in_step["wait_us"].to_numpy(dtype=float)))
        rows.append((late, rank, len(own), own["step"].nunique(dropna=False), lost))
    return _frame(rows, steps)


def _frame(rows: list[tuple[int, int, int, int, float]], steps: int) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(COLUMNS[:5]))
    frame["wait_per_step_us"] = frame["wait_us"] / steps if steps else frame["wait_us"]
    frame["share"] = frame["wait_us"] / frame["wait_us"].sum()
    frame = frame.sort_values("wait_us", ascending=False, ignore_index=True)
    whole = list(COLUMNS[:4])
    frame[whole] = frame[whole].astype("Int64")
    return frame.astype({"wait_us": "Float64", "wait_per_step_us": "Float64", "share": "Float64"})
