"""The one sentence to take away from a run."""

from dpscope.analysis.comparison.compare import Comparison
from dpscope.analysis.comparison.scaling import STRATEGY_NAMES, ScalingPoint, ScalingSeries, devices_text
from dpscope.analysis.findings.communication import communication_finding, known_values
from dpscope.analysis.findings.strategy_costs import sharding_headline
from dpscope.analysis.findings.strategy_gaps import gap_finding
from dpscope.analysis.stats.samples import unshown, verdict

_NOTHING = "No comparison could be made; see the findings."


def best_sentence(comparison: Comparison) -> str:
    """FSDP beside DDP on most devices at the largest batch, else DP against DDP, else the speedup there, else communication.

    Of traces alone, what communication costs.
    """
    if comparison.decisive:
        return comparison.decisive
    said = sharding_headline(comparison.costs) or _gap(comparison) or _speedup(comparison) or _communication(comparison)
    return (said or _NOTHING) + _tokens(comparison)


def _tokens(comparison: Comparison) -> str:
    """Which cell trains most tokens, where samples are made of them."""
    table = comparison.table
    if "tokens_per_s" not in table or table["tokens_per_s"].isna().all():
        return ""
    known = table[table["tokens_per_s"].notna()]
    rates = dict(zip(known["cell"].astype(str), known["tokens_per_s"].astype(float), strict=True))
    best = max(rates, key=lambda cell: rates[cell])
    return f"; most tokens a second: {rates[best]:,.0f} by {best}"


def _gap(comparison: Comparison) -> str:
    if not comparison.gaps:
        return ""
    largest = max(comparison.gaps, key=lambda gap: (gap.devices, gap.batch_size))
    return gap_finding(largest).message if largest.ratio.value is not None else ""


def _speedup(comparison: Comparison) -> str:
    points = [(series, point) for series in comparison.scaling for point in series.points]
    if not points:
        return ""
    series, point = max(points, key=lambda one: (one[1].devices, one[0].scaling == "weak", one[0].batch_size))
    return f"{_devices(series, point)}: {_times(point)}"


def _devices(series: ScalingSeries, point: ScalingPoint) -> str:
    batch = "batch {} per device" if series.scaling == "weak" else "global batch {}"
    strategy = f"{STRATEGY_NAMES[series.strategy]} {series.variant}".strip()
    return f"{strategy} on {devices_text(point.devices, point.nodes)}, {batch.format(series.batch_size)}"


def _times(point: ScalingPoint) -> str:
    """Time per sample against one device's, from median steps: what throughput blocks measure is another number."""
    speedup, shown = point.speedup, verdict(point.speedup)
    value, low, high = speedup.value, speedup.low, speedup.high
    assert value is not None
    if shown == "too_few_samples" or low is None or high is None:
        return f"{_compared(value)}, but {unshown(speedup)}"
    interval = f"95% interval {low:.2f} to {high:.2f}, {speedup.count} steps"
    if shown == "above":
        return f"{_compared(value)} (median steps; {interval})"
    if shown == "below":
        interval = f"95% interval {1 / high:.2f} to {1 / low:.2f}, {speedup.count} steps"
        return f"{_compared(value)} (median steps; {interval})"
    return f"no difference from one device is shown (speedup of the median step {value:.2f}; {interval})"


def _compared(speedup: float) -> str:
    if speedup < 1:
        return f"{1 / speedup:.2f}x slower per sample than one device"
    return f"{speedup:.2f}x the throughput of one device"


def _communication(comparison: Comparison) -> str:
    """Of the first cell whose communication is known."""
    rows = comparison.table.to_dict("records")
    return next((found.message for row in rows for found in communication_finding(known_values(row))), "")
