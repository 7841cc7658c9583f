"""How long each rank of a cell waits, as means."""

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from dpscope.analysis.runs.run_data import CellData


def mean_waits(data: "CellData") -> pd.DataFrame:
    """Per (late rank, waiting rank) the means over repeats, the longest first; who did not wait in a repeat waited 0 there."""
    waits = data.waits()
    if waits.empty:
        return waits
    pairs = waits.groupby(["late_rank", "waiting_rank"], as_index=False)[["collectives", "wait_per_step_us"]].sum()
    pairs["share"] = pairs["wait_per_step_us"] / pairs["wait_per_step_us"].sum()
    pairs["wait_per_step_us"] /= data.steps["repeat"].nunique()
    return pairs.sort_values("wait_per_step_us", ascending=False, kind="stable")
