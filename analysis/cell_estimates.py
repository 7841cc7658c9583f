"""The estimates of one cell's row: subtractions per step and epoch, the identity with its intervals, models, evidence."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dpscope.analysis.columns import COLUMNS
from dpscope.analysis.cost_models import ring_all_reduce_us
from dpscope.analysis.cost_sources import CostSources
from dpscope.analysis.expected_traffic import reduced_bytes
from dpscope.analysis.predictions import model_sizes, predict_cell, relative_error
from dpscope.analysis.run_analysis import CellData
from dpscope.analysis.sample_statistics import (
    FEWEST_SAMPLES,
    Samples,
    bootstrap,
    difference_estimate,
    interval,
    pooled_median,
)
from dpscope.analysis.subtraction import METHODS, step_identity, subtraction_estimates
from dpscope.analysis.summary_row import Row, minus

TERMS = ("exposed", "compute", "idle", "tracer")
ESTIMATE_COLUMNS = tuple(column.name for column in COLUMNS if column.group in ("estimates", "predictions"))


def single_step_us(singles: Mapping[int, CellData], batch_size: int) -> float | None:
    """Median step time of the single-device cell at a batch size, None without one."""
    single = singles.get(batch_size)
    return pooled_median(single.step_samples()) if single is not None else None


def put_estimates(row: Row, data: CellData, singles: Mapping[int, CellData], sources: CostSources) -> None:
    """Fill ESTIMATE_COLUMNS; times and breakdown are filled already."""
    if data.cell.devices == 1 or row.number("step_us") is None:
        row.clear(ESTIMATE_COLUMNS, "one device: nothing to estimate")
        return
    _put_subtractions(row, data, singles)
    _put_epochs(row)
    _put_identity(row, data, singles.get(data.cell.batch_size))
    _put_evidence(row, data, singles.get(data.cell.batch_size))
    _put_ring(row, data, sources)
    _put_predictions(row, data, sources)


def _put_subtractions(row: Row, data: CellData, singles: Mapping[int, CellData]) -> None:
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
    added = difference_estimate(data.step_samples(), single.step_samples() if single is not None else [])
    row.put(
        "no single-device cell at this batch per device" if single is None else "fewer than 5 timed steps: no interval",
        same_local_batch_low_us=added.low,
        same_local_batch_high_us=added.high,
    )
    row.put(
        "needs single-device cells at the batch per device and at the global batch",
        ideal_split_local_batch_us=minus(same, total / cell.devices if total is not None else None),
        same_total_local_batch_us=minus(same, total),
    )


def _put_epochs(row: Row) -> None:
    """Per epoch: the same steps on both sides, N times fewer of them than one device needs at b."""
    steps = row.number("steps_per_epoch")
    for name in (*METHODS, "exposed", "communication"):
        per_step = row.number(f"{name}_us")
        value = per_step * steps if per_step is not None and steps is not None else None
        row.put(row.reasons.get(f"{name}_us", "the length of an epoch is not known"), **{f"{name}_epoch_us": value})


def _put_identity(row: Row, data: CellData, single: CellData | None) -> None:
    """t_N(b) - t_1(b) in four terms: exposed, change of compute, change of idle, and what the tracer's passes leave."""
    base = single.whole_windows() if single is not None else pd.DataFrame()
    base_us = pooled_median(single.step_samples()) if single is not None else None
    several = tuple(row.number(name) for name in ("exposed_us", "compute_us", "idle_us"))
    step_us = row.number("step_us")
    if single is None or base.empty or base_us is None or step_us is None or None in several:
        why = "needs communication and a traced single-device cell at this batch per device"
        names = tuple(f"added_{term}{end}_us" for term in TERMS for end in ("", "_low", "_high"))
        row.clear(names, why)
        return
    exposed, compute, idle = (value for value in several if value is not None)
    alone = (0.0, float(base["compute_us"].mean()), float(base["idle_us"].mean()))
    terms = step_identity((step_us, base_us), (exposed, compute, idle), alone)
    row.put("", **{f"added_{term}_us": getattr(terms, f"{term}_us") for term in TERMS})
    intervals = identity_intervals(data, single)
    for index, term in enumerate(TERMS):
        low, high = intervals[index] if intervals is not None else (None, None)
        why = f"fewer than {FEWEST_SAMPLES} traced or timed steps: no interval"
        row.put(why, **{f"added_{term}_low_us": low, f"added_{term}_high_us": high})


def identity_intervals(data: CellData, single: CellData) -> list[tuple[float, float]] | None:
    """95% intervals of the identity's TERMS, None with too few steps on either side.

    Repeats and blocks of steps are drawn, a step's three parts together, so that in every draw the four terms add up.
    """
    timed = (data.step_samples(), single.step_samples())
    traced = (_parts_by_step(data), _parts_by_step(single))
    if min(sum(map(len, repeats)) for repeats in (*timed, *traced)) < FEWEST_SAMPLES:
        return None
    generator = np.random.default_rng(0)
    difference = bootstrap(timed[0], generator) - bootstrap(timed[1], generator)
    parts = bootstrap(traced[0], generator, "mean") - bootstrap(traced[1], generator, "mean")
    return [*(interval(parts[:, index]) for index in range(3)), interval(difference - parts.sum(axis=1))]


def _parts_by_step(data: CellData) -> list[Samples]:
    """Per repeat an array (steps, 3): exposed, compute, idle, each a mean over ranks and devices; exposed alone is 0."""
    windows = data.whole_windows()
    if data.cell.devices == 1:
        windows = windows.assign(exposed_us=0.0)
    means = windows.groupby(["repeat", "step"])[["exposed_us", "compute_us", "idle_us"]].mean().astype(float)
    return [group.to_numpy(dtype=float) for _, group in means.groupby(level="repeat")]


def _put_evidence(row: Row, data: CellData, single: CellData | None) -> None:
    """What shows why an estimate is off: waiting for data, and devices that compute longer than others."""
    waits = [_mean_wait_us(one) if one is not None else None for one in (data, single)]
    row.put("no single-device cell at this batch per device", added_data_wait_us=minus(*waits))
    windows = data.whole_windows()
    per_device = (
        windows.groupby(["rank", "device"], dropna=False)["compute_us"].mean().dropna().astype(float).tolist()
        if len(windows)
        else []
    )
    shown_apart = len(per_device) == data.cell.devices
    row.put(
        "the replicas share one process's timeline"
        if data.cell.strategy == "dp-host"
        else "not every device was traced",
        compute_spread=(max(per_device) - min(per_device)) / float(np.mean(per_device)) if shown_apart else None,
    )
    row.put(
        "only DataParallel gathers on its first device"
        if data.cell.strategy != "dp"
        else "not every device was traced",
        first_device_excess_us=per_device[0] - float(np.mean(per_device[1:]))
        if data.cell.strategy == "dp" and shown_apart
        else None,
    )


def _mean_wait_us(data: CellData) -> float | None:
    waits = data.step_samples("data_wait_us")
    return float(np.concatenate(waits).mean()) if waits else None


def _put_ring(row: Row, data: CellData, sources: CostSources) -> None:
    """The ring formula as people use it: gradients over the link's specification."""
    if data.cell.strategy != "ddp":
        row.clear(("ring_us", "ring_error_us"), "DataParallel runs no all-reduce")
        return
    ring = None
    if sources.link_gbps is not None:
        ring = ring_all_reduce_us(reduced_bytes(data.cell, model_sizes(data)), data.cell.devices, sources.link_gbps)
    no_link = "no link bandwidth known: give --link-gbps"
    if sources.calibration is not None:
        no_link = f"{no_link} (the ring formula takes a specification; what the calibration predicts stands apart)"
    row.put(no_link, ring_us=ring)
    why = no_link if ring is None else "transfer is not known"
    row.put(why, ring_error_us=minus(ring, row.number("transfer_us")))


def _put_predictions(row: Row, data: CellData, sources: CostSources) -> None:
    """Predicted transfers and exposed communication; DP, all of whose communication is exposed, has no matched transfers."""
    prediction = predict_cell(data, sources)
    row.put(prediction.transfer_reason or "not predicted", prediction_source=prediction.source)
    measured = row.number("communication_us" if data.cell.strategy == "dp" else "transfer_us")
    for name, predicted, against, reason in (
        ("transfer", prediction.transfer_us, measured, prediction.transfer_reason),
        ("exposed", prediction.exposed_us, row.number("exposed_us"), prediction.exposed_reason),
    ):
        unknown = reason or "not predicted"
        why = unknown if predicted is None else "what was measured is not known, or 0"
        row.put(unknown, **{f"predicted_{name}_us": predicted})
        row.put(why, **{f"predicted_{name}_error": relative_error(predicted, against)})
