"""The gain of a cell over one device, by each estimator; what to measure where there is none."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.scaling import ScalingSeries
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.runs.variant_savings import single_device_baselines
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.attach_codes import WITHOUT_TORCHRUN
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.plan_codes import PlanCode

BY_TOTAL, BY_BLOCKS = "by the total time of the same steps", "by whole blocks"


@dataclass(frozen=True)
class Gain:
    """Samples per second over those of one device: by the median step, `others` by estimator.

    `weak`: at the same batch per device, where that was measured; else at one device's batch split.
    """

    by_median: Estimate
    weak: bool = True
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def estimators_agree(self) -> bool:
        """Whether all estimators are above one device's throughput, or all below it."""
        every = (self.by_median.value, *self.others.values())
        values = [value for value in every if value is not None]
        return min(values, default=1.0) >= 1.0 or max(values, default=1.0) <= 1.0

    @property
    def others_text(self) -> str:
        """Such as ``1.12x by the total time of the same steps, 1.19x by whole blocks``."""
        return ", ".join(f"{value:.2f}x {name}" for name, value in self.others.items())


def gain_of(run: RunData, comparison: Comparison, cell: str) -> Gain | None:
    """None for a cell that was not compared with one device, or has no timed step."""
    weak_first = sorted(comparison.scaling, key=lambda series: series.scaling != "weak")
    for series in weak_first:
        for point in series.points:
            if point.cell == cell and point.speedup.value is not None:
                others = _other_estimates(run, comparison, cell, series)
                return Gain(point.speedup, series.scaling == "weak", others)
    return None


def _other_estimates(
    run: RunData, comparison: Comparison, cell: str, series: ScalingSeries
) -> dict[str, float]:
    data = run.cells[cell]
    found: dict[str, float] = {}
    single = single_device_baselines(run.measured, data.cell).get(series.batch_size)
    if single is None:
        return found
    # at the same batch per device, a step of several trains more samples
    times_as_many = data.devices if series.scaling == "weak" else 1
    found[BY_TOTAL] = _mean_step_us(single) / _mean_step_us(data) * times_as_many
    alone = comparison.rows[single.name].block_samples_per_s
    several = comparison.rows[cell].block_samples_per_s
    if alone and several:
        found[BY_BLOCKS] = several / alone
    return found


def _mean_step_us(data: Job) -> float:
    return float(np.mean(np.concatenate(data.step_samples())))


def no_baseline(run: RunData, comparison: Comparison) -> Iterator[Finding]:
    """A warning if cells of a script have no single-device cell to be compared with, unless its
    finding gives the reason.
    """
    script = run.manifest.script
    if script is None or WITHOUT_TORCHRUN in comparison.unmeasured_jobs:
        return
    without = [
        data.name
        for data in run.measured
        if data.devices > 1
        and data.knows_samples
        and not data.trained_alone
        and {data.cell.batch_size, data.global_batch_size}.isdisjoint(
            single_device_baselines(run.measured, data.cell)
        )
    ]
    if without:
        command = f"dpscope attach --devices single --out {shlex.quote(str(run.path))} -- {script}"
        yield PlanCode.NO_BASELINE.finding(
            f"{', '.join(without)}: no single-device cell with the same options, so efficiency and speedup are missing",
            f"run the script on one device without torchrun, into the same folder: {command}",
        )
