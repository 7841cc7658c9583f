"""What is worth most: what each change alone would take off the step."""

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import fmean

from dpscope.analysis.what_if.links.costs import Costs
from dpscope.analysis.what_if.prediction import FARTHEST, distance_error
from dpscope.analysis.what_if.scenarios.band import ASSUMED_ERROR, GPU_ERROR
from dpscope.analysis.what_if.scenarios.predict import Answered, answered, predict
from dpscope.analysis.what_if.scenarios.scenario import Base, Scenario
from dpscope.profiling.records.finding import counted

TWICE_AS_FAST = "a device twice as fast"
_LEAST_SHOWN_US = 50.0  # 0.1 ms, rounded


@dataclass(frozen=True)
class Worth:
    """What one change alone takes off the step, in microseconds, with its 90% band; `certain` where the band's low end is more
    than the method's error of the step."""

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
    error = base.own_error if base.own_error is not None else ASSUMED_ERROR
    times = now.devices / base.largest_count
    share = math.hypot(error, base.spread, distance_error(min(max(times, 1.0), FARTHEST)))  # of what is saved
    unsure = _unsure_us(base, scenario, costs)
    found = []
    for name, changed in changes.items():
        said = predict(base, changed, costs)
        if said.step_us is None:
            continue
        saved = now.step_us - said.step_us
        then = _unsure_us(base, changed, costs)  # what makes both steps longer is no part of the difference
        device = GPU_ERROR * said.step_us if name == TWICE_AS_FAST else 0.0
        below, above = (
            math.hypot(share * saved, device, *(ends[side] - then[part][side] for part, ends in unsure.items()))
            for side in (0, 1)
        )
        found.append(Worth(name, saved, saved - below, saved + above, saved - below > error * now.step_us))
    return sorted(found, key=lambda one: -one.saved_us)


def _unsure_us(base: Base, scenario: Scenario, costs: Costs) -> dict[str, tuple[float, float]]:
    """By what a replay rests on, half a 90% band of the step below and above, microseconds: mean of the profiles."""
    said = [answered(base, profile, scenario, costs) for profile in base.profiles]
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in said:
        if isinstance(one, Answered):
            for name, (below, above) in one.parts.items():
                found[name].append((-one.step_us * math.expm1(-below), one.step_us * math.expm1(above)))
    return defaultdict(
        lambda: (0.0, 0.0),
        {name: (fmean(one[0] for one in ends), fmean(one[1] for one in ends)) for name, ends in found.items()},
    )


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
