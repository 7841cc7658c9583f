"""A cell's communication as the models predict it, from the run's sizes alone, to be set beside what was measured.

What a calibration measured comes first; without one the ring model at the link's specification, which is a bound that nobody
reaches. The two are never mixed within a cell.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dpscope.analysis.costs.collective_streams import ddp_schedule
from dpscope.analysis.costs.formulas import dp_nccl_us, dp_peer_copies_us
from dpscope.analysis.costs.sources import CostSources, Source
from dpscope.analysis.runs.run_data import CellData
from dpscope.analysis.runs.traffic_check import reduced_bytes
from dpscope.analysis.traces.data_parallel.chunks import broadcast_chunks, reduce_chunks
from dpscope.profiling.records.run import ParameterSizes

NO_SCHEDULE = "only DDP's schedule is modelled, and the traces do not show plain DDP"
NOT_MATCHED = "needs matched collectives of every rank"
_KEYS = ["repeat", "rank", "device", "step"]

_CostKey = tuple[str, int, float]  # kind, ranks, bytes


@dataclass(frozen=True)
class CollectivePrediction:
    """Collectives of one kind and size in one cell.

    `measured_us` is the median transfer, None where none was matched (rooted collectives have none); `predicted_us` is None
    for `reason`; `extrapolated` is set where the size lies outside those calibrated.
    """

    cell: str
    kind: str
    size_bytes: float
    ranks: int
    per_step: float
    measured_us: float | None
    predicted_us: float | None
    reason: str = ""
    extrapolated: str | None = None

    @property
    def relative_error(self) -> float | None:
        return relative_error(self.predicted_us, self.measured_us)


@dataclass(frozen=True)
class CellPrediction:
    """Per step and rank: `transfer_us` is compared with the sum of transfers, under DP with all communication.

    None is unknown, for `transfer_reason` and `exposed_reason`: exposed needs the cost of every collective, transfer that
    of the matched ones alone.
    """

    source: Source | None
    transfer_us: float | None
    exposed_us: float | None
    collectives: tuple[CollectivePrediction, ...]
    transfer_reason: str
    exposed_reason: str


def relative_error(predicted_us: float | None, measured_us: float | None) -> float | None:
    """(predicted - measured) / measured."""
    return predicted_us / measured_us - 1 if predicted_us is not None and measured_us else None


def _unknown(source: Source | None, reason: str) -> CellPrediction:
    return CellPrediction(source, None, None, (), reason, reason)


def predict_cell(data: CellData, sources: CostSources) -> CellPrediction:
    """The prediction of one measured multi-device cell."""
    if data.cell.strategy == "dp-host":
        return _unknown(None, "host copies within one process: no link to model")
    sources = sources.on_nodes(data.nodes)
    source = sources.source(data.cell.devices)
    if source is None:
        return _unknown(None, sources.no_source(data.cell.devices))
    if data.cell.strategy == "dp":
        return _predict_dp(data, sources)
    windows = data.whole_windows()
    if windows.empty or data.collectives.empty:
        return _unknown(source, "the trace shows no collective in a whole step")
    own = data.collectives.merge(windows[_KEYS], on=_KEYS)
    if own.empty or own[["kind", "bytes", "group_size"]].isna().to_numpy().any():
        return _unknown(source, "the trace does not tell kind, size and ranks of every collective")
    return _predict_collectives(data, own, sources, len(windows))


def _predict_collectives(data: CellData, own: pd.DataFrame, sources: CostSources, windows: int) -> CellPrediction:
    """The prediction from the collectives of whole steps, sizes and ranks known."""
    costs = {key: sources.cost(*key) for key in dict.fromkeys(_cost_keys(own))}
    own = own.assign(predicted_us=pd.Series([costs[key] for key in _cost_keys(own)], index=own.index, dtype=float))
    matched = own[own["transfer_us"].notna()]
    sums = matched.groupby(_KEYS, dropna=False)["predicted_us"].sum()
    unknown_matched, unknown = _unknown_reason(matched, sources), _unknown_reason(own, sources)
    if data.cell.strategy != "ddp":
        unknown = unknown or NO_SCHEDULE
    exposed = [] if unknown else [exposed_us(step, servers(data)) for _, step in own.groupby(_KEYS, dropna=False)]
    return CellPrediction(
        source=sources.source(data.cell.devices),
        transfer_us=float(sums.mean()) if len(sums) and not unknown_matched else None,
        exposed_us=float(np.mean(exposed)) if exposed else None,
        collectives=tuple(_by_size(data.cell.name, own, sources, windows)),
        transfer_reason=unknown_matched or NOT_MATCHED,
        exposed_reason=unknown,
    )


def _unknown_reason(own: pd.DataFrame, sources: CostSources) -> str:
    """Why the cost of some of these collectives is not known; empty where all are."""
    lacking = own[own["predicted_us"].isna()]
    return "; ".join(dict.fromkeys(sources.why_unknown(kind, ranks) for kind, ranks, _ in _cost_keys(lacking)))


def servers(data: CellData) -> int:
    """How many collectives of a group a rank carries out at once: NCCL has a stream, gloo two workers for each network device.

    Source: ProcessGroupGloo::Options in torch, threads = 2 x devices; one network device, as torch chooses by itself.
    """
    gloo = data.ranks[0][1].backend == "gloo" if data.ranks else not data.on_device
    return 2 if gloo else 1


def exposed_us(step: pd.DataFrame, servers: int = 1) -> float:
    """Predicted exposed communication of one rank's step: all-reduces by DDP's schedule, all others in full.

    `step` has kind, predicted_us and ready_us (else start_us, which is later where a collective queued behind another).
    DDP broadcasts buffers before the forward pass, which waits for them.
    """
    ready = ready_column(step)
    reduced = step[step["kind"] == "all_reduce"].sort_values(ready, kind="stable")
    others = float(step.loc[step["kind"] != "all_reduce", "predicted_us"].sum())
    if reduced.empty:
        return others
    costs = reduced["predicted_us"].astype(float).tolist()
    schedule = ddp_schedule(reduced[ready].astype(float).tolist(), costs, servers)
    return others + schedule.exposed_us


def ready_column(step: pd.DataFrame) -> str:
    """What tells when a step's collectives could start: `ready_us` where all have it, else `start_us`."""
    return "ready_us" if "ready_us" in step.columns and step["ready_us"].notna().all() else "start_us"


def _cost_keys(own: pd.DataFrame) -> list[_CostKey]:
    columns = zip(own["kind"], own["group_size"], own["bytes"], strict=True)
    return [(str(kind), int(ranks), float(size)) for kind, ranks, size in columns]


def _by_size(cell: str, own: pd.DataFrame, sources: CostSources, windows: int) -> list[CollectivePrediction]:
    """A row per kind and size, the largest first."""
    keys = _cost_keys(own)
    rows = []
    for key in dict.fromkeys(keys):
        group = own[[one == key for one in keys]]
        known = group["transfer_us"].dropna()
        measured_us = float(known.median()) if len(known) else None
        rows.append(_prediction(cell, key, sources, len(group) / windows, measured_us))
    return sorted(rows, key=lambda row: -row.size_bytes)


def _prediction(
    cell: str, key: _CostKey, sources: CostSources, per_step: float, measured_us: float | None
) -> CollectivePrediction:
    kind, ranks, size = key
    predicted_us = sources.cost(*key)
    return CollectivePrediction(
        cell=cell,
        kind=kind,
        size_bytes=size,
        ranks=ranks,
        per_step=per_step,
        measured_us=measured_us,
        predicted_us=predicted_us,
        reason=sources.why_unknown(kind, ranks) if predicted_us is None else "",
        extrapolated=sources.extrapolated(*key),
    )


def by_nccl(data: CellData) -> bool:
    """Whether a DataParallel cell moved its parameters by NCCL, else by copies between devices."""
    return not data.collectives.empty and bool((data.collectives["kind"] == "broadcast").any())


def model_sizes(data: CellData) -> ParameterSizes | None:
    """Sizes of the model of a measured cell; traces alone do not tell them."""
    return data.ranks[0][1].model if data.ranks else None


def runs_all_reduces(data: CellData) -> bool:
    """Whether a cell on several devices reduces gradients, or whatever else its traces show, by all-reduces."""
    if data.cell.devices == 1:
        return False
    if data.cell.strategy == "ddp":
        return True
    return len(data.collectives) > 0 and bool((data.collectives["kind"] == "all_reduce").any())


@dataclass(frozen=True)
class RingLoad:
    """What the ring formula is asked for: bytes that are all-reduced per step, by so many ranks, and how they are known."""

    size_bytes: float
    ranks: int
    told: str


def ring_load(data: CellData) -> RingLoad | str:
    """All gradients of a run's cell; of traces alone what their all-reduces moved. Else why it is not known."""
    sizes = model_sizes(data)
    if sizes is not None:
        return RingLoad(reduced_bytes(data.planned, sizes), data.cell.devices, "all gradients")
    windows = data.whole_windows()
    own = data.collectives.merge(windows[_KEYS], on=_KEYS)
    own = own[own["kind"] == "all_reduce"]
    if own.empty or own[["bytes", "group_size"]].isna().to_numpy().any():
        return "the trace gives no sizes for some all-reduces"
    ranks = {int(size) for size in own["group_size"]}
    if len(ranks) > 1:
        return f"all-reduces of {' and of '.join(map(str, sorted(ranks)))} ranks: no one ring"
    return RingLoad(float(own["bytes"].sum()) / len(windows), ranks.pop(), "what was all-reduced in a traced step")


def _predict_dp(data: CellData, sources: CostSources) -> CellPrediction:
    """Every micro-batch of a step moves parameters and gradients anew."""
    sizes, devices, passes = model_sizes(data), data.cell.devices, data.cell.options.accumulate
    if sizes is None:
        return _unknown(None, "traces do not tell the sizes of the model's tensors")
    if not sizes.parameter_tensors:
        return _unknown(None, "the run does not hold the sizes of the model's tensors")
    sent = broadcast_chunks(sizes.parameter_tensors) + broadcast_chunks(sizes.buffer_tensors)
    reduced = reduce_chunks(sizes.parameter_tensors)
    if by_nccl(data):
        once = dp_nccl_us(sent, reduced, devices, sources.cost)
        moved = passes * once if once is not None else None
        rows = tuple(_dp_rows(data, sources, {"broadcast": sent, "reduce": reduced}))
        reason = "; ".join(dict.fromkeys(row.reason for row in rows if row.reason))
        return CellPrediction(sources.source(devices), moved, moved, rows, reason, reason)
    link = sources.link(devices)
    if link is None:
        return _unknown(None, "moved by copies between devices, which no calibration measures: give --link")
    moved = passes * dp_peer_copies_us(sent, reduced, devices, link.gb_per_s)
    return CellPrediction("specification", moved, moved, (), "", "")


def _dp_rows(data: CellData, sources: CostSources, chunks: dict[str, list[int]]) -> Iterator[CollectivePrediction]:
    """A row per kind and size of chunk, the largest first; what one takes is not measured, for its kernels tell no size."""
    counts = Counter((kind, size) for kind, sizes in chunks.items() for size in sizes)
    for (kind, size), count in sorted(counts.items(), key=lambda item: -item[0][1]):
        key = (kind, data.cell.devices, float(size))
        yield _prediction(data.cell.name, key, sources, count * data.cell.options.accumulate, None)
