"""The cost and savings of FSDP compared with DDP, and of DDP on one device, in words."""

from collections.abc import Sequence

import msgspec

from dpscope.analysis.cells.scaling import devices_text
from dpscope.analysis.cells.strategy_costs import StrategyCost
from dpscope.analysis.findings.script_advice import in_a_script
from dpscope.analysis.stats.samples import missing_evidence, verdict
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import Unit, choose_unit, show
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

_MEMORY = {"peak": "of peak memory", "state": "of parameters, buffers and optimizer state"}


def strategy_cost_finding(cost: StrategyCost, of_script: bool = False) -> Finding:
    """The cost of a strategy compared with a simpler one; `of_script`: both were measured by attaching to a script."""
    code = RunCode.DDP_ALONE if cost.alone else RunCode.STRATEGY_COST
    found = code.finding(f"{_where(cost)}: {cost_sentence(cost)}")
    return msgspec.structs.replace(found, next_step=in_a_script(found.next_step)) if of_script else found


def cost_sentence(cost: StrategyCost) -> str:
    """Such as "FSDP takes 7% more time per step than DDP (95% interval 5% to 9%, 60 steps); it saves 2.1 GB of peak memory
    per device"."""
    name, other = traits_of(cost.strategy).label, "the unwrapped model" if cost.alone else "DDP"
    ratio, low, high = cost.ratio.value, cost.ratio.low, cost.ratio.high
    assert ratio is not None
    shown = verdict(cost.ratio)
    before = ", before anything is communicated" if cost.alone else ""
    if low is None or high is None:
        slower = "slower" if ratio >= 1 else "faster"
        text = (
            f"{name} looks {_percent(ratio)} {slower} per step than {other}{before}, but {missing_evidence(cost.ratio)}"
        )
    elif shown == "above":
        interval = f"95% interval {_percent(low)} to {_percent(high)}, {counted(cost.ratio.count, 'step')}"
        text = f"{name} takes {_percent(ratio)} more time per step than {other}{before} ({interval})"
    elif shown == "below":
        interval = f"95% interval {_percent(high)} to {_percent(low)}, {counted(cost.ratio.count, 'step')}"
        text = f"{name} takes {_percent(ratio)} less time per step than {other}{before} ({interval})"
    else:
        interval = f"ratio {ratio:.2f}, 95% interval {low:.2f} to {high:.2f}, {counted(cost.ratio.count, 'step')}"
        text = f"the difference in step time between {name} and {other} is not significant{before} ({interval})"
    return text + ("" if cost.alone else _saving(cost))


def cost_table(costs: Sequence[StrategyCost]) -> TextTable | None:
    """Strategies compared with a simpler one at equal devices and batch; None if no pair was measured."""
    if not costs:
        return None
    ratio, saved = Unit("", 1.0, 3), choose_unit("bytes", [one.saved_bytes for one in costs])
    return TextTable(
        title="Strategies compared with a simpler one: same devices, same batch per device",
        headings=("cell", "baseline", "ratio", "low", "high", f"saved per device [{saved.label}]", "of"),
        rows=tuple(
            (
                one.cell,
                one.against,
                *(show(value, ratio) for value in (one.ratio.value, one.ratio.low, one.ratio.high)),
                show(one.saved_bytes, saved),
                one.memory,
            )
            for one in costs
        ),
        notes=(
            "ratio: the cell's median untraced step divided by the other's, with its 95% interval",
            "of peak: the allocator's peak during the timed steps; of state: parameters, buffers and optimizer state between "
            "steps",
        ),
    )


def _where(cost: StrategyCost) -> str:
    return f"{devices_text(cost.devices, cost.nodes)}, batch {cost.batch_size} per device"


def _saving(cost: StrategyCost) -> str:
    """The difference in memory per device, in words."""
    if not cost.saved_bytes:
        return ""
    unit = choose_unit("bytes", [abs(cost.saved_bytes)])
    amount = f"{show(abs(cost.saved_bytes), unit)} {unit.label} {_MEMORY[cost.memory]} per device"
    return f"; it {'saves' if cost.saved_bytes > 0 else 'needs another'} {amount}"


def _percent(ratio: float) -> str:
    return f"{abs(ratio - 1):.1%}"
