"""Cells compared in words: strategies with each other, several devices with one, strong
with weak scaling.
"""

from collections.abc import Iterator, Sequence

from dpscope.analysis.cells.comparison import Comparison, StrategyCost, StrategyGap
from dpscope.analysis.cells.scaling import ScalingChoice, ScalingSeries, devices_text
from dpscope.analysis.stats.samples import CONFIDENCE, Estimate, Verdict, verdict
from dpscope.analysis.text.units import Unit, beside, show, show_bytes, show_changes
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

_MEMORY = {"peak": "peak memory", "state": "parameters, buffers and optimizer state"}
_TIMES: dict[Verdict, str] = {  # of a ratio of step times
    "above": "slower",
    "below": "faster",
    "no_difference_shown": "no significant difference",
    "too_few_samples": "too few steps or repeats to tell",
}
_THROUGHPUTS: dict[Verdict, str] = {**_TIMES, "above": "better", "below": "worse"}
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
    if cost.alone:
        return RunCode.STRATEGY_COST.finding(
            f"{cost_sentence(cost)}; nothing is communicated yet",
            "try --gradient-as-bucket-view and --static-graph, which may lower it",
            script_action="try DDP's gradient_as_bucket_view and static_graph, which may lower it",
            about=where,
        )
    saves_nothing = cost.saved_bytes is not None and cost.saved_bytes <= 0
    action = "it saves no memory here: use it only if it costs no time" if saves_nothing else ""
    return RunCode.STRATEGY_COST.finding(cost_sentence(cost), action, about=where)


def cost_sentence(cost: StrategyCost) -> str:
    """Such as "FSDP's step takes 1.07x DDP's: slower (95% interval 1.05 to 1.09, 60 steps); peak
    memory of a device: 2.1 GB less"."""
    other = "the unwrapped model" if cost.alone else "DDP"
    text = _compared(traits_of(cost.strategy).label, other, cost.ratio)
    if cost.alone or not cost.saved_bytes:
        return text
    amount = f"{show_bytes(abs(cost.saved_bytes))} {'less' if cost.saved_bytes > 0 else 'more'}"
    return f"{text}; {_MEMORY[cost.memory]} of a device: {amount}"


def _compared(strategy: str, other: str, ratio: Estimate) -> str:
    """The ratio of two steps, and what it shows."""
    evidence = f"{bounds(ratio)}, {counted(ratio.count, 'step')}"
    if ratio.low is None:
        evidence = bounds(ratio)  # with the number of steps
    return f"{strategy}'s step takes {ratio.value:.2f}x {other}'s: {_TIMES[verdict(ratio)]} ({evidence})"


def _where(devices: str, cell: str, batch_size: int) -> str:
    """Such as ``2 devices, batch 32 per device, hook-fp16`` of ddp-d2-b32-hook-fp16."""
    where = f"{devices}, batch {batch_size} per device"
    variant = cell.partition(f"-b{batch_size}-")[2]
    return f"{where}, {variant}" if variant else where


def gap_finding(gap: StrategyGap) -> Finding:
    """The ratio of their step times; both must be measured."""
    where = _where(counted(gap.devices, "device"), gap.ddp, gap.batch_size)
    action = _advice(gap)
    if gap.ratio.low is None:
        action = "time at least two repeats (--repeats) with at least five steps in total (--steps)"
    text = _compared(gap.dp_label, "DDP", gap.ratio)
    return RunCode.STRATEGY_GAP.finding(text, action, about=where)


def _advice(gap: StrategyGap) -> str:
    if verdict(gap.ratio) == "no_difference_shown":
        return "measure more repeats (--repeats) if a choice depends on it"
    if gap.largest_part is None or gap.gap_us is None:
        return "the traces do not show where the difference lies"
    if not gap.explained:
        return (
            "use the untraced times: tracing changed the timing too much to explain the difference"
        )
    whole, part = show_changes([gap.gap_us, getattr(gap, f"{gap.largest_part}_us")])
    return f"look at {_PARTS[gap.largest_part]} first: {part} a step, {whole} in all"


def bounds(estimate: Estimate) -> str:
    """Such as ``95% interval 1.20 to 1.40``, or a note that there is none."""
    if estimate.low is None or estimate.high is None:
        return f"{counted(estimate.count, 'step')}, no interval"
    return f"{CONFIDENCE:.0%} interval {beside(estimate.low)} to {beside(estimate.high)}"


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
    points = (point for series in comparison.scaling for point in series.points)
    speedups = {point.cell: (point.devices, point.speedup, "one device") for point in points}
    speedups |= {
        cell: (comparison.rows[cell].devices, speedup, "one device under the same strategy")
        for cell, speedup in comparison.over_itself.items()
        if cell not in speedups
    }
    for cell, (count, speedup, baseline) in speedups.items():
        shown = verdict(speedup, count)
        if shown == "above" or (
            shown == "too_few_samples" and (speedup.value or 0.0) > _SUPERLINEAR * count
        ):
            yield EstimateCode.SUPERLINEAR_SPEEDUP.finding(
                f"{speedup.value:.2f}x the throughput of {baseline} on {counted(count, 'device')} ({bounds(speedup)})",
                "measure one device again, with the same threads and no other load, before using this speedup",
                about=cell,
            )


def strong_or_weak(choice: ScalingChoice) -> Finding:
    """Whether a batch size per device (weak) or in total (strong) has the higher throughput, and by
    how much.
    """
    variant = choice.weak.partition(f"-b{choice.batch_size}-")[2]  # both cells have it
    label = f"{traits_of(choice.strategy).label} {variant}".strip()
    devices = counted(choice.devices, "device")
    name = f"{label} on {devices}, batch {choice.batch_size}"
    per_device = counted(choice.batch_size, "sample")
    return RunCode.STRONG_OR_WEAK.finding(
        f"{per_device} per device (weak) give {show(choice.ratio.value, _RATIO)}x the throughput of {choice.batch_size} in "
        f"all (strong): {_THROUGHPUTS[verdict(choice.ratio)]} ({bounds(choice.ratio)}; {choice.weak} compared with "
        f"{choice.strong})",
        about=name,
    )


def judge_target(scaling: Sequence[ScalingSeries], target: float) -> Iterator[Finding]:
    """Whether each series reaches a target efficiency (0..1), by the intervals of its points.

    A point reaches the target if its whole interval does, and misses it if its whole interval lies
    below; otherwise the result is not significant.
    """
    words: dict[Verdict, str] = {
        "above": "reached",
        "below": "missed",
        "no_difference_shown": "not significant",
        "too_few_samples": "unknown (too few steps or repeats)",
    }
    for series in scaling:
        verdicts = [verdict(point.efficiency, target) for point in series.points]
        results = []
        for point, shown in zip(series.points, verdicts, strict=True):
            reached = point.efficiency
            ends = ""
            if reached.low is not None and reached.high is not None:
                low, high = (
                    beside(100 * end, level=100 * target, digits=0)
                    for end in (reached.low, reached.high)
                )
                ends = f", {low}% to {high}%"
            percent = f"{show(reached.value, _PERCENT)}%{ends}"
            results.append(f"{words[shown]} on {counted(point.devices, 'device')} ({percent})")
        missed = "below" in verdicts
        yield RunCode.TARGET_EFFICIENCY.finding(
            f"target efficiency {target:.0%}: {'; '.join(results)}",
            "use fewer devices or a larger batch per device, and see what the exposed time is spent on"
            if missed
            else "",
            about=series.label,
            severity="warning" if missed else "info",
        )
