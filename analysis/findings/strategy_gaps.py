"""DP against DDP in words: which one is faster, and where the difference lies."""

from dpscope.analysis.comparison.compare import StrategyGap
from dpscope.analysis.stats.samples import verdict
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run_codes import RunCode

_TRACER_SHARE = 0.25  # of a gap: if tracing changed more than that, the traced parts do not explain it


def gap_finding(gap: StrategyGap) -> Finding:
    """What the ratio of their steps shows; both were measured."""
    ratio, low, high = gap.ratio.value, gap.ratio.low, gap.ratio.high
    assert ratio is not None
    where = f"{gap.devices} devices, batch {gap.batch_size} per device"
    shown, count = verdict(gap.ratio), gap.ratio.count
    if low is None or high is None:
        return RunCode.STRATEGIES_NOT_COMPARED.finding(
            f"{where}: {gap.dp} / {gap.ddp} step time is {ratio:.2f}, from {count} steps: no interval, no verdict"
        )
    interval = f"95% interval {low:.2f} to {high:.2f}, {count} steps"
    if shown == "above":
        said = f"DDP's step is {ratio:.2f} times as fast as {gap.dp_label}'s"
    elif shown == "below":
        said = f"{gap.dp_label}'s step is {1 / ratio:.2f} times as fast as DDP's"
        interval = f"95% interval {1 / high:.2f} to {1 / low:.2f}, {count} steps"
    else:
        said = f"no difference between {gap.dp_label} and DDP is shown"
        interval = f"ratio {ratio:.2f}, {interval}"
    return RunCode.STRATEGY_GAP.finding(f"{where}: {said} ({interval})", _advice(gap))


def _advice(gap: StrategyGap) -> str:
    parts = {
        "exposed communication": gap.exposed_us,
        "host copies": gap.host_copies_us,
        "compute": gap.compute_us,
        "idle": gap.idle_us,
    }
    known = {name: value for name, value in parts.items() if value is not None}
    if not known or gap.gap_us is None:
        return "the traces do not tell where the difference lies"
    listed = ", ".join(f"{name} {value / 1e3:+.1f} ms" for name, value in known.items())
    largest = max(known, key=lambda name: abs(known[name]))
    rest = f", tracer {gap.tracer_us / 1e3:+.1f} ms" if gap.tracer_us is not None else ""
    said = f"of {gap.gap_us / 1e3:+.1f} ms a step ({gap.dp_label} less DDP): {listed}{rest}"
    tracer_us = abs(gap.tracer_us or 0.0)
    if tracer_us >= abs(known[largest]) or tracer_us > _TRACER_SHARE * abs(gap.gap_us):
        return f"{said}; the traced steps do not reproduce this gap, so its parts do not explain it"
    return f"{said}; look at {largest} first" if verdict(gap.ratio) in ("above", "below") else said
