"""Cells compared in words and tables: strategies with each other, several devices with one, strong
with weak scaling.
"""

from collections.abc import Iterator, Sequence

from dpscope.analysis.cells.comparison import Comparison, StrategyCost, StrategyGap
from dpscope.analysis.cells.scaling import ScalingChoice, ScalingSeries, devices_text
from dpscope.analysis.findings.ledger_text import in_a_script
from dpscope.analysis.stats.samples import (
    CONFIDENCE,
    FEWEST_SAMPLES,
    Estimate,
    Verdict,
    missing_evidence,
    verdict,
)
from dpscope.analysis.text.units import NA, show_bytes, show_change, show_time
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

_MEMORY = {"peak": "of peak memory", "state": "of parameters, buffers and optimizer state"}
_PARTS = {  # of a gap: those of GAP_PARTS, and what they leave
    "exposed": "exposed communication",
    "host_copies": "host copies",
    "compute": "compute",
    "idle": "idle",
    "tracer": "tracer",
}


def strategy_cost_finding(cost: StrategyCost, knows_options: bool = True) -> Finding:
    """The cost of a strategy compared with a simpler one; `knows_options` as in `Comparison`."""
    code = RunCode.DDP_ALONE if cost.alone else RunCode.STRATEGY_COST
    next_step = code.next_step
    if not cost.alone and cost.saved_bytes is not None and cost.saved_bytes <= 0:
        next_step = "it saves no memory here: use it only if it costs no time"
    where = _where(devices_text(cost.devices, cost.nodes), cost.cell, cost.batch_size)
    return code.finding(
        f"{where}: {cost_sentence(cost)}", next_step if knows_options else in_a_script(next_step)
    )


def cost_sentence(cost: StrategyCost) -> str:
    """Such as "FSDP takes 7% more time per step than DDP (95% interval 5% to 9%, 60 steps); it
    saves 2.1 GB of peak memory per device"."""
    name = traits_of(cost.strategy).label
    other = "the unwrapped model" if cost.alone else "DDP"
    ratio = cost.ratio.value
    low = cost.ratio.low
    high = cost.ratio.high
    assert ratio is not None
    shown = verdict(cost.ratio)
    steps = counted(cost.ratio.count, "step")
    before = ", before anything is communicated" if cost.alone else ""
    if low is None or high is None:
        looks = f"{_percent(ratio)} {'slower' if ratio >= 1 else 'faster'}"
        text = f"{name} looks {looks} per step than {other}{before}, but {missing_evidence(cost.ratio)}"
    elif shown in ("above", "below"):
        more, least, most = ("more", low, high) if shown == "above" else ("less", high, low)
        interval = f"95% interval {_percent(least)} to {_percent(most)}, {steps}"
        text = (
            f"{name} takes {_percent(ratio)} {more} time per step than {other}{before} ({interval})"
        )
    else:
        interval = f"ratio {ratio:.2f}, {bounds(cost.ratio)}, {steps}"
        text = f"the difference in step time between {name} and {other} is not significant{before} ({interval})"
    if cost.alone or not cost.saved_bytes:
        return text
    amount = f"{show_bytes(abs(cost.saved_bytes))} {_MEMORY[cost.memory]} per device"
    return f"{text}; it {'saves' if cost.saved_bytes > 0 else 'needs another'} {amount}"


def _percent(ratio: float) -> str:
    """How far a ratio is from 1."""
    return f"{abs(ratio - 1):.1%}"


def _where(devices: str, cell: str, batch_size: int) -> str:
    """Such as ``2 devices, batch 32 per device, hook-fp16`` of ddp-d2-b32-hook-fp16."""
    where = f"{devices}, batch {batch_size} per device"
    variant = cell.partition(f"-b{batch_size}-")[2]
    return f"{where}, {variant}" if variant else where


def gap_finding(gap: StrategyGap) -> Finding:
    """The ratio of their step times; both must be measured."""
    ratio = gap.ratio
    assert ratio.value is not None
    where = _where(counted(gap.devices, "device"), gap.ddp, gap.batch_size)
    if ratio.low is None or ratio.high is None:
        slower, times = (
            (gap.dp_label, ratio.value) if ratio.value >= 1 else ("DDP", 1 / ratio.value)
        )
        looks = f"{slower} looks {times:.2f}x slower"
        return RunCode.STRATEGIES_NOT_COMPARED.finding(
            f"{where}: {looks}, but {missing_evidence(ratio)}"
        )
    text = f"the difference between {gap.dp_label} and DDP is not significant"
    known = f"ratio {ratio.value:.2f}, "
    if (faster := _faster(gap)) is not None:
        text, ratio, known = *faster, ""
    interval = f"{known}{bounds(ratio)}, {counted(ratio.count, 'step')}"
    return RunCode.STRATEGY_GAP.finding(f"{where}: {text} ({interval})", _advice(gap))


def _faster(gap: StrategyGap) -> tuple[str, Estimate] | None:
    """Which of DP and DDP is significantly faster, with that ratio; None if neither is."""
    shown = verdict(gap.ratio)
    if shown not in ("above", "below"):
        return None
    ratio = gap.ratio if shown == "above" else gap.ratio.inverse()
    first, second = ("DDP", gap.dp_label) if shown == "above" else (gap.dp_label, "DDP")
    return f"{first}'s step is {ratio.value:.2f}x as fast as {second}'s", ratio


def _advice(gap: StrategyGap) -> str:
    """What the parts of the gap are, and which of them to look at first."""
    if gap.largest_part is None or gap.gap_us is None:
        return "the traces do not show where the difference lies"
    # The slower strategy takes longer: its signs are positive.
    faster, slower = "DDP", gap.dp_label
    sign = 1
    if gap.gap_us < 0:
        faster, slower = slower, faster
        sign = -1
    by = f"{faster} is {show_time(abs(gap.gap_us))} faster per step by the medians"
    if not gap.explained:
        return f"{by}. Tracing changed the timing too much to explain it"
    values = {name: getattr(gap, f"{part}_us") for part, name in _PARTS.items()}
    listed = ", ".join(
        f"{name} {show_change(sign * value)}" for name, value in values.items() if value is not None
    )
    text = f"{by}. {slower} adds to a step: {listed}"
    return f"{text}. Look at {_PARTS[gap.largest_part]} first" if _faster(gap) else text


def gap_sentence(gap: StrategyGap) -> str:
    """A sentence stating which of DP and DDP is faster; empty if unknown."""
    ratio = gap.ratio
    dp = gap.dp_label
    if ratio.value is None:
        return ""
    if (faster := _faster(gap)) is not None:
        text, faster_by = faster
        return f"{text} ({bounds(faster_by)})."
    if ratio.low is None:
        more = (
            f"--steps {FEWEST_SAMPLES} or more"
            if ratio.count < FEWEST_SAMPLES
            else "more repeats (--repeats)"
        )
        return f"DDP's step looks {ratio.value:.2f}x as fast as {dp}'s, but {missing_evidence(ratio)}: use {more}."
    longer = f"{dp}'s step takes {ratio.value:.2f}x as long, {bounds(ratio)}"
    return f"The difference between {dp} and DDP is not significant ({longer})."


def bounds(estimate: Estimate) -> str:
    """Such as ``95% interval 1.20 to 1.40``, or a note that there is none."""
    if estimate.low is None or estimate.high is None:
        return f"{counted(estimate.count, 'step')}, no interval"
    return f"{CONFIDENCE:.0%} interval {estimate.low:.2f} to {estimate.high:.2f}"


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
                f"{cell}: {speedup.value:.2f}x the throughput of {baseline} on {counted(count, 'device')} ({bounds(speedup)})",
                "measure one device again, with the same threads and no other load, before using this speedup",
            )


def strong_or_weak(choice: ScalingChoice) -> Finding:
    """Whether a batch size per device (weak) or in total (strong) has the higher throughput, and by
    how much.
    """
    variant = choice.weak.partition(f"-b{choice.batch_size}-")[2]  # both cells have it
    label = f"{traits_of(choice.strategy).label} {variant}".strip()
    devices = counted(choice.devices, "device")
    name = f"{label} on {devices}, batch {choice.batch_size}"
    keeping = {
        "weak": f"keeping {counted(choice.batch_size, 'sample')} per device",
        "strong": f"splitting {choice.batch_size} over all devices",
    }
    ratio = choice.ratio
    shown = verdict(ratio)
    text = "too few steps or repeats to determine whether strong or weak scaling is better"
    if shown == "no_difference_shown":
        interval = f"ratio {ratio.value:.2f}, {bounds(ratio)}"
        text = f"the difference between strong and weak scaling is not significant ({interval})"
    elif shown != "too_few_samples":
        better, worse = "weak", "strong"
        times = ratio
        if shown != "above":
            better, worse = worse, better
            times = ratio.inverse()
        cells = f"{choice.weak} compared with {choice.strong}"
        text = f"{keeping[better]} gives {times.value:.2f}x the throughput of {keeping[worse]} ({bounds(times)}; {cells})"
    return RunCode.STRONG_OR_WEAK.finding(f"{name}: {text}")


def judge_target(scaling: Sequence[ScalingSeries], target: float) -> Iterator[Finding]:
    """Whether each series reaches a target efficiency (0..1), by the intervals of its points.

    A point reaches the target if its whole interval does, and misses it if its whole interval lies
    below; otherwise the result is not significant.
    """
    words: dict[Verdict, str] = {
        "above": "reached on",
        "below": "missed on",
        "no_difference_shown": "not significant on",
        "too_few_samples": "unknown (too few steps or repeats) on",
    }
    for series in scaling:
        results = []
        missed = False
        for point in series.points:
            reached = point.efficiency
            shown = verdict(reached, target)
            missed |= shown == "below"
            value = f"{reached.value:.0%}" if reached.value is not None else NA
            ends = (
                f", {reached.low:.0%} to {reached.high:.0%}" if shown != "too_few_samples" else ""
            )
            results.append(f"{words[shown]} {counted(point.devices, 'device')} ({value}{ends})")
        fewer = "use fewer devices, a larger batch per device, or find out what the exposed time is spent on"
        yield RunCode.TARGET_EFFICIENCY.finding(
            f"{series.label}: target efficiency {target:.0%}: {'; '.join(results)}",
            fewer
            if missed
            else "no action needed, or time more repeats where it is not significant",
            severity="warning" if missed else "info",
        )
