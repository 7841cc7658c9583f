"""Strategies compared in words: DP with DDP, FSDP with DDP, and DDP on one device with none."""

from collections.abc import Sequence

from dpscope.analysis.cells.comparison import GAP_PARTS, StrategyCost, StrategyGap
from dpscope.analysis.cells.scaling import devices_text
from dpscope.analysis.findings.actions import in_a_script
from dpscope.analysis.stats.samples import CONFIDENCE, FEWEST_SAMPLES, Estimate, missing_evidence, verdict
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import Unit, show_bytes, show_change, show_time
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

_MEMORY = {"peak": "of peak memory", "state": "of parameters, buffers and optimizer state"}
_PARTS = dict(
    zip((*GAP_PARTS, "tracer"), ("exposed communication", "host copies", "compute", "idle", "tracer"), strict=True)
)
_RATIO = Unit("", 1.0, 3)


def strategy_cost_finding(cost: StrategyCost, of_script: bool = False) -> Finding:
    """The cost of a strategy compared with a simpler one; `of_script`: both were measured by attaching to a script."""
    code = RunCode.DDP_ALONE if cost.alone else RunCode.STRATEGY_COST
    next_step = code.next_step
    if not cost.alone and cost.saved_bytes is not None and cost.saved_bytes <= 0:
        next_step = "it saves no memory here: use it only if it costs no time"
    where = _where(devices_text(cost.devices, cost.nodes), cost.cell, cost.batch_size)
    return code.finding(f"{where}: {cost_sentence(cost)}", in_a_script(next_step) if of_script else next_step)


def cost_sentence(cost: StrategyCost) -> str:
    """Such as "FSDP takes 7% more time per step than DDP (95% interval 5% to 9%, 60 steps); it saves 2.1 GB of peak memory
    per device"."""
    name, other = traits_of(cost.strategy).label, "the unwrapped model" if cost.alone else "DDP"
    ratio, low, high = cost.ratio.value, cost.ratio.low, cost.ratio.high
    assert ratio is not None
    shown, steps = verdict(cost.ratio), counted(cost.ratio.count, "step")
    before = ", before anything is communicated" if cost.alone else ""
    if low is None or high is None:
        looks = f"{_percent(ratio)} {'slower' if ratio >= 1 else 'faster'}"
        text = f"{name} looks {looks} per step than {other}{before}, but {missing_evidence(cost.ratio)}"
    elif shown in ("above", "below"):
        more, least, most = ("more", low, high) if shown == "above" else ("less", high, low)
        interval = f"95% interval {_percent(least)} to {_percent(most)}, {steps}"
        text = f"{name} takes {_percent(ratio)} {more} time per step than {other}{before} ({interval})"
    else:
        interval = f"ratio {ratio:.2f}, {bounds(cost.ratio)}, {steps}"
        text = f"the difference in step time between {name} and {other} is not significant{before} ({interval})"
    if cost.alone or not cost.saved_bytes:
        return text
    amount = f"{show_bytes(abs(cost.saved_bytes))} {_MEMORY[cost.memory]} per device"
    return f"{text}; it {'saves' if cost.saved_bytes > 0 else 'needs another'} {amount}"


def _percent(ratio: float) -> str:
    return f"{abs(ratio - 1):.1%}"


def cost_table(costs: Sequence[StrategyCost]) -> TextTable | None:
    """Strategies compared with a simpler one at equal devices and batch; None if no pair was measured."""
    fields = (
        Field("cell", "cell"),
        Field("baseline", "against"),
        Field("ratio", lambda one: one.ratio.value, _RATIO),
        Field("low", lambda one: one.ratio.low, _RATIO),
        Field("high", lambda one: one.ratio.high, _RATIO),
        Field("saved per device", "saved_bytes", "bytes"),
        Field("of", "memory"),
    )
    notes = (
        "ratio: the cell's median untraced step divided by the other's, with its 95% interval",
        "of peak: the allocator's peak during the timed steps; of state: parameters, buffers and optimizer state between steps",
    )
    title = "Strategies compared with a simpler one: same devices, same batch per device"
    return table_of(title, fields, costs, notes) if costs else None


def _where(devices: str, cell: str, batch_size: int) -> str:
    """Such as ``2 devices, batch 32 per device, hook-fp16`` of ddp-d2-b32-hook-fp16."""
    variant = cell.partition(f"-b{batch_size}-")[2]
    return f"{devices}, batch {batch_size} per device{variant and f', {variant}'}"


def gap_finding(gap: StrategyGap) -> Finding:
    """The ratio of their step times; both must be measured."""
    ratio = gap.ratio
    assert ratio.value is not None
    where = _where(counted(gap.devices, "device"), gap.ddp, gap.batch_size)
    if ratio.low is None or ratio.high is None:
        slower, times = (gap.dp_label, ratio.value) if ratio.value >= 1 else ("DDP", 1 / ratio.value)
        looks = f"{slower} looks {times:.2f}x slower"
        return RunCode.STRATEGIES_NOT_COMPARED.finding(f"{where}: {looks}, but {missing_evidence(ratio)}")
    text, known = f"the difference between {gap.dp_label} and DDP is not significant", f"ratio {ratio.value:.2f}, "
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
    if gap.largest_part is None or gap.gap_us is None:
        return "the traces do not show where the difference lies"
    # The slower strategy takes longer: its signs are positive.
    faster, slower, sign = (gap.dp_label, "DDP", -1) if gap.gap_us < 0 else ("DDP", gap.dp_label, 1)
    by = f"{faster} is {show_time(abs(gap.gap_us))} faster per step by the medians"
    if not gap.explained:
        return f"{by}. Tracing changed the timing too much to explain it"
    values = ((name, getattr(gap, f"{part}_us")) for part, name in _PARTS.items())
    listed = ", ".join(f"{name} {show_change(sign * value)}" for name, value in values if value is not None)
    text = f"{by}. {slower} adds to a step: {listed}"
    return f"{text}. Look at {_PARTS[gap.largest_part]} first" if _faster(gap) else text


def gap_sentence(gap: StrategyGap) -> str:
    """A sentence stating which of DP and DDP is faster; empty if unknown."""
    ratio, dp = gap.ratio, gap.dp_label
    if ratio.value is None:
        return ""
    if (faster := _faster(gap)) is not None:
        text, faster_by = faster
        return f"{text}{in_brackets(faster_by)}."
    if ratio.low is None:
        more = f"--steps {FEWEST_SAMPLES} or more" if ratio.count < FEWEST_SAMPLES else "--repeats 3"
        return f"DDP's step looks {ratio.value:.2f}x as fast as {dp}'s, but {missing_evidence(ratio)}: use {more}."
    return f"DDP against {dp}: not significant (step ratio {ratio.value:.2f}, {bounds(ratio)})."


def in_brackets(estimate: Estimate) -> str:
    """An estimate's interval in brackets, or a note that there is none."""
    return f" ({bounds(estimate)})"


def bounds(estimate: Estimate) -> str:
    """Such as ``95% interval 1.20 to 1.40``, or a note that there is none."""
    if estimate.low is None or estimate.high is None:
        return f"{counted(estimate.count, 'step')}, no interval"
    return f"{CONFIDENCE:.0%} interval {estimate.low:.2f} to {estimate.high:.2f}"
