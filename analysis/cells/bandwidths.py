"""Effective bandwidth computed three ways, its utilisation of the link and of a calibration; bytes on rings.

Effective bandwidth is wire bytes per step over a time per step: the bytes each rank sends, by the bus factors of nccl-tests
(doc/PERFORMANCE.md), so that it compares with a link's rate one way. The three times: the subtraction estimate t_N(b) - t_1(b),
which contains more and less than communication; the union of communication, which contains waiting; the transfers alone.
"""

from dataclasses import dataclass

import pandas as pd

from dpscope.analysis.cells.columns import COLUMNS
from dpscope.analysis.cells.predicted import by_nccl, cost_keys, model_sizes
from dpscope.analysis.cells.row import NO_SAME_BATCH, RowBuilder, ratio
from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.traffic_check import expected_bytes, reduced_bytes
from dpscope.analysis.text.units import show_time
from dpscope.profiling.records.strategies import shard_groups

BANDWIDTH_COLUMNS = tuple(column.name for column in COLUMNS if column.group == "bandwidth")
_MOVED = {
    "all_gather": "parameters gathered",
    "reduce_scatter": "gradients scattered",
    "all_reduce": "gradients between groups",
}


@dataclass(frozen=True)
class RingLoad:
    """Input of the ring formula: bytes per step of one kind of collective, the ranks, and what the bytes are."""

    size_bytes: float
    ranks: int
    what: str
    kind: str = "all_reduce"


def runs_all_reduces(data: CellData) -> bool:
    """Whether a cell on several devices reduces gradients, or whatever else its traces show, by all-reduces."""
    if data.cell.devices == 1 or data.cell.traits.sharded:
        return False
    shown = len(data.collectives) > 0 and bool((data.collectives["kind"] == "all_reduce").any())
    return data.cell.traits.reducer or shown


def ring_loads(data: CellData) -> tuple[RingLoad, ...] | str:
    """All gradients of a run's cell, of FSDP the parameters too; of traces alone what they show. Else why it is not known."""
    traits, sizes = data.cell.traits, model_sizes(data)
    if not runs_all_reduces(data) and (data.cell.devices == 1 or not traits.sharded):
        return traits.no_rings or "the traces show no all-reduce"
    if traits.sharded and sizes is not None:
        units = data.ranks[0][1].units
        if not units:
            return "a script's own FSDP: what it must move is not known"
        if data.nodes > 1 and traits.hybrid:
            return "its collectives run within nodes and between them: no one link"
        groups, shards = shard_groups(data.cell.strategy, data.cell.devices, data.nodes)
        return tuple(
            RingLoad(size, groups if kind == "all_reduce" else shards, _MOVED[kind], kind)
            for kind, size in expected_bytes(data.planned, units).items()
        )
    if sizes is not None:
        return (RingLoad(reduced_bytes(data.planned, sizes), data.cell.devices, "all gradients"),)
    own = data.whole_collectives
    own = own[own["kind"] == "all_reduce"]
    if own.empty or own[["bytes", "group_size"]].isna().to_numpy().any():
        return "the trace gives no sizes for some all-reduces"
    ranks = {int(size) for size in own["group_size"]}
    if len(ranks) > 1:
        return f"all-reduces of {' and of '.join(map(str, sorted(ranks)))} ranks: no one ring"
    size = float(own["bytes"].sum()) / len(data.whole_windows)
    return (RingLoad(size, ranks.pop(), "what was all-reduced in a traced step"),)


def wire_bytes(data: CellData, matched_only: bool = False) -> float | None:
    """Bytes a rank sends per step, by the trace's sizes and nccl-tests' bus factors; under DP by the model's.

    DP by NCCL: 2 S + S_buffers through every device. By copies: (N-1) times that through device 0, the busiest. None where
    the trace gives no sizes. `matched_only`: of the collectives with a transfer alone.
    """
    if data.cell.traits.peer_copies:
        sizes = model_sizes(data)
        if sizes is None:
            return None
        serial = 1 if by_nccl(data) else data.cell.devices - 1
        return float(data.cell.options.accumulate * serial * (2 * sizes.parameter_bytes + sizes.buffer_bytes))
    own = data.whole_collectives
    if own.empty or own[["kind", "bytes", "group_size"]].isna().to_numpy().any():
        return None
    moved = own["moved_as"].fillna(own["kind"]) if "moved_as" in own else own["kind"]
    factors = [bus_factor(str(kind), int(ranks)) for kind, ranks in zip(moved, own["group_size"], strict=True)]
    sent = own["bytes"].astype(float) * pd.Series(factors, dtype=float)
    if matched_only:
        sent = sent[own["transfer_us"].notna()]
    return float(sent.sum()) / len(data.whole_windows)


def put_bandwidths(row: RowBuilder, data: CellData, sources: CostSources) -> None:
    """Fill BANDWIDTH_COLUMNS of a multi-device cell with known communication, after its estimates and predictions."""
    if data.cell.traits.host_copies:
        row.clear(BANDWIDTH_COLUMNS, "host copies within one process: no link is used")
        return
    moved, loads, added = wire_bytes(data), ring_loads(data), row.number("same_local_batch_us")
    no_time = f"t_N(b) - t_1(b) is {show_time(added)}, not a time in which bytes could move"
    no_time = NO_SAME_BATCH if added is None else no_time
    row.put("the trace gives no sizes for some collectives", wire_bytes_per_step=moved)
    row.put(no_time, subtraction_gb_per_s=_gb_per_s(moved, added))
    if isinstance(loads, str):
        row.put(loads, ring_subtraction_gb_per_s=None)
    else:
        sent = sum((bus_factor(load.kind, load.ranks) or 0.0) * load.size_bytes for load in loads)
        row.put(no_time, ring_subtraction_gb_per_s=_gb_per_s(sent, added))
    row.put("communication is not known", communication_gb_per_s=_gb_per_s(moved, row.number("communication_us")))
    row.put(
        "needs matched all-reduces of every rank; DataParallel runs none",
        transfer_gb_per_s=row.number("busbw_gb_per_s"),
    )
    link = sources.link(data.cell.devices)
    row.put("no link bandwidth known: give --link", link_gb_per_s=link.gb_per_s if link is not None else None)
    row.put(
        "no calibration was given" if sources.calibration is None else "the calibration predicts no transfer here",
        calibrated_gb_per_s=_calibrated_gb_per_s(row, data, sources, moved),
    )
    for way in ("subtraction", "communication", "transfer"):
        rate = row.number(f"{way}_gb_per_s")
        for level, column in (("link", "link_gb_per_s"), ("calibration", "calibrated_gb_per_s")):
            why = row.reasons.get(f"{way}_gb_per_s") or row.reasons.get(column) or ""
            row.put(why, **{f"{way}_of_{level}": ratio(rate, row.number(column))})


def _calibrated_gb_per_s(row: RowBuilder, data: CellData, sources: CostSources, moved: float | None) -> float | None:
    """The rate at which the calibration would move the same messages, one after another with nothing else running.

    Of DDP's all-reduces, under DP of everything.
    """
    predicted = row.number("predicted_transfer_us")
    if row.values["prediction_source"] != "calibration" or not predicted:
        return None
    if data.cell.traits.peer_copies:
        return _gb_per_s(moved, predicted)
    own = data.whole_collectives
    costs = [sources.cost(*key, "shortest") for key in cost_keys(own[own["transfer_us"].notna()])]
    known = [cost for cost in costs if cost is not None]
    alone_us = sum(known) / len(data.whole_windows) if known and len(known) == len(costs) else None
    return _gb_per_s(wire_bytes(data, matched_only=True), alone_us)


def _gb_per_s(moved: float | None, time_us: float | None) -> float | None:
    rate = ratio(moved, time_us)
    return rate / 1e3 if rate is not None else None
