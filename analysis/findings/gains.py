"""The gain of a cell over one device: by each estimator, and at the same global batch next to the
same batch per device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.scaling import ScalingSeries
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.runs.variant_savings import single_device_baselines
from dpscope.analysis.stats.samples import Estimate

BY_TOTAL, BY_BLOCKS = "by the total time of the same steps", "by whole blocks"


@dataclass(frozen=True)
class Gain:
    """Samples per second over those of one device: by the median step, `others` by estimator.

    At the same batch per device where that was measured, then `at_same_global_batch` is the gain at
    one device's batch split.
    """

    by_median: Estimate
    others: Mapping[str, float] = field(default_factory=dict)
    at_same_global_batch: Estimate | None = None

    @property
    def estimators_agree(self) -> bool:
        """Whether all estimators are above one device's throughput, or all below it."""
        values = [
            *self.others.values(),
            *([] if self.by_median.value is None else [self.by_median.value]),
        ]
        return min(values, default=1.0) >= 1.0 or max(values, default=1.0) <= 1.0

    @property
    def others_text(self) -> str:
        """Such as ``1.12x by the total time of the same steps, 1.19x by whole blocks``."""
        return ", ".join(f"{value:.2f}x {name}" for name, value in self.others.items())


def gain_of(run: RunData, comparison: Comparison, cell: str) -> Gain | None:
    """None for a cell that was not compared with one device."""
    weak_first = sorted(comparison.scaling, key=lambda series: series.scaling != "weak")
    points = [
        (series, point) for series in weak_first for point in series.points if point.cell == cell
    ]
    if not points:
        return None
    series, point = points[0]
    strong = next((other.speedup for kind, other in points[1:] if kind.scaling == "strong"), None)
    return Gain(point.speedup, _other_estimates(run, comparison, cell, series), strong)


def _other_estimates(
    run: RunData, comparison: Comparison, cell: str, series: ScalingSeries
) -> dict[str, float]:
    data, found = run.cells[cell], dict[str, float]()
    single = single_device_baselines(run, data.cell).get(series.batch_size)
    if single is None:
        return found
    times_us = [float(np.mean(np.concatenate(one.step_samples()))) for one in (single, data)]
    found[BY_TOTAL] = times_us[0] / times_us[1] * (data.devices if series.scaling == "weak" else 1)
    alone, several = (comparison.rows[one.name].block_samples_per_s for one in (single, data))
    if alone and several:
        found[BY_BLOCKS] = several / alone
    return found
