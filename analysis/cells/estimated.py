"""The estimates of one cell's row: subtractions per step and epoch, models, evidence.

t_N(b) is a step on N devices at b samples per device, G = N b.
"""

from collections.abc import Mapping

import numpy as np

from dpscope.analysis.cells.bandwidths import ring_loads
from dpscope.analysis.cells.columns import COLUMNS
from dpscope.analysis.cells.predicted import predict_cell, relative_error
from dpscope.analysis.cells.row import NO_GLOBAL_BATCH, NO_SAME_BATCH, RowBuilder, minus
from dpscope.analysis.costs.formulas import ring_us
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.runs.cell_data import TRACES_ALONE, CellData, RunSpreads
from dpscope.analysis.stats.samples import NO_INTERVAL, difference_estimate, pooled_median

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
    same, total = single_step_us(singles, cell.batch_size), single_step_us(singles, cell.global_batch_size)
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
    traits, windows, computed = data.cell.traits, data.whole_windows, []
    if len(windows):
        by_device = windows.groupby(["rank", "device"], dropna=False)["compute_us"]
        computed = by_device.mean().dropna().astype(float).tolist()
    untraced, spread, excess = "not every device was traced", None, None
    if len(computed) == data.cell.devices:
        spread = (max(computed) - min(computed)) / float(np.mean(computed))
        excess = computed[0] - float(np.mean(computed[1:])) if traits.peer_copies else None
    row.put("the replicas share one process's timeline" if traits.host_copies else untraced, compute_spread=spread)
    only_dp = "only DataParallel gathers on its first device"
    row.put(untraced if traits.peer_copies else only_dp, first_device_excess_us=excess)


def _put_ring(row: RowBuilder, data: CellData, sources: CostSources) -> None:
    """The ring formula as people use it: all gradients over the link's rate, where no link is known over the calibrated one.

    Of FSDP all that it gathers and scatters, one kind after the other. Compared with what these kinds transferred, if no other
    ones' transfers are in the sum.
    """
    loads = ring_loads(data)
    if isinstance(loads, str):
        row.clear(("ring_us", "ring_error_us", "ring_source"), loads)
        return
    rates = [sources.ring_rate(load.ranks, load.kind) for load in loads]
    parts = [
        ring_us(load.kind, load.size_bytes, load.ranks, rate.gb_per_s) or 0.0
        for load, rate in zip(loads, rates, strict=True)
        if rate is not None
    ]
    ring = sum(parts) if len(parts) == len(loads) else None
    unknown = sources.no_source(loads[0].ranks)
    row.put(unknown, ring_us=ring, ring_source=rates[0].source if rates[0] is not None else None)
    error, table, not_compared = None, data.collectives, "no transfer time is known: traces of ranks are missing"
    kinds = set(table.loc[table["transfer_us"].notna(), "kind"]) if len(table) else set()
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
