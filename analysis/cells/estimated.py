"""The estimates of one cell's row: subtractions per step and epoch, models, evidence, effective bandwidth by three definitions.

t_N(b) is a step on N devices at b samples per device, G = N b. Effective bandwidth is wire bytes per step over a time per step:
the bytes each rank sends, by the bus factors of nccl-tests (doc/PERFORMANCE.md), so that it compares with a link's rate one way.
The three times: the subtraction estimate t_N(b) - t_1(b), which contains more and less than communication; the union of
communication, which contains waiting; the transfers alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.cells.columns import COLUMNS
from dpscope.analysis.cells.predicted import (
    COST_KEY,
    all_known,
    by_nccl,
    cost_keys,
    model_sizes,
    predict_cell,
    relative_error,
)
from dpscope.analysis.cells.row import NO_GLOBAL_BATCH, NO_SAME_BATCH, RowBuilder, minus, ratio
from dpscope.analysis.costs.formulas import bus_factor, ring_us
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.runs.cell_data import TRACES_ALONE, CellData, RunSpreads
from dpscope.analysis.runs.traffic_check import expected_bytes, reduced_bytes
from dpscope.analysis.stats.samples import NO_INTERVAL, difference_estimate, pooled_median
from dpscope.analysis.text.units import show_time
from dpscope.profiling.records.strategies import shard_groups

FORMULAS = {
    "same_local_batch": "t_N(b) - t_1(b)",
    "ideal_split": "t_N(G/N) - t_1(G)/N",
    "same_total": "t_N(G/N) - t_1(G)",
}
ESTIMATE_COLUMNS = tuple(
    column.name
    for column in COLUMNS
    if column.group in ("estimates", "predictions") and not column.name.startswith(("added_idle", "added_tracer"))
)


def single_step_us(singles: Mapping[int, CellData], batch_size: int) -> float | None:
    """Median step time of the single-device cell at a batch size, None without one."""
    single = singles.get(batch_size)
    return pooled_median(single.step_samples()) if single is not None else None


def put_estimates(
    row: RowBuilder, data: CellData, singles: Mapping[int, CellData], sources: CostSources, spreads: RunSpreads
) -> None:
    """Fill ESTIMATE_COLUMNS; times and breakdown are filled already."""
    if data.cell.devices == 1:
        row.clear(ESTIMATE_COLUMNS, "one device: nothing to estimate")
        return
    if data.ranks:
        _put_subtractions(row, data, singles, spreads)
    else:
        row.clear(ESTIMATE_COLUMNS, f"{TRACES_ALONE}, and nothing on one device to subtract")
    _put_evidence(row, data, singles.get(data.cell.batch_size) if data.ranks else None)
    _put_ring(row, data, sources)
    _put_predictions(row, data, sources)


def _put_subtractions(row: RowBuilder, data: CellData, singles: Mapping[int, CellData], spreads: RunSpreads) -> None:
    """The subtractions that people take for communication, how far each is from what was measured, and their epochs.

    Assumptions: same_local_batch is sound as added wall time; ideal_split takes all of t_1(G) to shrink with the batch and errs
    by its fixed part; same_total compares different work per device and goes negative as soon as parallel training pays. An
    epoch has the same steps on both sides, N times fewer of them than one device needs at b.
    """
    cell, step_us, steps = data.cell, row.number("step_us"), row.number("steps_per_epoch")
    same, total = single_step_us(singles, cell.batch_size), single_step_us(singles, data.global_batch_size)
    split = total / cell.devices if total is not None else None
    baselines = ((same, NO_SAME_BATCH), (split, NO_GLOBAL_BATCH), (total, NO_GLOBAL_BATCH))
    for method, (baseline, why_not) in zip(FORMULAS, baselines, strict=True):
        value = minus(step_us, baseline)
        row.put(
            why_not if value is None else "communication is not known",
            **{f"{method}_us": value, f"{method}_error_exposed_us": minus(value, row.number("exposed_us"))},
            **{f"{method}_error_communication_us": minus(value, row.number("communication_us"))},
        )
    single = singles.get(cell.batch_size)
    added = difference_estimate(data.step_samples(), single.step_samples() if single is not None else [], spreads.step)
    row.put_interval(NO_SAME_BATCH if single is None else NO_INTERVAL, "same_local_batch_us", added)
    row.put(
        "needs single-device cells at the batch per device and at the global batch",
        ideal_split_local_batch_us=minus(same, split),
        same_total_local_batch_us=minus(same, total),
    )
    for name in (*FORMULAS, "exposed", "communication"):
        per_step = row.number(f"{name}_us")
        value = per_step * steps if per_step is not None and steps is not None else None
        row.put(row.reasons.get(f"{name}_us", "the length of an epoch is not known"), **{f"{name}_epoch_us": value})


def _put_evidence(row: RowBuilder, data: CellData, single: CellData | None) -> None:
    """What shows why an estimate is off: waiting for data, and devices that compute longer than others."""
    waits = [one.step_samples("data_wait_us") if one is not None else [] for one in (data, single)]
    row.put(
        NO_SAME_BATCH, added_data_wait_us=minus(*(float(np.concatenate(one).mean()) if one else None for one in waits))
    )
    traits, windows = data.cell.traits, data.whole_windows
    by_device = windows.group("rank", "device", in_order=True).means(windows["compute_us"])
    computed = by_device[~np.isnan(by_device)].tolist()
    untraced, spread, excess = "not every device was traced", None, None
    if len(computed) == data.cell.devices:
        spread = (max(computed) - min(computed)) / float(np.mean(computed))
        excess = computed[0] - float(np.mean(computed[1:])) if traits.peer_copies else None
    row.put("the replicas share one process's timeline" if traits.host_copies else untraced, compute_spread=spread)
    only_dp = "only DataParallel gathers on its first device"
    row.put(untraced if traits.peer_copies else only_dp, first_device_excess_us=excess)


def _put_ring(row: RowBuilder, data: CellData, sources: CostSources) -> None:
    """The ring formula as people use it: all gradients over the link's rate, else at the calibration's bus bandwidth.

    Of FSDP all that it gathers and scatters, one kind after the other. Compared with what these kinds transferred, if no other
    ones' transfers are in the sum.
    """
    loads = ring_loads(data)
    if isinstance(loads, str):
        row.clear(("ring_us", "ring_error_us", "ring_source"), loads)
        return
    found = [sources.ring_rate(load.ranks, load.kind) for load in loads]
    rates = tuple(rate for rate in found if rate is not None)
    ring = None
    if len(rates) == len(loads):
        row.ring_rates = rates
        ring = sum(
            ring_us(load.kind, load.size_bytes, load.ranks, rate.gb_per_s) or 0.0
            for load, rate in zip(loads, rates, strict=True)
        )
    unknown = sources.no_source(loads[0].ranks)
    row.put(unknown, ring_us=ring, ring_source=rates[0].source if ring is not None else None)
    error, table, not_compared = None, data.tables.collectives, "no transfer time is known: traces of ranks are missing"
    kinds = set(table.words("kind")[table.known("transfer_us")].counts)
    if others := sorted(kinds - {load.kind for load in loads}):
        not_compared = (
            f"the measured transfers include those of {', '.join(others)}, which the formula does not describe"
        )
    elif kinds:
        error = minus(ring, row.number("transfer_us"))
    row.put(unknown if ring is None else not_compared, ring_error_us=error)


def _put_predictions(row: RowBuilder, data: CellData, sources: CostSources) -> None:
    """Predicted transfers and exposed communication; DP, all of whose communication is exposed, has no matched transfers."""
    prediction = predict_cell(data, sources)
    row.predictions = prediction.collectives
    row.put(prediction.transfer_reason or "not predicted", prediction_source=prediction.source)
    row.put(
        "no contention data in a calibration, or nothing overlaps", prediction_contention=prediction.contention or None
    )
    measured = row.number("communication_us" if data.cell.traits.peer_copies else "transfer_us")
    for name, predicted, against, reason in (
        ("transfer", prediction.transfer_us, measured, prediction.transfer_reason),
        ("exposed", prediction.exposed_us, row.number("exposed_us"), prediction.exposed_reason),
    ):
        unknown = reason or "not predicted"
        why = unknown if predicted is None else "the measured value is unknown or 0"
        row.put(unknown, **{f"predicted_{name}_us": predicted})
        row.put(why, **{f"predicted_{name}_error": relative_error(predicted, against)})


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
    return data.cell.traits.reducer or bool(data.tables.collectives.words("kind").isin("all_reduce").any())


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
    own = data.whole_collectives.having("kind", "all_reduce")
    if not all_known(own, ("bytes", "group_size")):
        return "the trace gives no sizes for some all-reduces"
    ranks = set(own["group_size"].tolist())
    if len(ranks) > 1:
        return f"all-reduces of {' and of '.join(map(str, sorted(ranks)))} ranks: no one ring"
    size = float(own["bytes"].sum()) / len(data.whole_windows)
    return (RingLoad(size, ranks.pop(), "what was all-reduced in a traced step"),)


def wire_bytes(data: CellData, matched_only: bool = False) -> float | None:
    """Bytes a rank sends per step, by the trace's sizes and nccl-tests' bus factors; under DP by the model's.

    DP by NCCL: 2 S + S_buffers through every device. By copies: (N-1) times that through device 0, the busiest. None where
    the trace gives no sizes, or nccl-tests no factor for a kind. `matched_only`: of the collectives with a transfer alone.
    """
    if data.cell.traits.peer_copies:
        sizes = model_sizes(data)
        if sizes is None:
            return None
        serial = 1 if by_nccl(data) else data.cell.devices - 1
        return float(data.cell.options.accumulate * serial * (2 * sizes.parameter_bytes + sizes.buffer_bytes))
    own = data.whole_collectives
    if not all_known(own, COST_KEY):
        return None
    own = own.take(own.known("transfer_us")) if matched_only else own
    moved = own.words("moved_as").where(own.known("moved_as"), own.words("kind")).tolist()
    factors = [bus_factor(str(kind), ranks) for kind, ranks in zip(moved, own["group_size"].tolist(), strict=True)]
    factors = [0.0 if ranks == 1 else factor for factor, ranks in zip(factors, own["group_size"].tolist(), strict=True)]
    sent = float((own["bytes"] * np.array(factors, dtype=float)).sum())
    return None if math.isnan(sent) else sent / len(data.whole_windows)


def put_bandwidths(row: RowBuilder, data: CellData, sources: CostSources) -> None:
    """Fill BANDWIDTH_COLUMNS of a multi-device cell with known communication, after its estimates and predictions."""
    if data.cell.traits.host_copies:
        row.clear(BANDWIDTH_COLUMNS, "host copies within one process: no link is used")
        return
    moved, loads, added = wire_bytes(data), ring_loads(data), row.number("same_local_batch_us")
    no_time = f"t_N(b) - t_1(b) is {show_time(added)}, not a time in which bytes could move"
    no_time = NO_SAME_BATCH if added is None else no_time
    row.put("the trace gives no sizes for some collectives, or one has no bus factor", wire_bytes_per_step=moved)
    row.put(no_time, subtraction_gb_per_s=_gb_per_s(moved, added))
    if isinstance(loads, str):
        row.put(loads, ring_subtraction_gb_per_s=None)
    else:
        sent = sum((bus_factor(load.kind, load.ranks) or 0.0) * load.size_bytes for load in loads)
        row.put(no_time, ring_subtraction_gb_per_s=_gb_per_s(sent, added))
    row.put("communication is not known", communication_gb_per_s=_gb_per_s(moved, row.number("communication_us")))
    no_match = "needs matched all-reduces of every rank; DataParallel runs none"
    row.put(no_match, transfer_gb_per_s=row.number("busbw_gb_per_s"))
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
    costs = [sources.cost(*key, "shortest") for key in cost_keys(own.take(own.known("transfer_us")))]
    known = [cost for cost in costs if cost is not None]
    alone_us = sum(known) / len(data.whole_windows) if known and len(known) == len(costs) else None
    return _gb_per_s(wire_bytes(data, matched_only=True), alone_us)


def _gb_per_s(moved: float | None, time_us: float | None) -> float | None:
    rate = ratio(moved, time_us)
    return rate / 1e3 if rate is not None else None
