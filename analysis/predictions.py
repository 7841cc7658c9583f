"""A cell's communication as the models predict it, from the run's sizes alone, to be set beside what was measured.

What a calibration measured comes first; without one the ring model at the link's specification, which is a bound that nobody
reaches. The two are never mixed within a cell.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from dpscope.analysis.cost_models import CollectiveCost, ddp_schedule, dp_nccl_us, dp_peer_copies_us, ring_us
from dpscope.analysis.run_analysis import CellData
from dpscope.profiling.run_types import ParameterSizes

Source = Literal["calibration", "specification"]
NO_SOURCE = "no calibration and no link bandwidth known: calibrate, or give --link-gbps"
_KEYS = ["repeat", "rank", "device", "step"]


@dataclass(frozen=True)
class CostSources:
    """What predictions rest on: a calibration's cost, else the link's specification in GB/s one way."""

    link_gbps: float | None = None
    calibrated: CollectiveCost | None = None

    @property
    def source(self) -> Source | None:
        if self.calibrated is not None:
            return "calibration"
        return "specification" if self.link_gbps is not None else None

    def cost(self, kind: str, ranks: int, size_bytes: float) -> float | None:
        """Microseconds of one collective; None where the source does not tell."""
        if self.calibrated is not None:
            return self.calibrated(kind, ranks, size_bytes)
        return ring_us(kind, size_bytes, ranks, self.link_gbps) if self.link_gbps is not None else None


@dataclass(frozen=True)
class CollectivePrediction:
    """Collectives of one kind and size in one cell; `measured_us` is the median transfer, None where none was matched."""

    cell: str
    kind: str
    size_bytes: float
    ranks: int
    per_step: float
    measured_us: float | None
    predicted_us: float | None

    @property
    def relative_error(self) -> float | None:
        return relative_error(self.predicted_us, self.measured_us)


@dataclass(frozen=True)
class CellPrediction:
    """Per step and rank: `transfer_us` is compared with the sum of transfers, under DP with all communication.

    None is unknown, `reason` then says why.
    """

    source: Source | None
    transfer_us: float | None
    exposed_us: float | None
    collectives: tuple[CollectivePrediction, ...]
    reason: str


def relative_error(predicted_us: float | None, measured_us: float | None) -> float | None:
    """(predicted - measured) / measured."""
    return predicted_us / measured_us - 1 if predicted_us is not None and measured_us else None


def _unknown(source: Source | None, reason: str) -> CellPrediction:
    return CellPrediction(source, None, None, (), reason)


def predict_cell(data: CellData, sources: CostSources) -> CellPrediction:
    """The prediction of one measured multi-device cell."""
    if data.cell.strategy == "dp-host":
        return _unknown(None, "host copies within one process: no link to model")
    if sources.source is None:
        return _unknown(None, NO_SOURCE)
    if data.cell.strategy == "dp":
        return _predict_dp(data, sources)
    windows = data.whole_windows()
    if windows.empty or data.collectives.empty:
        return _unknown(sources.source, "the trace shows no collective in a whole step")
    own = data.collectives.merge(windows[_KEYS], on=_KEYS)
    if own.empty or own[["kind", "bytes", "group_size"]].isna().to_numpy().any():
        return _unknown(sources.source, "the trace does not tell kind, size and ranks of every collective")
    costs, unknown = _costs(own, sources)
    collectives = tuple(_by_size(data.cell.name, own, costs, len(windows)))
    if unknown:
        return CellPrediction(sources.source, None, None, collectives, f"the calibration has no {unknown}")
    own = own.assign(predicted_us=pd.Series([costs[key] for key in _cost_keys(own)], index=own.index, dtype=float))
    matched = own[own["transfer_us"].notna()]
    sums = matched.groupby(_KEYS, dropna=False)["predicted_us"].sum()
    exposed = [exposed_us(step) for _, step in own.groupby(_KEYS, dropna=False)]
    return CellPrediction(
        source=sources.source,
        transfer_us=float(sums.mean()) if len(sums) else None,
        exposed_us=float(np.mean(exposed)),
        collectives=collectives,
        reason="needs matched collectives of every rank",
    )


def exposed_us(step: pd.DataFrame) -> float:
    """Predicted exposed communication of one rank's step: all-reduces by DDP's schedule, all others in full.

    `step` has kind, predicted_us and ready_us (else start_us, which is later where a collective queued behind another).
    DDP broadcasts buffers before the forward pass, which waits for them.
    """
    ready = "ready_us" if "ready_us" in step.columns and step["ready_us"].notna().all() else "start_us"
    reduced = step[step["kind"] == "all_reduce"].sort_values(ready, kind="stable")
    others = float(step.loc[step["kind"] != "all_reduce", "predicted_us"].sum())
    if reduced.empty:
        return others
    schedule = ddp_schedule(reduced[ready].astype(float).tolist(), reduced["predicted_us"].astype(float).tolist())
    return others + schedule.exposed_us


def _cost_keys(own: pd.DataFrame) -> list[tuple[str, int, float]]:
    columns = zip(own["kind"], own["group_size"], own["bytes"], strict=True)
    return [(str(kind), int(ranks), float(size)) for kind, ranks, size in columns]


def _costs(own: pd.DataFrame, sources: CostSources) -> tuple[dict[tuple[str, int, float], float | None], str]:
    """Cost of each (kind, ranks, bytes), and the first that the source does not know, in words."""
    costs = {key: sources.cost(*key) for key in dict.fromkeys(_cost_keys(own))}
    unknown = next((f"{kind} on {ranks} ranks" for (kind, ranks, _), cost in costs.items() if cost is None), "")
    return costs, unknown


def _by_size(
    cell: str, own: pd.DataFrame, costs: dict[tuple[str, int, float], float | None], windows: int
) -> list[CollectivePrediction]:
    """A row per kind and size, the largest first."""
    keys = _cost_keys(own)
    rows = []
    for key in dict.fromkeys(keys):
        group = own[[one == key for one in keys]]
        known = group["transfer_us"].dropna()
        kind, ranks, size = key
        rows.append(
            CollectivePrediction(
                cell=cell,
                kind=kind,
                size_bytes=size,
                ranks=ranks,
                per_step=len(group) / windows,
                measured_us=float(known.median()) if len(known) else None,
                predicted_us=costs[key],
            )
        )
    return sorted(rows, key=lambda row: -row.size_bytes)


def by_nccl(data: CellData) -> bool:
    """Whether a DataParallel cell moved its parameters by NCCL, else by copies between devices."""
    return not data.collectives.empty and bool((data.collectives["kind"] == "broadcast").any())


def model_sizes(data: CellData) -> ParameterSizes:
    """Sizes of the model of a measured cell."""
    return data.ranks[0][1].model


def _predict_dp(data: CellData, sources: CostSources) -> CellPrediction:
    """Every micro-batch of a step moves parameters and gradients anew."""
    sizes, devices = model_sizes(data), data.cell.devices
    if by_nccl(data):
        once = dp_nccl_us(sizes.parameter_bytes, sizes.buffer_bytes, devices, sources.cost)
        moved = once * data.cell.options.accumulate if once is not None else None
        reason = f"the calibration has no broadcast or no reduce on {devices} ranks"
        return CellPrediction(sources.source, moved, moved, (), reason)
    if sources.link_gbps is None:
        return _unknown(None, "moved by copies between devices, which no calibration measures: give --link-gbps")
    once = dp_peer_copies_us(sizes.parameter_bytes, sizes.buffer_bytes, devices, sources.link_gbps)
    moved = once * data.cell.options.accumulate
    return CellPrediction("specification", moved, moved, (), "")
