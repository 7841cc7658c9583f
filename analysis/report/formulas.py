"""Each model's formula with a run's numbers; the results come from the functions that predict."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpscope.analysis.cells import predicted as model
from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.estimated import ring_loads
from dpscope.analysis.cells.row import CellRow, minus
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import CELL, Field, TextTable, table_of
from dpscope.analysis.text.units import show_bytes, show_time, text
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.profiling.records.finding import counted

_STATISTICS = "collectives: of the fastest rank, as transfers are; schedules, DataParallel's sum: of the slowest rank, alone"
MOST_COLLECTIVES = 4  # per cell; the table of collectives shows more
_RING, _SHARDED_RINGS = "ring all-reduce", "rings of what FSDP gathers and scatters"


@dataclass(frozen=True)
class FormulaLine:
    """One model applied to one cell; microseconds, None is unknown."""

    cell: str
    model: str
    formula: str
    source: str
    predicted_us: float
    measured_us: float | None
    unmeasured: str = ""  # what has no measured value, and why


_FIELDS = (
    CELL,
    Field("model", "model", meaning="The model, and the collective or step it is applied to"),
    Field(
        "formula",
        "formula",
        meaning="With the numbers of this run; S is a size, B a bandwidth, N the number of ranks, alpha a latency",
    ),
    Field("B from", "source", meaning="Source of bandwidth and latency"),
    Field(
        "predicted",
        "predicted_us",
        meaning="The formula's result",
        text=lambda line: show_time(line.predicted_us),
    ),
    Field(
        "measured",
        "measured_us",
        meaning="What the traces show",
        text=lambda line: show_time(line.measured_us),
    ),
    Field(
        "error",
        lambda line: model.relative_error(line.predicted_us, line.measured_us),
        "share",
        "Predicted over measured, minus 1",
    ),
)


def formula_table(run: RunData, comparison: Comparison) -> TextTable:
    """A row per model and multi-device cell; without rows if nothing can be predicted."""
    lines = [
        line
        for data in run.measured
        if data.devices > 1 and data.communication_known
        for line in _lines(data, comparison.rows[data.name], comparison)
    ]
    calibrated = [
        prediction
        for prediction in comparison.predictions
        if prediction.predicted_slowest_us is not None
    ]
    notes = (
        "a ring without latency at the link's specification is a lower bound; a calibration excludes contention with compute",
        "sources: ring: Patarasuk and Yuan, 2009; alpha + S/B: Hockney, 1994; schedule: Li et al., VLDB 2020",
        *(
            [_STATISTICS]
            if any(
                collective.predicted_slowest_us != collective.predicted_us
                for collective in calibrated
            )
            else ()
        ),
        *dict.fromkeys(f"measured NA of {line.unmeasured}" for line in lines if line.unmeasured),
    )
    return table_of("Models: formula, numbers, result", _FIELDS, lines, notes)


def _lines(data: Job, row: CellRow, comparison: Comparison) -> Iterator[FormulaLine]:
    line, costs = partial(FormulaLine, data.name), comparison.collective_costs
    source, ring_source = (
        "calibration" if name == "calibration" else "link's specification"
        for name in (row.text("prediction_source"), row.text("ring_source"))
    )
    if (ring := row.ring_us) is not None:
        name = (
            _SHARDED_RINGS
            if data.traits.sharded
            else f"{_RING} of all gradients"
            if data.ranks
            else _RING
        )
        measured_us = minus(ring, row.ring_error_us)
        unmeasured = _unmeasured(row, f"the {_RING}", "ring_error_us")
        yield line(name, _ring(data, row), ring_source, ring, measured_us, unmeasured)
    predicted = [
        prediction
        for prediction in comparison.predictions
        if prediction.cell == data.name and prediction.predicted_us is not None
    ]
    for collective in predicted[:MOST_COLLECTIVES]:
        assert collective.predicted_us is not None
        assert collective.expected_us is not None
        cost = model.cost_of(
            data, costs, (collective.kind, collective.ranks, collective.size_bytes), "shortest"
        )
        what, formula = f"{collective.kind}, {collective.per_step:.3g} a step", cost.explanation
        if collective.in_step_us is not None:
            slowdown = collective.in_step_us / collective.predicted_us
            alone = show_time(collective.predicted_us)
            formula += f" = {alone} alone, × {slowdown:.3g} next to other work"
        times_us = collective.expected_us, collective.measured_us
        yield line(what, formula, source, *times_us, collective.unmeasured)
    if data.traits.peer_copies and row.predicted_transfer_us is not None:
        what, formula = (
            "DataParallel, all transfers of a step",
            _data_parallel(data, predicted, costs),
        )
        yield line(what, formula, source, row.predicted_transfer_us, row.communication_us)
    elif (exposed := row.predicted_exposed_us) is not None:
        what = "DDP's schedule, exposed communication"
        yield line(what, _schedule(data, costs), source, exposed, *_compared(data, row))


def _compared(data: Job, row: CellRow) -> tuple[float | None, str]:
    """What is exposed, and why nothing is to be compared with a schedule where it includes waiting."""
    if data.not_split is None:
        return row.exposed_us, ""
    return None, _unmeasured(row, "DDP's schedule", "predicted_exposed_error")


def _unmeasured(row: CellRow, what: str, error: str) -> str:
    """Why a model's result has no measured value, by the column of its error; empty if it has one."""
    why = row.reasons.get(error)
    return f"{what}: {why}" if why else ""


def _ring(data: Job, row: CellRow) -> str:
    loads = ring_loads(data)
    rings = []
    for load, rate in zip(loads, row.ring_rates, strict=True):
        twice, size = "2" if load.kind == "all_reduce" else "", show_bytes(load.size_bytes)
        numbers = f"{twice}({load.ranks}−1)/{load.ranks} × {size} / {rate.gb_per_s:.4g} GB/s"
        rings.append(f"{twice}(N−1)/N × S/B = {numbers} (S: {load.what})")
    return "; plus ".join(rings)


def _data_parallel(data: Job, predicted: list[model.CollectivePrediction], costs: Costs) -> str:
    if model.by_nccl(data):
        counts = {
            kind: round(
                sum(collective.per_step for collective in predicted if collective.kind == kind)
            )
            for kind in ("broadcast", "reduce")
        }
        chunks = " + ".join(counted(count, kind) for kind, count in counts.items())
        return f"the sum of its chunks without overlap: {chunks}"
    sizes, link, parts = (
        model.model_sizes(data),
        costs.link(model.cell_place(data)),
        data.options.accumulate,
    )
    assert sizes is not None  # else there is no prediction
    assert link is not None
    moved = show_bytes(2 * sizes.parameter_bytes + sizes.buffer_bytes)
    formula = f"(N−1)(2S + S_buffers)/B = ({data.devices}−1) × {moved} / {link.gb_per_s:.4g} GB/s"
    return formula + (f" × {parts} micro-batches" if parts > 1 else "")


def _schedule(data: Job, costs: Costs) -> str:
    """The schedule in words, with the buckets of one rank's step; the prediction is the mean over
    all ranks and steps.
    """
    first = data.whole_windows.take(np.arange(1))  # the first rank's first whole step
    step = data.tables.collectives.within(first, STEP_KEYS)
    load = model.step_load(data, costs, step)
    shared = f"one of gloo's {load.servers} workers, which share the link, is free"
    rule = (
        f"each all-reduce starts when it is ready and {'the previous one has ended' if load.servers == 1 else shared}; exposed: "
        "what runs after the last one is ready, plus every other collective"
    )
    buckets = model.by_readiness(step.having("kind", "all_reduce"))
    if not 0 < len(buckets) <= 2 * MOST_COLLECTIVES:
        return rule
    alone_us = [model.cost_of(data, costs, key).total_us for key in model.cost_keys(buckets)]
    ready_us = model.ready_us(buckets) - model.ready_us(buckets).min()
    from_first = buckets.assign(cost_us=alone_us, ready_us=ready_us)
    schedule = model.bucket_schedule(from_first, "cost_us", load)
    shown = "; ".join(
        f"ready {show_time(one)}, takes {show_time(cost)} alone, ends {show_time(end)}"
        for one, cost, end in zip(ready_us.tolist(), alone_us, schedule.end_us, strict=True)
    )
    (place,) = first.records(("rank", "step"))
    where = f"Rank {text(place['rank'])}, step {text(place['step'])}, from when its first is ready"
    slowed = f"; {load.calibrated_at}" if load.calibrated_at else ""
    return f"{rule}{slowed}. {where}: {shown}: {show_time(schedule.exposed_us)}"
