"""The comparison: one row a cell, and DP against DDP where both were measured alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
import pandas as pd

from dpscope.analysis.cells.columns import NAMES
from dpscope.analysis.cells.learning import put_accuracy
from dpscope.analysis.cells.measured import summarise_cell
from dpscope.analysis.cells.predicted import CollectivePrediction, predict_cell
from dpscope.analysis.cells.ring_load import runs_all_reduces
from dpscope.analysis.cells.row import Row
from dpscope.analysis.cells.row import minus as _minus
from dpscope.analysis.cells.scaling import ScalingChoice, ScalingSeries, scaling_choices, scaling_series
from dpscope.analysis.cells.strategy_costs import StrategyCost, strategy_costs
from dpscope.analysis.costs.sources import CostSources, RingRate, cost_sources
from dpscope.analysis.runs.cell_data import CellData, knows_batch
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.runs.variant_savings import single_device_baselines, strategy_pairs
from dpscope.analysis.stats.samples import Estimate, Spread, ratio_estimate
from dpscope.analysis.traces.ranks.contention import Contentions
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.run import Cell, Manifest

TRACER_SHARE = 0.25  # of a gap: if tracing changed more than that, the traced parts do not explain it
GAP_PARTS = ("exposed", "host_copies", "compute", "idle")


@dataclass(frozen=True)
class StrategyGap:
    """DP minus DDP at equal devices and batch; microseconds per step.

    `ratio` is DP's median step over DDP's with its 95% interval. The gap of the traced windows' means is the sum of its
    four parts (None where a trace does not tell); `tracer_us` is what they leave of the untraced gap.
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
        """Which of GAP_PARTS, known, is the largest; None where the traces tell none."""
        known = {name: abs(value) for name in GAP_PARTS if (value := getattr(self, f"{name}_us")) is not None}
        return max(known, key=lambda name: known[name]) if known else None

    @property
    def explained(self) -> bool:
        """Whether its parts explain the gap: not where what tracing changed is more than a quarter of it, or any part's size."""
        if self.gap_us is None or self.largest_part is None:
            return False
        tracer_us = abs(self.tracer_us or 0.0)
        largest_us = abs(getattr(self, f"{self.largest_part}_us"))
        return tracer_us < largest_us and tracer_us <= TRACER_SHARE * abs(self.gap_us)

    def record(self) -> dict[str, object]:
        """The gap flattened, as it is written."""
        ratio, parts = self.ratio, ("exposed_us", "host_copies_us", "compute_us", "idle_us", "tracer_us")
        return {
            **{name: getattr(self, name) for name in ("dp", "ddp", "devices", "batch_size")},
            **{"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high, "count": ratio.count},
            **{name: getattr(self, name) for name in ("gap_us", *parts)},
        }


@dataclass(frozen=True)
class Comparison:
    """`table`: a row per planned cell, columns.NAMES; `reasons`: (cell, column) -> why it is missing.

    `costs`: strategies beside the plainer one.
    `scaling`: speedups and their laws by strategy and batch; `predictions`: a row per kind and size of collective;
    `target_efficiency`: what the user asked to be judged against, 0..1; `ring_rates`: what the ring formula divides by.
    """

    table: pd.DataFrame
    reasons: dict[tuple[str, str], str]
    gaps: tuple[StrategyGap, ...]
    scaling: tuple[ScalingSeries, ...] = ()
    choices: tuple[ScalingChoice, ...] = ()
    predictions: tuple[CollectivePrediction, ...] = ()
    target_efficiency: float | None = None
    ring_rates: Mapping[int, RingRate] = field(default_factory=dict)  # by device count
    of_traces: bool = False  # no run was measured: one job, known by its traces alone
    of_script: bool = False  # of a script that was attached to
    over_itself: Mapping[str, Estimate] = field(
        default_factory=dict
    )  # by cell: its throughput over one device under the same strategy
    batches_seen: tuple[str, ...] = ()  # of a script: the batches per device that were detected
    unmeasured_jobs: tuple[str, ...] = ()  # of a script: those that ended before they were measured
    trained_alone: frozenset[str] = frozenset()  # cells of a script whose processes did not train together
    calibrated_later: bool = False  # the calibration was made when the run had begun
    calibrated_engine: str | None = None  # class that ran NCCL in the calibration
    other_engines: Mapping[str, str] = field(default_factory=dict)  # by cell, where it ran on another one
    costs: tuple[StrategyCost, ...] = ()
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)  # by cell, where a step was traced
    contentions: Mapping[str, Contentions] = field(default_factory=dict)  # by cell, where communication was traced
    variants: Mapping[str, str] = field(
        default_factory=dict
    )  # by cell, of those with other options than their strategy's


def compare(
    run: RunData,
    link: LinkRate | None = None,
    calibration: Calibration | None = None,
    target_efficiency: float | None = None,
) -> Comparison:
    """The comparison of a run's cells.

    `link` is what the user states of the link between the devices, else what was stated of the run; `calibration` is one of
    the same machine, with its fits.
    """
    sources = cost_sources(run.recorded, link, calibration)
    spreads = run.spreads
    batched = [data for data in run.measured if knows_batch(data.cell) and not data.trained_alone]
    rows = {
        name: summarise_cell(data, single_device_baselines(run, data.cell), sources.on_nodes(data.nodes), spreads)
        for name, data in run.cells.items()
    }
    workload = run.recorded.config.workload if run.recorded is not None else None
    for name, row in rows.items():
        put_accuracy(row, run.cells[name].cell, workload, run.training)
    table = pd.DataFrame([row.values for row in rows.values()], columns=list(NAMES))
    return Comparison(
        table=table.convert_dtypes(),
        reasons={(name, column): why for name, row in rows.items() for column, why in row.reasons.items()},
        gaps=tuple(_gap(rows, dp, ddp, spreads.step) for dp, ddp in strategy_pairs(run)),
        scaling=scaling_series(batched, lambda cell: single_device_baselines(run, cell), spreads.step),
        choices=scaling_choices(batched, spreads.step),
        predictions=tuple(
            one
            for data in run.measured
            if data.cell.devices > 1 and data.communication_known
            for one in predict_cell(data, sources).collectives
        ),
        target_efficiency=target_efficiency,
        ring_rates=_ring_rates(run, sources),
        of_traces=run.recorded is None,
        batches_seen=_batches_seen(run),
        unmeasured_jobs=_unmeasured_jobs(run),
        over_itself=_over_itself(batched, spreads.step),
        trained_alone=frozenset(data.cell.name for data in run.measured if data.trained_alone),
        of_script=run.recorded is not None and run.recorded.script is not None,
        calibrated_later=run.recorded is not None and calibration is not None and _later(calibration, run.recorded),
        calibrated_engine=calibration.nccl_engine if calibration is not None else None,
        other_engines=_other_engines(run, calibration),
        ledgers={name: row.ledger for name, row in rows.items() if row.ledger is not None},
        contentions={name: row.contentions for name, row in rows.items() if row.contentions is not None},
        costs=strategy_costs(run.measured, rows, spreads.step),
        variants={
            name: data.cell.variant
            for name, data in run.cells.items()
            if isinstance(data.cell, Cell) and data.cell.variant
        },
    )


def _batches_seen(run: RunData) -> tuple[str, ...]:
    """Batches per device and step that were detected in a script, with their micro-batches, smallest first."""
    seen = {
        (data.cell.batch_size, data.cell.options.accumulate)
        for data in run.measured
        if any(one.code == AttachCode.BATCH_AS_SEEN for one in data.findings)
    }
    return tuple(f"{batch} in {parts} micro-batches" if parts > 1 else str(batch) for batch, parts in sorted(seen))


def _unmeasured_jobs(run: RunData) -> tuple[str, ...]:
    findings = run.recorded.findings if run.recorded is not None else ()
    return tuple(one.message.partition(":")[0] for one in findings if one.code == AttachCode.JOB_NOT_MEASURED)


def _over_itself(measured: Sequence[CellData], spread: Spread) -> dict[str, Estimate]:
    """Samples per second of each cell over those of one device under the same strategy, at the same batch per device."""
    alone = {
        msgspec.structs.replace(data.planned, devices=1, nodes=1): data for data in measured if data.cell.devices == 1
    }
    found = {}
    for data in measured:
        one = alone.get(msgspec.structs.replace(data.planned, devices=1, nodes=1)) if data.cell.devices > 1 else None
        if one is not None:
            ratio = ratio_estimate(one.step_samples(), data.step_samples(), spread)
            value, low, high = (
                None if end is None else end * data.cell.devices for end in (ratio.value, ratio.low, ratio.high)
            )
            found[data.cell.name] = Estimate(value, low, high, ratio.count)
    return found


def _other_engines(run: RunData, calibration: Calibration | None) -> dict[str, str]:
    """The cells that ran on another of torch's NCCL engines than their calibration, each with its engine."""
    if calibration is None or calibration.nccl_engine is None:
        return {}
    ran = ((data.cell.name, rank.nccl_engine) for data in run.measured for _, rank in data.ranks)
    return {cell: engine for cell, engine in ran if engine not in (None, calibration.nccl_engine)}


def _ring_rates(run: RunData, sources: CostSources) -> dict[int, RingRate]:
    """The ring formula's rate for every device count at which all-reduces were measured."""
    counts = sorted({data.cell.devices for data in run.measured if runs_all_reduces(data) and data.nodes == 1})
    rates = {count: sources.ring_rate(count) for count in counts}
    return {count: rate for count, rate in rates.items() if rate is not None}


def _later(calibration: Calibration, manifest: Manifest) -> bool:
    """Whether a calibration was measured after the run had begun; logs do not tell when they were."""
    began, calibrated = (datetime.fromisoformat(one.created_at) for one in (manifest, calibration))
    return calibration.source == "measured" and calibrated > began


def _gap(rows: dict[str, Row], dp: CellData, ddp: CellData, spread: Spread) -> StrategyGap:
    ratio = ratio_estimate(dp.step_samples(), ddp.step_samples(), spread)
    first, second = _parts(rows[dp.cell.name], dp), _parts(rows[ddp.cell.name], ddp)
    parts = {name: _minus(first[name], second[name]) for name in first}
    gap = _minus(rows[dp.cell.name].number("step_us"), rows[ddp.cell.name].number("step_us"))
    known = [part for part in parts.values() if part is not None]
    return StrategyGap(
        dp=dp.cell.name,
        ddp=ddp.cell.name,
        devices=dp.cell.devices,
        batch_size=dp.cell.batch_size,
        ratio=ratio,
        dp_label=dp.cell.traits.label,
        gap_us=gap,
        tracer_us=gap - sum(known) if gap is not None and len(known) == len(parts) else None,
        **parts,
    )


def _parts(row: Row, data: CellData) -> dict[str, float | None]:
    """A traced step's four parts: exposed communication, host copies, compute, the rest of idle.

    dp-host communicates by host copies within its process, so what it exposes is host copies. A single CPU process has no
    device to copy to: its host copies are 0 there by definition and not by measurement.
    """
    exposed, copies, idle = row.number("exposed_us"), row.number("host_copy_us"), row.number("idle_us")
    if data.cell.traits.host_copies:
        return {"exposed_us": 0.0, "host_copies_us": exposed, "compute_us": row.number("compute_us"), "idle_us": idle}
    if data.ranks and not data.ranks[0][1].memory:  # a CPU timeline has no copies apart from compute
        copies = 0.0
    return {
        "exposed_us": exposed,
        "host_copies_us": copies,
        "compute_us": row.number("compute_us"),
        "idle_us": _minus(idle, copies),
    }
