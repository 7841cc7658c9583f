"""Many ranks told in few numbers: medians and ends over ranks, waiting folded by host, local rank and switch."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis

QUANTITIES = (
    "step_us", "compute_us", "communication_us", "exposed_us", "wait_us", "exposed_wait_us", "idle_us", "lateness_us",
)  # fmt: skip
"""Means over a rank's whole steps; `lateness_us` is what another rank waits for it in a step, mean over the others."""

FOLDS = ("host", "local_rank", "switch")
_FAR = 6.0  # median absolute deviations above the median, from which on a rank stands out


@dataclass(frozen=True)
class RankSpread:
    """One quantity over ranks, microseconds; `far` counts the ranks above the median by _FAR median absolute deviations."""

    quantity: str
    ranks: int
    median_us: float
    low_us: float  # 5%
    high_us: float  # 95%
    worst_us: float
    worst_rank: int
    far: int


def rank_means(analysis: TraceAnalysis) -> pd.DataFrame:
    """QUANTITIES by rank (index), float64, NaN where unknown: means over whole windows, or all where no other was traced."""
    steps = analysis.steps_with_waits
    steps = steps[steps["rank"].notna()]
    whole = steps[~steps["partial_window"].fillna(True).astype(bool)]
    chosen = whole if len(whole) else steps
    names = [name for name in QUANTITIES if name in chosen]
    means = chosen.groupby("rank")[names].mean().astype("float64")
    means["lateness_us"] = np.nan
    caused, others = analysis.waits_caused, max(len(means) - 1, 1)
    if analysis.collectives["wait_us"].notna().any():
        late = caused.groupby("late_rank")["wait_per_step_us"].sum().astype(float) / others
        means["lateness_us"] = late.reindex(means.index).fillna(0.0).astype("float64")
    return means


def spreads(means: pd.DataFrame) -> list[RankSpread]:
    """Of `rank_means`: each quantity that is known of a rank."""
    found = []
    for name in QUANTITIES:
        known = means[name].dropna()
        if known.empty:
            continue
        values = known.to_numpy(dtype=float)
        median = float(np.median(values))
        far = values > median + _FAR * float(np.median(np.abs(values - median)))
        low, high = np.quantile(values, (0.05, 0.95))
        found.append(
            RankSpread(
                quantity=name,
                ranks=len(values),
                median_us=median,
                low_us=float(low),
                high_us=float(high),
                worst_us=float(values.max()),
                worst_rank=int(known.index[int(values.argmax())]),
                far=int(far.sum()),
            )
        )
    return found


def fold(analysis: TraceAnalysis, means: pd.DataFrame, places: pd.DataFrame, by: str) -> pd.DataFrame:
    """Waiting by one of FOLDS, a row each, who causes most first: `ranks`, `wait_us`, `caused_share`.

    `wait_us` is the mean of its ranks' wait in a step, `caused_share` the part of all waiting that is for its ranks, 0..1.
    Empty where the place of no rank is known, or nobody waited.
    """
    known = places[places[by].notna()]
    caused = analysis.waits_caused
    if known.empty or caused.empty:
        return pd.DataFrame(columns=[by, "ranks", "wait_us", "caused_share"])
    shares = caused.groupby("late_rank")["share"].sum().astype("float64")
    table = known.assign(
        caused_share=known["rank"].map(shares).astype("float64").fillna(0.0),
        wait_us=known["rank"].map(means["wait_us"]).astype("float64"),
    )
    found = table.groupby(by).agg(
        ranks=("rank", "size"), wait_us=("wait_us", "mean"), caused_share=("caused_share", "sum")
    )
    return found.sort_values("caused_share", ascending=False, kind="stable").reset_index()
