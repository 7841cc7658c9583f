"""The comparison: one row a cell, DP against DDP where both were measured alike, and what makes up
their difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dpscope.analysis.cells.columns import columns
from dpscope.analysis.cells.device_use import cpu_peaks
from dpscope.analysis.cells.predicted import CollectivePrediction, predictions
from dpscope.analysis.cells.row import CellRow, minus, row_of
from dpscope.analysis.cells.scaling import (
    ScalingChoice,
    ScalingSeries,
    scaling_choices,
    scaling_series,
)
from dpscope.analysis.cells.view import REGISTERED, CellView, Value, if_known
from dpscope.analysis.costs.calibration_files import calibration_of_run
from dpscope.analysis.costs.costs import Costs, machine_costs
from dpscope.analysis.runs.run_data import RunData, load_run
from dpscope.analysis.runs.variant_savings import (
    shared_options,
    single_device_baselines,
    strategy_pairs,
)
from dpscope.analysis.stats.samples import Estimate, Spread, ratio_estimate
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.steps.data_parallel import PHASES
from dpscope.profiling.machine.gpu_speed import StatedFlops
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.run import Cell, Manifest
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.records.strategies import traits_of

if TYPE_CHECKING:
    import pandas as pd

# of a gap: if tracing changed more than that, the traced parts do not explain it
TRACER_SHARE = 0.25
GAP_PARTS = ("exposed", "host_copies", "compute", "idle")


@dataclass(frozen=True)
class StrategyGap:
    """DP minus DDP at equal devices and batch; microseconds per step.

    `ratio` is DP's median step over DDP's with its 95% interval. The gap of the traced windows'
    means is the sum of its four parts (None where a trace does not show it); `tracer_us` is what
    they leave of the untraced gap.
    """

    dp: str  # cells, by name
    ddp: str
    devices: int
    batch_size: int  # per device
    dp_label: str  # what DP is called next to DDP: its stand-in is dp-host
    ratio: Estimate
    gap_us: float | None
    exposed_us: float | None
    host_copies_us: float | None
    compute_us: float | None
    idle_us: float | None
    tracer_us: float | None

    @property
    def largest_part(self) -> str | None:
        """The largest known part of GAP_PARTS; None if the traces show none."""
        known = {
            name: abs(us) for name in GAP_PARTS if (us := getattr(self, f"{name}_us")) is not None
        }
        return max(known, key=lambda name: known[name], default=None)

    @property
    def explained(self) -> bool:
        """Whether its parts explain the gap: not where what tracing changed is more than a quarter
        of it, or any part's size.
        """
        if self.gap_us is None or self.largest_part is None:
            return False
        tracer_us = abs(self.tracer_us or 0.0)
        largest_us = abs(getattr(self, f"{self.largest_part}_us"))
        return tracer_us < largest_us and tracer_us <= TRACER_SHARE * abs(self.gap_us)

    def record(self) -> dict[str, object]:
        """The gap flattened, as it is written."""
        return {
            "dp": self.dp,
            "ddp": self.ddp,
            "devices": self.devices,
            "batch_size": self.batch_size,
            **self.ratio.record("ratio"),
            "count": self.ratio.count,
            "gap_us": self.gap_us,
            "exposed_us": self.exposed_us,
            "host_copies_us": self.host_copies_us,
            "compute_us": self.compute_us,
            "idle_us": self.idle_us,
            "tracer_us": self.tracer_us,
        }


@dataclass(frozen=True)
class StrategyCost:
    """Two cells of equal devices and batch: `ratio` is the median step of `cell` over that of
    `against`, with its interval.

    `saved_bytes` is how much more `memory` a device of `against` holds: peak is that of torch's
    allocator over the timed steps, state that of parameters, buffers and optimizer state between
    steps, where no peak is known.
    """

    cell: str
    against: str
    strategy: str
    devices: int
    batch_size: int  # per device
    ratio: Estimate
    saved_bytes: float | None
    memory: Literal["peak", "state"]
    nodes: int = 1

    @property
    def alone(self) -> bool:
        """Whether it is DDP on one device, which communicates nothing."""
        return self.devices == 1


@dataclass(frozen=True)
class Comparison:
    """`rows`: every planned cell by name, in the order of the plan; `costs`: strategies compared
    with the plainer one.

    `scaling`: speedups and their laws by strategy and batch; `predictions`: a row per kind and size
    of collective; `target_efficiency`: the user's target, 0..1.
    """

    __repr__ = short_repr

    rows: Mapping[str, CellRow] = field(default_factory=dict)
    gaps: tuple[StrategyGap, ...] = ()
    scaling: tuple[ScalingSeries, ...] = ()
    choices: tuple[ScalingChoice, ...] = ()
    predictions: tuple[CollectivePrediction, ...] = ()
    target_efficiency: float | None = None
    # dpscope chose how the cells ran, rather than a script or the author of traces
    knows_options: bool = True
    # by cell: over one device under the same strategy
    over_itself: Mapping[str, Estimate] = field(default_factory=dict)
    batches_seen: tuple[str, ...] = ()  # of a script: the batches per device that were detected
    unmeasured_jobs: tuple[str, ...] = ()  # of a script: those that ended before they were measured
    # cells that say nothing about more devices, and why
    no_scaling: Mapping[str, str] = field(default_factory=dict)
    calibrated_later: bool = False  # the calibration was made when the run had begun
    calibrated_engine: str | None = None  # class that ran NCCL in the calibration
    # by cell, where it ran on another one
    other_engines: Mapping[str, str] = field(default_factory=dict)
    costs: tuple[StrategyCost, ...] = ()
    # by cell, where options differ from its strategy's
    variants: Mapping[str, str] = field(default_factory=dict)
    collective_costs: Costs = field(default_factory=Costs)  # what predictions are based on

    @property
    def timed(self) -> bool:
        """Whether any step was timed without the tracer; of traces alone none was."""
        return self.has("step_us")

    def has(self, column: str) -> bool:
        """Whether any cell has a value in this column."""
        return any(row.value(column) is not None for row in self.rows.values())

    def values(self, column: str) -> list[Value]:
        """A column's value of each cell."""
        return [row.value(column) for row in self.rows.values()]

    @property
    def reasons(self) -> dict[tuple[str, str], str]:
        """(cell, column) -> why the value is missing."""
        return {
            (name, column): why
            for name, row in self.rows.items()
            for column, why in row.reasons.items()
        }

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A row per cell with every column, of the Python API: a missing number is NaN in a column
        of floats.
        """
        import pandas as pd

        names = [column.name for column in columns()]
        return pd.DataFrame({name: _column(name, self.values(name)) for name in names})


def _column(name: str, values: Any) -> "pd.Series[Any]":
    import pandas as pd

    # also where all values are missing
    words: Any = {"text": "string", "flag": "boolean"}.get(REGISTERED[name].quantity)
    if words is not None:
        series: pd.Series[Any] = pd.Series(values, dtype=words)
        return series
    lost = any(value is None for value in values)
    return pd.Series(values, dtype=float) if lost else pd.Series(values)


def _loaded(run: RunData | str | Path) -> RunData:
    return run if isinstance(run, RunData) else load_run(run)


def compare(
    run: RunData | str | Path,
    link: LinkRate | None = None,
    calibration: Calibration | None = None,
    target_efficiency: float | None = None,
    flops: StatedFlops | None = None,
) -> Comparison:
    """The comparison of a run's cells; `run` may be its folder.

    `link` is what the user states of the link between the devices, else what was stated of the run;
    `calibration` is one of the same machine, with its fits, else that in the run's folder;
    `target_efficiency` (0..1) else the run's. `flops` are those of cells that did not count them,
    as the user states them.
    """
    run = _loaded(run)
    recorded, spread = run.recorded, run.spreads.step
    if recorded is not None:
        calibration = calibration or calibration_of_run(run.path)
        target_efficiency = target_efficiency or recorded.config.reporting.target_efficiency
    costs = machine_costs(recorded, link, calibration)
    views = views_of(run, costs, flops)
    rows = {name: row_of(view) for name, view in views.items()}
    by_cell = [if_known(predictions, view) or () for view in views.values()]
    batched = _scalable(run)
    return Comparison(
        rows=rows,
        gaps=tuple(_gap(rows, dp, ddp, spread) for dp, ddp in strategy_pairs(run)),
        scaling=scaling_series(
            batched, lambda cell: single_device_baselines(run.measured, cell), spread
        ),
        choices=scaling_choices(batched, spread),
        predictions=tuple(row for rows_of_cell in by_cell for row in rows_of_cell),
        collective_costs=costs,
        target_efficiency=target_efficiency,
        batches_seen=_batches_seen(run),
        unmeasured_jobs=_unmeasured_jobs(recorded),
        over_itself=_over_itself(batched, spread),
        no_scaling={data.name: data.no_scaling for data in run.measured if data.no_scaling},
        knows_options=all(data.knows_options for data in run.measured),
        calibrated_later=_calibrated_later(recorded, calibration),
        calibrated_engine=calibration.nccl_engine if calibration is not None else None,
        other_engines=_other_engines(run, calibration),
        costs=_costs(run.measured, rows, spread),
        variants={name: data.variant for name, data in run.cells.items() if data.variant},
    )


def _scalable(run: RunData) -> list[Job]:
    """The measured cells whose steps say what more devices gain."""
    return [data for data in run.measured if data.plan is not None and not data.no_scaling]


def _batches_seen(run: RunData) -> tuple[str, ...]:
    """Batches per device of a script's cells, as far as they were only detected."""
    seen = AttachCode.BATCH_AS_SEEN.code
    batches = set()
    for data in run.measured:
        if any(finding.code == seen for finding in data.findings):
            count = data.options.accumulate
            text = data.batch_text + f" in {count} micro-batches" * (count > 1)
            batches.add((data.cell.batch_size, count, text))
    return tuple(text for _, _, text in sorted(batches))


def _unmeasured_jobs(recorded: Manifest | None) -> tuple[str, ...]:
    findings = recorded.findings if recorded is not None else ()
    code = AttachCode.JOB_NOT_MEASURED.code
    return tuple(finding.about for finding in findings if finding.code == code)


def _calibrated_later(recorded: Manifest | None, calibration: Calibration | None) -> bool:
    """Whether the calibration was made when the run had begun; a log has no time."""
    if recorded is None or calibration is None or calibration.source != "measured":
        return False
    return datetime.fromisoformat(calibration.created_at) > datetime.fromisoformat(
        recorded.created_at
    )


def _other_engines(run: RunData, calibration: Calibration | None) -> dict[str, str]:
    """By cell, the class that ran NCCL where it is not that of the calibration."""
    engine = calibration.nccl_engine if calibration is not None else None
    if engine is None:
        return {}
    ran = ((data.name, rank.nccl_engine) for data in run.measured for _, rank in data.ranks)
    return {cell: other for cell, other in ran if other not in (None, engine)}


def views_of(run: RunData, costs: Costs, flops: StatedFlops | None = None) -> dict[str, CellView]:
    """The view of each cell of a run by name, each knowing those of the single devices that it is
    compared with.
    """
    peaks = cpu_peaks(run.measured)
    unmeasured = [data for data in run.cells.values() if not data.measured]
    views = {
        name: CellView(
            data,
            costs,
            run.spreads,
            peaks=peaks,
            flops=flops,
            workload=run.recorded.config.workload if run.recorded is not None else None,
            training=run.training,
        )
        for name, data in run.cells.items()
    }
    for view in views.values():
        planned = single_device_baselines(unmeasured, view.data.plan)
        measured = single_device_baselines(run.measured, view.data.plan)
        singles = {**planned, **measured}
        view.singles.update({batch: views[single.name] for batch, single in singles.items()})
    return views


def _costs(
    measured: Sequence[Job], rows: Mapping[str, CellRow], spread: Spread
) -> tuple[StrategyCost, ...]:
    """Each measured cell with its plainer one: DDP for FSDP and replicate, a single device for DDP
    on one device.
    """
    planned = {data.plan: data for data in measured}
    pairs = [(data, planned.get(_plainer(data.plan))) for data in measured if data.plan is not None]
    return tuple(_cost(data, other, rows, spread) for data, other in pairs if other is not None)


def _plainer(cell: Cell) -> Cell | None:
    """It has DDP's defaults; that of a sharded cell DDP's hook of the same type, in which both then
    reduce.
    """
    plainer = cell.traits.plainer
    if plainer is None or (traits_of(plainer).baseline and cell.devices > 1):
        return None
    kept = shared_options(cell.options)
    if cell.traits.sharded:
        kept = msgspec.structs.replace(kept, comm_hook=cell.options.comm_hook)
    return Cell(plainer, cell.devices, cell.batch_size, options=kept, nodes=cell.nodes)


def _cost(data: Job, other: Job, rows: Mapping[str, CellRow], spread: Spread) -> StrategyCost:
    more, less = rows[other.name], rows[data.name]
    memory: Literal["peak", "state"] = "peak"
    saved = minus(more.peak_allocated_bytes, less.peak_allocated_bytes)
    if saved is None:
        saved, memory = minus(more.state_bytes, less.state_bytes), "state"
    return StrategyCost(
        cell=data.name,
        against=other.name,
        strategy=data.strategy,
        devices=data.devices,
        batch_size=data.cell.batch_size,
        ratio=ratio_estimate(data.step_samples(), other.step_samples(), spread),
        saved_bytes=saved,
        memory=memory,
        nodes=data.nodes,
    )


def _over_itself(measured: Sequence[Job], spread: Spread) -> dict[str, Estimate]:
    """Samples per second of each cell over those of one device under the same strategy, at the same
    batch per device.
    """
    alone = {_on_one_device(data): data for data in measured if data.devices == 1}
    found = {}
    for data in measured:
        single = alone.get(_on_one_device(data))
        if data.devices > 1 and single is not None:
            ratio = ratio_estimate(single.step_samples(), data.step_samples(), spread)
            found[data.name] = ratio.times(data.devices)
    return found


def _on_one_device(data: Job) -> Cell:
    return msgspec.structs.replace(data.cell, devices=1, nodes=1)


def _gap(rows: Mapping[str, CellRow], dp: Job, ddp: Job, spread: Spread) -> StrategyGap:
    more, less = (_parts(rows[measured.name], measured) for measured in (dp, ddp))
    parts = {name: minus(more[name], less[name]) for name in more}
    gap_us = minus(rows[dp.name].step_us, rows[ddp.name].step_us)
    known = [part for part in parts.values() if part is not None]
    return StrategyGap(
        dp=dp.name,
        ddp=ddp.name,
        devices=dp.devices,
        batch_size=dp.cell.batch_size,
        ratio=ratio_estimate(dp.step_samples(), ddp.step_samples(), spread),
        dp_label=dp.traits.label,
        gap_us=gap_us,
        tracer_us=gap_us - sum(known) if gap_us is not None and len(known) == len(parts) else None,
        **parts,
    )


def _parts(row: CellRow, data: Job) -> dict[str, float | None]:
    """A traced step's four parts: exposed communication, host copies, compute, the rest of idle.

    dp-host communicates by host copies within its process, so what it exposes is host copies. A
    single CPU process has no device to copy to: its host copies are 0 there by definition and not
    by measurement.
    """
    exposed, copies, idle = row.exposed_us, row.host_copy_us, row.idle_us
    if data.traits.host_copies:
        exposed, copies = 0.0, exposed
    else:
        # a CPU timeline has no copies apart from compute
        if data.ranks and not data.ranks[0][1].memory:
            copies = 0.0
        idle = minus(idle, copies)
    return {
        "exposed_us": exposed,
        "host_copies_us": copies,
        "compute_us": row.compute_us,
        "idle_us": idle,
    }


@dataclass(frozen=True)
class WaterfallPart:
    """One step of the waterfall; `key` names its colour, microseconds are DP minus DDP."""

    key: str
    label: str
    gap_us: float


_NAMED = {  # phase -> colour and label
    "scatter": ("scatter", "scatter"),
    "replicate": ("replicate", "replicate"),
    "gather": ("gather", "gather"),
    "loss_backward": ("loss_backward", "copies in backward"),
    "gradient_reduce": ("gradient_reduce", "gradient reduce"),
}


def gap_parts(
    run: RunData, comparison: Comparison, gap: StrategyGap
) -> tuple[WaterfallPart, ...] | None:
    """The parts of one gap, without empty ones; None if the traces do not show them all.

    DDP's exposed communication is subtracted first, DataParallel's is added phase by phase, then
    the changes of host copies, compute and idle, and what the traced steps leave of the untraced
    gap.
    """
    dp_us, ddp_us = (comparison.rows[name].exposed_us for name in (gap.dp, gap.ddp))
    # dp-host's own copying is its communication, and is counted by phase here.
    dp_copies_us = dp_us if run.cells[gap.dp].traits.host_copies else 0.0
    by_phase = exposed_by_phase(run.cells[gap.dp])
    parts = [
        ("exposed", "DDP's exposed communication", minus(0.0, ddp_us)),
        *((*_NAMED.get(name, (name, name)), value) for name, value in by_phase.items()),
        ("exposed", "other exposed communication", minus(dp_us, sum(by_phase.values()))),
        ("copies", "host copies", minus(gap.host_copies_us, dp_copies_us)),
        ("compute", "compute", gap.compute_us),
        ("idle", "idle", gap.idle_us),
        ("unexplained", "unexplained", gap.tracer_us),
    ]
    known = [WaterfallPart(key, label, us) for key, label, us in parts if us is not None]
    if len(known) < len(parts):
        return None
    return tuple(part for part in known if abs(part.gap_us) > 1e-3)


def exposed_by_phase(data: Job) -> dict[str, float]:
    """Exposed communication of each DataParallel phase on the critical device, mean over whole
    steps, microseconds.
    """
    windows, every = data.critical_windows, data.tables.dp_phases
    own = every.take(~every.known("replica")).within(windows, STEP_KEYS)
    phases = own.group("phase")
    names = own.words("phase")[phases.first].tolist()
    sums_us = dict(zip(names, phases.sums(own["exposed_us"]).tolist(), strict=True))
    return {name: sums_us[name] / len(windows) for name in PHASES if sums_us.get(name, 0.0) > 0}
