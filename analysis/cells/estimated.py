"""The estimates of one cell's row: subtractions per step and epoch, models, evidence."""

from collections.abc import Collection, Mapping

import numpy as np

from dpscope.analysis.cells.bandwidths import NO_ALL_REDUCE, has_rings, ring_loads
from dpscope.analysis.cells.columns import COLUMNS
from dpscope.analysis.cells.predicted import predict_cell, relative_error
from dpscope.analysis.cells.row import RowBuilder, minus
from dpscope.analysis.cells.subtraction import METHODS, NO_SAME_BATCH, subtraction_estimates
from dpscope.analysis.costs.formulas import ring_us
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.runs.cell_data import TRACES_ALONE, CellData
from dpscope.analysis.runs.spreads import RunSpreads
from dpscope.analysis.stats.samples import NO_INTERVAL, difference_estimate, pooled_median

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
    if not data.ranks:
        row.clear(ESTIMATE_COLUMNS, f"{TRACES_ALONE}, and nothing on one device to subtract")
        _put_evidence(row, data, None)
        _put_ring(row, data, sources)
        _put_predictions(row, data, sources)
        return
    _put_subtractions(row, data, singles, spreads)
    _put_epochs(row)
    _put_evidence(row, data, singles.get(data.cell.batch_size))
    _put_ring(row, data, sources)
    _put_predictions(row, data, sources)


def _put_subtractions(row: RowBuilder, data: CellData, singles: Mapping[int, CellData], spreads: RunSpreads) -> None:
    cell, step_us = data.cell, row.number("step_us")
    assert step_us is not None
    same, total = single_step_us(singles, cell.batch_size), single_step_us(singles, cell.global_batch_size)
    known = (row.number("exposed_us"), row.number("communication_us"))
    for estimate in subtraction_estimates(step_us, cell.devices, same, total, *known):
        row.put(
            estimate.reason or "communication is not known",
            **{
                f"{estimate.method}_us": estimate.value_us,
                f"{estimate.method}_error_exposed_us": estimate.error_exposed_us,
                f"{estimate.method}_error_communication_us": estimate.error_communication_us,
            },
        )
    single = singles.get(cell.batch_size)
    alone = single.step_samples() if single is not None else []
    added = difference_estimate(data.step_samples(), alone, spreads.step)
    row.put_interval(NO_SAME_BATCH if single is None else NO_INTERVAL, "same_local_batch_us", added)
    row.put(
        "needs single-device cells at the batch per device and at the global batch",
        ideal_split_local_batch_us=minus(same, total / cell.devices if total is not None else None),
        same_total_local_batch_us=minus(same, total),
    )


def _put_epochs(row: RowBuilder) -> None:
    """Per epoch: the same steps on both sides, N times fewer of them than one device needs at b."""
    steps = row.number("steps_per_epoch")
    for name in (*METHODS, "exposed", "communication"):
        per_step = row.number(f"{name}_us")
        value = per_step * steps if per_step is not None and steps is not None else None
        row.put(row.reasons.get(f"{name}_us", "the length of an epoch is not known"), **{f"{name}_epoch_us": value})


def _put_evidence(row: RowBuilder, data: CellData, single: CellData | None) -> None:
    """What shows why an estimate is off: waiting for data, and devices that compute longer than others."""
    waits = [_mean_wait_us(one) if one is not None else None for one in (data, single)]
    row.put(NO_SAME_BATCH, added_data_wait_us=minus(*waits))
    windows = data.whole_windows
    per_device = (
        windows.groupby(["rank", "device"], dropna=False)["compute_us"].mean().dropna().astype(float).tolist()
        if len(windows)
        else []
    )
    per_device_traces = len(per_device) == data.cell.devices
    row.put(
        "the replicas share one process's timeline" if data.cell.traits.host_copies else "not every device was traced",
        compute_spread=(max(per_device) - min(per_device)) / float(np.mean(per_device)) if per_device_traces else None,
    )
    row.put(
        "only DataParallel gathers on its first device"
        if not data.cell.traits.peer_copies
        else "not every device was traced",
        first_device_excess_us=per_device[0] - float(np.mean(per_device[1:]))
        if data.cell.traits.peer_copies and per_device_traces
        else None,
    )


def _mean_wait_us(data: CellData) -> float | None:
    waits = data.step_samples("data_wait_us")
    return float(np.concatenate(waits).mean()) if waits else None


_NOT_REDUCED_ALONE = (
    "the all-reduces' own transfer is not known: ranks are missing, or other collectives are in the sum"
)


def _put_ring(row: RowBuilder, data: CellData, sources: CostSources) -> None:
    """The ring formula as people use it: all gradients over the link's rate, where no link is known over the calibrated one.

    Of FSDP all that it gathers and scatters, one kind after the other.
    """
    columns = ("ring_us", "ring_error_us", "ring_source")
    if not has_rings(data):
        row.clear(columns, data.cell.traits.no_rings or NO_ALL_REDUCE)
        return
    loads = ring_loads(data)
    if isinstance(loads, str):
        row.clear(columns, loads)
        return
    rates = [sources.ring_rate(load.ranks, load.kind) for load in loads]
    known = [
        ring_us(load.kind, load.size_bytes, load.ranks, rate.gb_per_s)
        for load, rate in zip(loads, rates, strict=True)
        if rate is not None
    ]
    ring = sum(one for one in known if one is not None) if len(known) == len(loads) else None
    unknown = sources.no_source(loads[0].ranks)
    row.put(unknown, ring_us=ring, ring_source=rates[0].source if rates[0] is not None else None)
    not_compared = "transfer is not known" if data.cell.traits.sharded else _NOT_REDUCED_ALONE
    error = minus(ring, _transferred_us(row, data, {load.kind for load in loads}))
    row.put(unknown if ring is None else not_compared, ring_error_us=error)


def _transferred_us(row: RowBuilder, data: CellData, kinds: Collection[str]) -> float | None:
    """What the collectives of these kinds transferred in a step; None where other ones' transfers are in the sum."""
    if data.collectives.empty:
        return None
    matched = data.collectives.loc[data.collectives["transfer_us"].notna(), "kind"]
    return row.number("transfer_us") if matched.isin(list(kinds)).all() else None


def _put_predictions(row: RowBuilder, data: CellData, sources: CostSources) -> None:
    """Predicted transfers and exposed communication; DP, all of whose communication is exposed, has no matched transfers."""
    prediction = predict_cell(data, sources)
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
