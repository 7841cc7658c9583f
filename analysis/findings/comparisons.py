"""Cells compared in words: strategies with each other, several devices with one, strong
with weak scaling.
"""

from collections.abc import Iterator, Sequence

from dpscope.analysis.cells.comparison import Comparison, StrategyCost, StrategyGap
from dpscope.analysis.cells.scaling import ScalingChoice, ScalingPoint, ScalingSeries, devices_text
from dpscope.analysis.findings.facts import compared, ends
from dpscope.analysis.stats.samples import Verdict, verdict
from dpscope.analysis.text.units import Unit, show, show_apart, show_bytes, show_changes
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

_MEMORY = {"peak": "peak memory", "state": "parameters, buffers and optimizer state"}
_INTERVAL = "95% interval "
_THROUGHPUTS: dict[Verdict, str] = {
    "above": "better",
    "below": "worse",
    "no_difference_shown": "no significant difference",
    "too_few_samples": "not judged",
}
_TARGETS: dict[Verdict, str] = {  # of an efficiency
    "above": "reached",
    "below": "missed",
    "no_difference_shown": "not significant",
    "too_few_samples": "unknown (too few steps or repeats)",
}
_PARTS = {  # of a gap: those of GAP_PARTS, and what they leave
    "exposed": "exposed communication",
    "host_copies": "host copies",
    "compute": "compute",
    "idle": "idle",
    "tracer": "unexplained",
}


def strategy_cost_finding(cost: StrategyCost) -> Finding:
    """The cost of a strategy compared with a simpler one."""
    where = _where(devices_text(cost.devices, cost.nodes), cost.cell, cost.batch_size)
    return RunCode.STRATEGY_COST.finding(cost_sentence(cost), about=where)


def cost_sentence(cost: StrategyCost) -> str:
    """Such as "FSDP takes 1.07x DDP's step (1.05 to 1.09): slower; peak memory of a device: 2.1 GB
    less"."""
    other = "the unwrapped model" if cost.alone else "DDP"
    text = compared(traits_of(cost.strategy).label, other, cost.ratio)
    if cost.alone or not cost.saved_bytes:
        return text
    amount = show_bytes(abs(cost.saved_bytes))
    direction = "less" if cost.saved_bytes > 0 else "more"
    return f"{text}; {_MEMORY[cost.memory]} of a device: {amount} {direction}"


def _where(devices: str, cell: str, batch_size: int) -> str:
    """Such as ``2 devices, batch 32 per device, hook-fp16`` of ddp-d2-b32-hook-fp16."""
    where = f"{devices}, batch {batch_size} per device"
    variant = cell.partition(f"-b{batch_size}-")[2]
    return f"{where}, {variant}" if variant else where


def gap_finding(gap: StrategyGap) -> Finding:
    """The ratio of their step times; both must be measured."""
    where = _where(counted(gap.devices, "device"), gap.ddp, gap.batch_size)
    text = compared(gap.dp_label, "DDP", gap.ratio)
    return RunCode.STRATEGY_GAP.finding(text, _advice(gap), about=where)


def _advice(gap: StrategyGap) -> str:
    if verdict(gap.ratio) not in ("above", "below"):
        return "measure more repeats (--repeats) if a choice depends on it"
    if not gap.explained or gap.largest_part is None or gap.gap_us is None:
        return "use the untraced times: the traces do not show where the difference lies"
    whole, part = show_changes([gap.gap_us, getattr(gap, f"{gap.largest_part}_us")])
    return f"look at {_PARTS[gap.largest_part]} first: {part} a step, {whole} in all"


_RATIO = Unit("x", 1.0, 2)
_PERCENT = Unit("%", 0.01, 0)
# times the number of devices, from which on a speedup without an interval is reported
_SUPERLINEAR = 1.1


def scaling_findings(comparison: Comparison) -> Iterator[Finding]:
    """Findings about strong and weak scaling, superlinear speedups and the target efficiency."""
    yield from map(strong_or_weak, comparison.choices)
    yield from superlinear_findings(comparison)
    if comparison.target_efficiency is not None:
        yield from judge_target(comparison.scaling, comparison.target_efficiency)


def superlinear_findings(comparison: Comparison) -> Iterator[Finding]:
    """A warning for each cell that is significantly more than N times as fast as one device, or 10%
    more without an interval.
    """
    speedups = {  # over one device under the same strategy, unless there is a plain one
        cell: (comparison.rows[cell].devices, speedup)
        for cell, speedup in comparison.over_itself.items()
    }
    for series in comparison.scaling:
        for point in series.points:
            speedups[point.cell] = (point.devices, point.speedup)
    for cell, (count, speedup) in speedups.items():
        shown = verdict(speedup, count)
        far_above = (speedup.value or 0.0) > _SUPERLINEAR * count
        if shown == "above" or (shown == "too_few_samples" and far_above):
            times = f"{speedup.value:.2f}x the throughput of one device"
            devices = counted(count, "device")
            yield EstimateCode.SUPERLINEAR_SPEEDUP.finding(
                f"{times} on {devices} {ends(speedup, _INTERVAL)}",
                "measure one device again, with the same threads and no other load, before using this speedup",
                about=cell,
            )


def strong_or_weak(choice: ScalingChoice) -> Finding:
    """Whether a batch size per device (weak) or in total (strong) has the higher throughput, and by
    how much.
    """
    times = show(choice.ratio.value, _RATIO)
    interval = ends(choice.ratio, _INTERVAL)
    judged = _THROUGHPUTS[verdict(choice.ratio)]
    return RunCode.STRONG_OR_WEAK.finding(
        f"{choice.weak} (weak) has {times}x the throughput of {choice.strong} (strong) {interval}: "
        f"{judged}"
    )


def judge_target(scaling: Sequence[ScalingSeries], target: float) -> Iterator[Finding]:
    """Whether each series reaches a target efficiency (0..1), by the intervals of its points.

    A point reaches the target if its whole interval does, and misses it if its whole interval lies
    below; otherwise the result is not significant.
    """
    for series in scaling:
        results = [_against_target(point, target) for point in series.points]
        verdicts = {verdict(point.efficiency, target) for point in series.points}
        text = f"target efficiency {target:.0%}: {'; '.join(results)}"
        if "below" in verdicts:
            advice = "use fewer devices or a larger batch per device, and see what the exposed time is spent on"
            yield RunCode.TARGET_EFFICIENCY.finding(
                text, advice, about=series.label, severity="warning"
            )
        else:
            yield RunCode.TARGET_EFFICIENCY.finding(text, about=series.label)


def _against_target(point: ScalingPoint, target: float) -> str:
    reached = point.efficiency
    judged = _TARGETS[verdict(reached, target)]
    devices = counted(point.devices, "device")
    percent = show(reached.value, _PERCENT)
    if reached.low is None or reached.high is None:
        return f"{judged} on {devices} ({percent}%)"
    low = show_apart(100 * reached.low, level=100 * target, digits=0)
    high = show_apart(100 * reached.high, level=100 * target, digits=0)
    return f"{judged} on {devices} ({percent}%, {low}% to {high}%)"
