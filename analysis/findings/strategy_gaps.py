"""DP compared with DDP in words: which one is faster, and where the difference lies."""

from dpscope.analysis.cells.comparison import GAP_PARTS, StrategyGap
from dpscope.analysis.stats.samples import CONFIDENCE, FEWEST_SAMPLES, Estimate, missing_evidence, verdict
from dpscope.analysis.text.units import show_change, show_time
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode

_NAMES = dict(zip(GAP_PARTS, ("exposed communication", "host copies", "compute", "idle"), strict=True))


def gap_finding(gap: StrategyGap) -> Finding:
    """The ratio of their step times; both must be measured."""
    ratio, low, high = gap.ratio.value, gap.ratio.low, gap.ratio.high
    assert ratio is not None
    where = f"{counted(gap.devices, 'device')}, batch {gap.batch_size} per device"
    shown, count = verdict(gap.ratio), gap.ratio.count
    if low is None or high is None:
        looks = f"{gap.dp_label} looks {ratio:.2f}x slower" if ratio >= 1 else f"DDP looks {1 / ratio:.2f}x slower"
        return RunCode.STRATEGIES_NOT_COMPARED.finding(f"{where}: {looks}, but {missing_evidence(gap.ratio)}")
    interval = f"95% interval {low:.2f} to {high:.2f}, {counted(count, 'step')}"
    if shown == "above":
        text = f"DDP's step is {ratio:.2f}x as fast as {gap.dp_label}'s"
    elif shown == "below":
        text = f"{gap.dp_label}'s step is {1 / ratio:.2f}x as fast as DDP's"
        interval = f"95% interval {1 / high:.2f} to {1 / low:.2f}, {counted(count, 'step')}"
    else:
        text = f"the difference between {gap.dp_label} and DDP is not significant"
        interval = f"ratio {ratio:.2f}, {interval}"
    return RunCode.STRATEGY_GAP.finding(f"{where}: {text} ({interval})", _advice(gap))


def _advice(gap: StrategyGap) -> str:
    if gap.largest_part is None or gap.gap_us is None:
        return "the traces do not show where the difference lies"
    values = ((_NAMES[part], getattr(gap, f"{part}_us")) for part in GAP_PARTS)
    known = {name: value for name, value in values if value is not None}
    faster, slower = (gap.dp_label, "DDP") if gap.gap_us < 0 else ("DDP", gap.dp_label)
    by = f"{faster} is {show_time(abs(gap.gap_us))} faster per step by the medians"
    if not gap.explained:
        return f"{by}. Tracing changed the timing too much to explain it"
    sign = -1 if gap.gap_us < 0 else 1  # positive: the slower strategy takes longer
    listed = ", ".join(f"{name} {show_change(sign * value)}" for name, value in known.items())
    rest = f", tracer {show_change(sign * gap.tracer_us)}" if gap.tracer_us is not None else ""
    text = f"{by}. {slower} adds to a step: {listed}{rest}"
    return f"{text}. Look at {_NAMES[gap.largest_part]} first" if verdict(gap.ratio) in ("above", "below") else text


def gap_sentence(gap: StrategyGap) -> str:
    """A sentence stating which of DP and DDP is faster; empty if unknown."""
    ratio, dp = gap.ratio, gap.dp_label
    if ratio.value is None:
        return ""
    shown = verdict(ratio)
    if shown == "above":
        return f"DDP's step is {ratio.value:.2f}x as fast as {dp}'s{in_brackets(ratio)}."
    if shown == "below":
        return f"{dp}'s step is {1 / ratio.value:.2f}x as fast as DDP's{in_brackets(_inverse(ratio))}."
    if ratio.low is None:
        more = f"--steps {FEWEST_SAMPLES} or more" if ratio.count < FEWEST_SAMPLES else "--repeats 3"
        return f"DDP's step looks {ratio.value:.2f}x as fast as {dp}'s, but {missing_evidence(ratio)}: use {more}."
    return f"DDP against {dp}: not significant (step ratio {ratio.value:.2f}, {_bounds(ratio)})."


def _inverse(ratio: Estimate) -> Estimate:
    assert ratio.value
    assert ratio.low
    assert ratio.high
    return Estimate(1 / ratio.value, 1 / ratio.high, 1 / ratio.low, ratio.count)


def in_brackets(estimate: Estimate) -> str:
    """An estimate's interval in brackets, or a note that there is none."""
    return f" ({_bounds(estimate)})"


def _bounds(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{counted(estimate.count, 'step')}, no interval"
    return f"{CONFIDENCE:.0%} interval {estimate.low:.2f} to {estimate.high:.2f}"
