"""What a cell's traces show about overlap: means of its steps, its buckets in order, its collectives."""

from dataclasses import dataclass

import pandas as pd

from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.traces.steps.readiness import REDUCING

_SMALL_BUCKET = 0.01  # of the largest bucket's bytes: a metric or the map of unused parameters rather than gradients
MOST = 0.5  # of a whole

_OF_BUCKETS = ("bytes", "done", "transfer_us", "compiled_share")
_OPTIONAL = ("exposed_wait_us", "unlaunched_us", "optimizer_us")  # of steps: not known for every trace

LATE = 0.8  # of a step's compute: little is left to hide a bucket that is ready later


@dataclass(frozen=True)
class OverlapReason:
    """`text` includes the measured number, `advice` is what to change."""

    name: str
    text: str
    advice: str
    of_script: bool = False  # caused by how the training is set up, on any hardware


@dataclass(frozen=True)
class Evidence:
    """A cell's whole traced steps: `means` over ranks and steps in microseconds, `buckets` with a row per reduction of a step.

    `buckets`: mean bytes, the share of the step's compute that is done when ready (`done`), transfer, and the share of that
    compute that one compiled graph did just before (`compiled_share`). Rows are in launch order, without the `small_buckets`
    that carry almost no bytes. `communication` has a row per collective.
    """

    data: CellData
    means: dict[str, float]
    buckets: pd.DataFrame
    communication: pd.DataFrame
    small_buckets: int = 0

    @property
    def several(self) -> bool:
        """Whether gradients are reduced in more than one message."""
        return len(self.buckets) > 1

    @property
    def sharded(self) -> bool:
        """Whether gradients are reduced to shards, as in FSDP: by the cell's strategy, or by its collectives."""
        reduced = self.communication["kind"].isin(REDUCING)
        seen = bool(reduced.any()) and (self.communication.loc[reduced, "kind"] == "reduce_scatter").any()
        return self.data.cell.traits.sharded or bool(seen)

    @property
    def of_gradients(self) -> bool:
        """Whether `buckets` hold gradients; in tensor or pipeline parallel traces other collectives run during the step.

        A job of unknown parallelism reduces gradients if all of its reductions follow the backward pass.
        """
        done = self.buckets["done"]
        after_backward = len(done) > 0 and not done.isna().any() and float(done.min()) >= LATE
        return self.data.cell.traits.identified or self.sharded or after_backward

    @property
    def steps(self) -> int:
        """Number of steps with communication, over all ranks and repeats."""
        keys = [name for name in ("repeat", "rank", "step") if name in self.communication]
        return max(1, self.communication.groupby(keys, dropna=False).ngroups)


def overlap_evidence(data: CellData) -> Evidence | None:
    """The evidence for a cell with several processes whose communication is known; None for other cells."""
    if data.cell.traits.one_process or data.cell.devices < 2 or not data.communication_known:
        return None
    windows = data.whole_windows
    if windows.empty or data.collectives.empty:
        return None
    names = ("communication_us", "hidden_us", "exposed_us", "step_us", "compute_us", "idle_us")
    if windows[list(names)].isna().all().any():
        return None
    means = {name: float(windows[name].mean()) for name in names}
    for name in _OPTIONAL:
        means[name] = float(windows[name].fillna(0.0).mean()) if name in windows else 0.0
    keys = [name for name in ("repeat", "rank", "device", "step") if name in windows]
    communication = data.collectives.merge(windows[keys].drop_duplicates(), on=keys)
    buckets = _reductions(communication, keys)
    main = buckets["bytes"] >= _SMALL_BUCKET * buckets["bytes"].max()
    return Evidence(data, means, buckets[main].reset_index(drop=True), communication, int((~main).sum()))


def _reductions(communication: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Means over ranks and steps of a step's reductions by position; steps with an unusual number of them are left out."""
    reduced = communication[communication["kind"].isin(list(REDUCING)) & communication["bytes"].notna()]
    if reduced.empty or "compute_done" not in reduced:
        return pd.DataFrame(columns=list(_OF_BUCKETS))
    ordered = reduced.sort_values([*keys, "start_us"], kind="stable")
    place = ordered.groupby(keys, dropna=False).cumcount()
    count = ordered.groupby(keys, dropna=False)["bytes"].transform("size")
    usual = count == count.mode().iloc[0]
    frame = ordered.assign(place=place, done=ordered["compute_done"].astype("Float64"))[usual]
    frame = frame.assign(bytes=frame["bytes"].astype("Float64"), compiled_share=frame.get("compiled_share", 0.0))
    means: pd.DataFrame = frame.groupby("place")[list(_OF_BUCKETS)].mean().reset_index(drop=True)
    return means
