"""What a cell's traces show of its overlap: means of its steps, its buckets in order, its collectives."""

from dataclasses import dataclass

import pandas as pd

from dpscope.analysis.runs.run_data import CellData
from dpscope.profiling.records.matrix import ONE_PROCESS

_REDUCING = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True)
class Evidence:
    """A cell's whole traced steps: `means` over ranks and steps in microseconds, `buckets` a row per reduction of a step.

    `buckets`: mean bytes, share of the step's computing done when ready (`done`), transfer; in the order in which they are
    launched. `communication` has a row per collective.
    """

    data: CellData
    means: dict[str, float]
    buckets: pd.DataFrame
    communication: pd.DataFrame

    @property
    def several(self) -> bool:
        """Whether gradients travel in more than one message."""
        return len(self.buckets) > 1


def overlap_evidence(data: CellData) -> Evidence | None:
    """The evidence of a cell of several processes whose communication is known; None of others."""
    if data.cell.strategy in ONE_PROCESS or data.cell.devices < 2 or not data.communication_known:
        return None
    windows = data.whole_windows()
    if windows.empty or data.collectives.empty:
        return None
    names = ("communication_us", "hidden_us", "exposed_us", "step_us", "compute_us", "idle_us")
    if windows[list(names)].isna().all().any():
        return None
    means = {name: float(windows[name].mean()) for name in names}
    means["exposed_wait_us"] = float(windows["exposed_wait_us"].fillna(0.0).mean())
    keys = [name for name in ("repeat", "rank", "device", "step") if name in windows]
    own = data.collectives.merge(windows[keys].drop_duplicates(), on=keys)
    return Evidence(data, means, _buckets(own, keys), own)


def _buckets(own: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Reductions of a step by their place in it: means over ranks and steps; those of steps with another number left out."""
    reduced = own[own["kind"].isin(_REDUCING) & own["bytes"].notna()]
    if reduced.empty or "compute_done" not in reduced:
        return pd.DataFrame(columns=["bytes", "done", "transfer_us"])
    ordered = reduced.sort_values([*keys, "start_us"], kind="stable")
    place = ordered.groupby(keys, dropna=False).cumcount()
    count = ordered.groupby(keys, dropna=False)["bytes"].transform("size")
    usual = count == count.mode().iloc[0]
    frame = ordered.assign(place=place, done=ordered["compute_done"].astype("Float64"))[usual]
    frame = frame.assign(bytes=frame["bytes"].astype("Float64"))
    means: pd.DataFrame = frame.groupby("place")[["bytes", "done", "transfer_us"]].mean().reset_index(drop=True)
    return means
