"""DP against DDP in words: which one is faster, and where the difference lies."""

from dpscope.analysis.cells.comparison import GAP_PARTS, StrategyGap
from dpscope.analysis.stats.samples import CONFIDENCE, FEWEST_SAMPLES, Estimate, unshown, verdict
from dpscope.analysis.text.units import show_time
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode

_NAMES = dict(zip(GAP_PARTS, ("exposed communication", "host copies", "compute", "idle"), strict=True))


def gap_finding(gap: StrategyGap) -> Finding:
    """What the ratio of their steps shows; both were measured."""
    ratio, low, high = gap.ratio.value, gap.ratio.low, gap.ratio.high
    assert ratio is not None
    where = f"{counted(gap.devices, 'device')}, batch {gap.batch_size} per device"
    shown, count = verdict(gap.ratio), gap.ratio.count
    if low is None or high is None:
        looks = f"{gap.dp_label} looks {ratio:.2f}x slower" if ratio >= 1 else f"DDP looks {1 / ratio:.2f}x slower"
        return RunCode.STRATEGIES_NOT_COMPARED.finding(f"{where}: {looks}, but {unshown(gap.ratio)}")
    interval = f"95% interval {low:.2f} to {high:.2f}, {counted(count, 'step')}"
    if shown == "above":
        said = f"DDP's step is {ratio:.2f}x as fast as {gap.dp_label}'s"
    elif shown == "below":
        said = f"{gap.dp_label}'s step is {1 / ratio:.2f}x as fast as DDP's"
        interval = f"95% interval {1 / high:.2f} to {1 / low:.2f}, {counted(count, 'step')}"
    else:
        said = f"no difference between {gap.dp_label} and DDP is shown"
        interval = f"ratio {ratio:.2f}, {interval}"
    return RunCode.STRATEGY_GAP.finding(f"{where}: {said} ({interval})", _advice(gap))


def _advice(gap: StrategyGap) -> str:
    if gap.largest_part is None or gap.gap_us is None:
        return "the traces do not tell where the difference lies"
    values = ((_NAMES[part], getattr(gap, f"{part}_us")) for part in GAP_PARTS)
    known = {name: value for name, value in values if value is not None}
    faster, slower = (gap.dp_label, "DDP") if gap.gap_us < 0 else ("DDP", gap.dp_label)
    by = f"{faster} is {show_time(abs(gap.gap_us))} faster per step by the medians"
    if not gap.explained:
        return f"{by}. Tracing changed the timing too much to say why"
    sign = -1 if gap.gap_us < 0 else 1  # of what the slower one takes longer
    listed = ", ".join(f"{name} {_signed(sign * value)}" for name, value in known.items())
    rest = f", tracer {_signed(sign * gap.tracer_us)}" if gap.tracer_us is not None else ""
    said = f"{by}. What {slower} adds to a step: {listed}{rest}"
    return f"{said}. Look at {_NAMES[gap.largest_part]} first" if verdict(gap.ratio) in ("above", "below") else said


def _signed(microseconds: float) -> str:
    return f"{'+' if microseconds >= 0 else '-'}{show_time(abs(microseconds))}"


def gap_sentence(gap: StrategyGap) -> str:
    """Which of DP and DDP is faster, in a sentence; empty where it is not known."""
    ratio, dp = gap.ratio, gap.dp_label
    if ratio.value is None:
        return ""
    shown = verdict(ratio)
    if shown == "above":
        return f"DDP's step is {ratio.value:.2f}x as fast as {dp}'s{range_said(ratio)}."
    if shown == "below":
        return f"{dp}'s step is {1 / ratio.value:.2f}x as fast as DDP's{range_said(_inverse(ratio))}."
    if ratio.low is None:
        return f"DDP's step looks {ratio.value:.2f}x as fast as {dp}'s, but {unshown(ratio)}: use {_to_show(ratio)}."
    return f"DDP against {dp}: not significant (step ratio {ratio.value:.2f}, {_bounds(ratio)})."


def _to_show(ratio: Estimate) -> str:
    return f"--steps {FEWEST_SAMPLES} or more" if ratio.count < FEWEST_SAMPLES else "--repeats 3"


def _inverse(ratio: Estimate) -> Estimate:
    assert ratio.value
    assert ratio.low
    assert ratio.high
    return Estimate(1 / ratio.value, 1 / ratio.high, 1 / ratio.low, ratio.count)


def range_said(estimate: Estimate) -> str:
    """An estimate's interval in brackets, or that there is none."""
    return f" ({_bounds(estimate)})"


def _bounds(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{counted(estimate.count, 'step')}, no interval"
    return f"{CONFIDENCE:.0%} interval {estimate.low:.2f} to {estimate.high:.2f}"
