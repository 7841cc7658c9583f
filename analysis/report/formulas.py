"""Each model's formula with a run's numbers; the results come from the functions that predict."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pandas as pd

from dpscope.analysis.cells.bandwidths import RingLoad, ring_loads
from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import (
    CollectivePrediction,
    by_nccl,
    model_sizes,
    ready_column,
    relative_error,
    servers,
    step_load,
)
from dpscope.analysis.cells.row import CellRow, minus
from dpscope.analysis.costs.calibration_fit import find_fit, piece_of
from dpscope.analysis.costs.collective_streams import ddp_schedule
from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, Unit, show, show_bytes, show_time
from dpscope.profiling.records.finding import counted

MOST_COLLECTIVES = 4  # per cell; the table of collectives shows more
_ERROR = Unit("%", 0.01, 1)
_SPECIFICATION = "link's specification"
_RING = "ring all-reduce"
_SHARDED_RINGS = "rings of what FSDP gathers and scatters"


@dataclass(frozen=True)
class FormulaLine:
    """One model applied to one cell; microseconds, None is unknown."""

    cell: str
    model: str
    formula: str
    source: str
    predicted_us: float | None
    measured_us: float | None


def formula_table(run: RunData, comparison: Comparison, sources: CostSources) -> TextTable | None:
    """A row per model and multi-device cell; None if nothing can be predicted."""
    lines = [
        line
        for data in run.measured
        if data.cell.devices > 1 and data.communication_known
        for line in _lines(data, comparison.rows[data.cell.name], comparison, sources.on_nodes(data.nodes))
        if line.predicted_us is not None
    ]
    if not lines:
        return None
    return TextTable(
        title="Models: formula, numbers, result",
        headings=("cell", "model", "formula", "B from", "predicted", "measured", "error [%]"),
        rows=tuple(
            (
                line.cell,
                line.model,
                line.formula,
                line.source,
                show_time(line.predicted_us),
                show_time(line.measured_us) if line.measured_us is not None else NA,
                show(relative_error(line.predicted_us, line.measured_us), _ERROR),
            )
            for line in lines
        ),
        notes=(
            "a ring without latency at the link's specification is a lower bound; a calibration excludes contention with compute",
            "sources: ring: Patarasuk and Yuan, 2009; alpha + S/B: Hockney, 1994; schedule: Li et al., VLDB 2020",
            *_why_unmeasured(lines, comparison),
        ),
    )


def _why_unmeasured(lines: list[FormulaLine], comparison: Comparison) -> Iterator[str]:
    """Why predictions have no measured value."""
    unknown = [line for line in lines if line.measured_us is None]
    rings = dict.fromkeys(line.cell for line in unknown if line.model.startswith((_RING, _SHARDED_RINGS)))
    for why in dict.fromkeys(comparison.reasons.get((cell, "ring_error_us")) for cell in rings):
        yield f"measured NA of the {_RING}: {why or NA}"
    if any(not line.model.startswith((_RING, _SHARDED_RINGS)) for line in unknown):
        yield "measured NA: ranks do not wait for each other in rooted collectives, which have no transfer to compare with"


def _lines(data: CellData, row: CellRow, comparison: Comparison, sources: CostSources) -> Iterator[FormulaLine]:
    line = partial(FormulaLine, data.cell.name)
    source, ring_source = map(_source, (row.prediction_source, row.ring_source))
    if (ring := row.ring_us) is not None:
        yield line(_ring_name(data), _ring(data, sources), ring_source, ring, minus(ring, row.ring_error_us))
    predicted = [one for one in comparison.predictions if one.cell == data.cell.name and one.predicted_us is not None]
    for one in predicted[:MOST_COLLECTIVES]:
        what = f"{one.kind}, {one.per_step:.3g} a step"
        yield line(what, _collective(one, sources), source, one.predicted_us, one.measured_us)
    if data.cell.traits.peer_copies and row.predicted_transfer_us is not None:
        what, formula = "DataParallel, all transfers of a step", _data_parallel(data, predicted, sources)
        yield line(what, formula, source, row.predicted_transfer_us, row.communication_us)
    elif (exposed := row.predicted_exposed_us) is not None:
        what = "DDP's schedule, exposed communication"
        yield line(what, _schedule(data, sources), source, exposed, row.exposed_us)


def _source(name: str | None) -> str:
    return "calibration" if name == "calibration" else _SPECIFICATION


def _ring(data: CellData, sources: CostSources) -> str:
    loads = ring_loads(data)
    assert not isinstance(loads, str)  # else there is no ring
    return "; plus ".join(_one_ring(load, sources) for load in loads)


def _one_ring(load: RingLoad, sources: CostSources) -> str:
    rate, ranks = sources.ring_rate(load.ranks, load.kind), load.ranks
    assert rate is not None
    shown, twice = f"{show_bytes(load.size_bytes)} / {rate.gb_per_s:.4g} GB/s", "2" if load.kind == "all_reduce" else ""
    return f"{twice}(N−1)/N × S/B = {twice}({ranks}−1)/{ranks} × {shown} (S: {load.what})"


def _ring_name(data: CellData) -> str:
    if data.cell.traits.sharded:
        return _SHARDED_RINGS
    return f"{_RING} of all gradients" if data.ranks else _RING


def _collective(one: CollectivePrediction, sources: CostSources) -> str:
    """alpha + S/B of the fit's piece for this size; by specification the ring's bus factor x S/B."""
    if (calibration := sources.calibrated(one.ranks)) is not None:
        fit = find_fit(calibration, one.kind, one.ranks)
        assert fit is not None  # else there is no prediction
        piece = piece_of(fit, one.size_bytes)
        if piece.bandwidth_gb_per_s is None:
            return f"alpha = {show_time(piece.alpha_us)} (S = {show_bytes(one.size_bytes)} makes no difference)"
        beyond = ", extrapolated" if one.extrapolated else ""
        alpha = f"{'−' if piece.alpha_us < 0 else ''}{show_time(abs(piece.alpha_us))}"
        return f"alpha + S/B = {alpha} + {show_bytes(one.size_bytes)} / {piece.bandwidth_gb_per_s:.4g} GB/s{beyond}"
    factor = bus_factor(one.kind, one.ranks)
    return f"f × S/B = {factor:.4g} × {show_bytes(one.size_bytes)} / {_link(sources, one.ranks)} (f: bus factor)"


def _data_parallel(data: CellData, predicted: list[CollectivePrediction], sources: CostSources) -> str:
    if by_nccl(data):
        counts = {
            kind: round(sum(one.per_step for one in predicted if one.kind == kind)) for kind in ("broadcast", "reduce")
        }
        chunks = " + ".join(counted(count, kind) for kind, count in counts.items())
        return f"the sum of its chunks without overlap: {chunks}"
    sizes, devices = model_sizes(data), data.cell.devices
    assert sizes is not None  # else there is no prediction
    moved = 2 * sizes.parameter_bytes + sizes.buffer_bytes
    return f"(N−1)(2S + S_buffers)/B = ({devices}−1) × {show_bytes(moved)} / {_link(sources, devices)}" + (
        f" × {data.cell.options.accumulate} micro-batches" if data.cell.options.accumulate > 1 else ""
    )


def _link(sources: CostSources, devices: int) -> str:
    link = sources.link(devices)
    assert link is not None  # else there is no prediction
    return f"{link.gb_per_s:.4g} GB/s"


def _schedule(data: CellData, sources: CostSources) -> str:
    """The schedule in words, with the buckets of one rank's step; the prediction is the mean over all ranks and steps."""
    count = servers(data)
    free = (
        "the previous one has ended" if count == 1 else f"one of gloo's {count} workers, which share the link, is free"
    )
    rule = (
        f"each all-reduce starts when it is ready and {free}; exposed: what runs after the last one is ready, plus every other "
        "collective"
    )
    step = _one_step(data)
    ready = ready_column(step)
    buckets = step[step["kind"] == "all_reduce"].sort_values(ready, kind="stable")
    keys = zip(buckets["kind"], buckets["group_size"], buckets["bytes"], strict=True)
    costs = [sources.cost(str(kind), int(ranks), float(size)) for kind, ranks, size in keys]
    known = [cost for cost in costs if cost is not None]
    if not known or len(known) < len(costs) or len(known) > 2 * MOST_COLLECTIVES:
        return rule
    times = buckets[ready].astype(float)
    from_first = [float(time) for time in times - times.min()]
    load = step_load(data, sources, step)
    schedule = ddp_schedule(from_first, known, load.servers, load.slowdown, load.beside_compute)
    shown = "; ".join(
        f"ready {show_time(one)}, takes {show_time(cost)} alone, ends {show_time(end)}"
        for one, cost, end in zip(from_first, known, schedule.end_us, strict=True)
    )
    where = f"Rank {step['rank'].iloc[0]}, step {step['step'].iloc[0]}"
    slowed = f"; {load.calibrated_at}" if load.calibrated_at else ""
    return f"{rule}{slowed}. {where}: {shown}: {show_time(schedule.exposed_us)}"


def _one_step(data: CellData) -> pd.DataFrame:
    """The collectives of the first rank's first whole step."""
    windows = data.whole_windows
    keys = ["repeat", "rank", "device", "step"]
    return data.collectives.merge(windows[keys].head(1), on=keys)
