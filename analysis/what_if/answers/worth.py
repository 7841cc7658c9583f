"""What is worth most: what each change alone would take off the step."""

from dataclasses import dataclass, replace

from dpscope.analysis.what_if.links.costs import Costs
from dpscope.analysis.what_if.scenarios.predict import predict
from dpscope.analysis.what_if.scenarios.scenario import Base, Scenario
from dpscope.profiling.records.finding import counted

TWICE_AS_FAST = "a device twice as fast"
_LEAST_SHOWN_US = 50.0  # 0.1 ms, rounded


@dataclass(frozen=True)
class Worth:
    """What one change alone takes off the step, in microseconds; `certain` where that is more than the method's error."""

    change: str
    saved_us: float
    low_us: float
    high_us: float
    certain: bool


def worth(base: Base, scenario: Scenario, costs: Costs) -> list[Worth]:
    """What is worth most, each alone, the largest first; empty where the scenario itself has no number."""
    now = predict(base, scenario, costs)
    if now.step_us is None:
        return []
    changes = {
        "infinite bandwidth": replace(scenario, transfer_factor=0.0),
        "zero latency": replace(scenario, latency_factor=0.0),
        "no late rank": replace(scenario, lateness_factor=0.0),
        "no host gaps": replace(scenario, host_factor=0.0),
        TWICE_AS_FAST: replace(scenario, faster=2 * scenario.faster),
    }
    error = base.own_error if base.own_error is not None else 0.04
    found = []
    for name, changed in changes.items():
        said = predict(base, changed, costs)
        if said.step_us is None:
            continue
        saved = now.step_us - said.step_us
        off = error * abs(saved) + base.spread * abs(saved) + (0.12 * said.step_us if name == TWICE_AS_FAST else 0.0)
        found.append(Worth(name, saved, saved - off, saved + off, saved - off > error * now.step_us))
    return sorted(found, key=lambda one: -one.saved_us)


def worth_sentence(found: list[Worth], devices: int) -> str:
    """What is worth most, in one sentence; what would not show in its digits is named as worth nothing."""
    if not found:
        return ""
    shown = [one for one in found if abs(one.saved_us) >= _LEAST_SHOWN_US]
    said = ", ".join(
        f"{one.change} {-one.saved_us / 1e3:+.1f} ms" + ("" if one.certain else " (within the error)") for one in shown
    )
    nothing = ", ".join(one.change for one in found if one not in shown)
    parts = [one for one in (said, f"worth nothing: {nothing}" if nothing else "") if one]
    return f"What is worth most on {counted(devices, 'device')}, each alone: {'; '.join(parts)}."
