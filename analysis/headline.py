"""The one sentence to take away from a run."""

from collections.abc import Sequence

from dpscope.analysis.comparison import Comparison
from dpscope.analysis.run_scaling import STRATEGY_NAMES, ScalingPoint, ScalingSeries
from dpscope.profiling.run_types import Finding


def best_sentence(comparison: Comparison, findings: Sequence[Finding]) -> str:
    """DP against DDP on most devices at the largest batch, else the speedup there, else communication."""
    return _gap(comparison, findings) or _speedup(comparison) or _first(findings, "communication_measured")


def _gap(comparison: Comparison, findings: Sequence[Finding]) -> str:
    if not comparison.gaps:
        return ""
    largest = max(comparison.gaps, key=lambda gap: (gap.devices, gap.batch_size))
    where = f"{largest.devices} devices, batch {largest.batch_size} per device: "
    said = [one.message for one in findings if one.code in ("strategy_gap", "strategies_not_compared")]
    return next((message for message in said if message.startswith(where)), "")


def _speedup(comparison: Comparison) -> str:
    points = [(series, point) for series in comparison.scaling for point in series.points]
    if not points:
        return ""
    series, point = max(points, key=lambda one: (one[1].devices, one[0].scaling == "weak", one[0].batch_size))
    return f"{_devices(series, point)}: {_times(point)}"


def _devices(series: ScalingSeries, point: ScalingPoint) -> str:
    batch = "batch {} per device" if series.scaling == "weak" else "global batch {}"
    strategy = f"{STRATEGY_NAMES[series.strategy]} {series.variant}".strip()
    return f"{strategy} on {point.devices} devices, {batch.format(series.batch_size)}"


def _times(point: ScalingPoint) -> str:
    speedup = point.speedup
    interval = (
        f"95% interval {speedup.low:.2f} to {speedup.high:.2f}, {speedup.count} steps"
        if speedup.low is not None and speedup.high is not None
        else f"{speedup.count} steps: no interval"
    )
    return f"{speedup.value:.2f} times the samples per second of one device ({interval})"


def _first(findings: Sequence[Finding], code: str) -> str:
    found = (finding.message for finding in findings if finding.code == code)
    return next(found, "No comparison could be made; see the findings.")
