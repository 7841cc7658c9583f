"""What removing one part of a step alone would save, by replay; the part that saves most comes first."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.ledger import IDLE, TRANSFER, UNSPLIT, WAITING, Ledger, other_part
from dpscope.analysis.what_if.prediction import FARTHEST, Prediction, distance_error
from dpscope.analysis.what_if.scenarios.collective_costs import Costs
from dpscope.analysis.what_if.scenarios.inputs import ASSUMED_ERROR, GPU_ERROR
from dpscope.analysis.what_if.scenarios.predict import Answered, answered, predict
from dpscope.analysis.what_if.scenarios.scenario import Base, Scenario
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of

TWICE_AS_FAST = "a device twice as fast"
INFINITE_BANDWIDTH, ZERO_LATENCY = "infinite bandwidth", "zero latency"
_LEAST_SHOWN_US = 50.0  # 0.1 ms, rounded


@dataclass(frozen=True)
class Saving:
    """What one change alone takes off the step, in microseconds, with its 90% band.

    `is_significant`: the band's low end is more than the method's error of the step. `is_part`: the change removes a part of the
    step, and is named as that part.
    """

    change: str
    saved_us: float
    low_us: float
    high_us: float
    is_significant: bool
    is_part: bool


def savings(base: Base, scenario: Scenario, costs: Costs) -> list[Saving]:
    """Of each part of the step that can be removed, the largest saving first, then of other changes for comparison.

    Empty if the scenario itself has no number.
    """
    now = predict(base, scenario, costs)
    if now.step_us is None:
        return []
    parts = _removals(base, scenario) if now.devices > 1 else {}
    if any(one.on_device for one in base.profiles):
        parts[IDLE] = replace(scenario, host_factor=0.0)
    others = {TWICE_AS_FAST: replace(scenario, faster=2 * scenario.faster)}
    if now.devices > 1:
        others[INFINITE_BANDWIDTH] = replace(scenario, transfer_factor=0.0)
        others[ZERO_LATENCY] = replace(scenario, latency_factor=0.0)
    found = [
        saving
        for changes, is_part in ((parts, True), (others, False))
        for name, changed in changes.items()
        if (saving := _saving(base, (scenario, changed), costs, now, name, is_part)) is not None
    ]
    return sorted(found, key=lambda one: (not one.is_part, -one.saved_us))


def _removals(base: Base, scenario: Scenario) -> dict[str, Scenario]:
    """The scenario without each part of its exposed communication, by the part's name."""
    kinds = frozenset(one.kind for profile in base.profiles for one in profile.others)
    if traits_of(scenario.strategy or "").peer_copies:
        return {UNSPLIT: replace(scenario, transfer_factor=0.0, latency_factor=0.0)}
    if base.ledger is not None and not base.ledger.is_split:
        return {UNSPLIT: replace(scenario, buckets_factor=0.0, lateness_factor=0.0, free_kinds=kinds)}
    return {
        WAITING: replace(scenario, lateness_factor=0.0),
        TRANSFER: replace(scenario, buckets_factor=0.0),
        **{other_part(kind): replace(scenario, free_kinds=frozenset({kind})) for kind in sorted(kinds)},
    }


def _saving(
    base: Base, scenarios: tuple[Scenario, Scenario], costs: Costs, now: Prediction, name: str, is_part: bool
) -> Saving | None:
    """What the second scenario takes off the first, which is `now`; None where it has no number."""
    then = predict(base, scenarios[1], costs)
    if then.step_us is None or now.step_us is None:
        return None
    saved = now.step_us - then.step_us
    part_us = now.ledger.by_name_us.get(name) if is_part and now.ledger is not None else None
    if part_us is not None:  # the typical steps that are replayed may have more or less of it than the mean step
        replayed_us = _replayed_us(base, scenarios[0], costs, name)
        saved = part_us * max(0.0, min(1.0, saved / replayed_us)) if replayed_us else min(saved, part_us)
    error = base.method_error if base.method_error is not None else ASSUMED_ERROR
    times = now.devices / base.largest_count
    share = math.hypot(error, base.spread, distance_error(min(max(times, 1.0), FARTHEST)))  # of what is saved
    unsure, unsure_then = (_unsure_us(base, one, costs) for one in scenarios)  # what both steps share cancels
    device = GPU_ERROR * then.step_us if name == TWICE_AS_FAST else 0.0
    below, above = (
        math.hypot(share * saved, device, *(ends[side] - unsure_then[part][side] for part, ends in unsure.items()))
        for side in (0, 1)
    )
    return Saving(name, saved, saved - below, saved + above, saved - below > error * now.step_us, is_part)


def _replayed_us(base: Base, scenario: Scenario, costs: Costs, name: str) -> float | None:
    """How long a part is in the replayed steps; None of a kind that the replay does not separate."""
    answers = [answered(base, profile, scenario, costs) for profile in base.profiles]
    parts = [one.replayed for one in answers if isinstance(one, Answered) and one.replayed is not None]
    if len(parts) < len(answers):
        return None
    ledgers = [Ledger(sum(one), *one) for one in parts]
    if name == UNSPLIT:
        return fmean(one.exposed_us or 0.0 for one in ledgers)
    kinds = {one.kind for profile in base.profiles for one in profile.others}
    if len(kinds) == 1 and name == other_part(*kinds):
        return fmean(one.exposed_other for one in parts)
    return fmean(one.by_name_us[name] for one in ledgers) if name in (WAITING, TRANSFER, IDLE) else None


def _unsure_us(base: Base, scenario: Scenario, costs: Costs) -> dict[str, tuple[float, float]]:
    """By what a replay rests on, half a 90% band of the step below and above, microseconds: mean of the profiles."""
    answers = [answered(base, profile, scenario, costs) for profile in base.profiles]
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in answers:
        if isinstance(one, Answered):
            for name, (below, above) in one.parts.items():
                found[name].append((-one.step_us * math.expm1(-below), one.step_us * math.expm1(above)))
    return defaultdict(
        lambda: (0.0, 0.0),
        {name: (fmean(one[0] for one in ends), fmean(one[1] for one in ends)) for name, ends in found.items()},
    )


def savings_sentences(found: Sequence[Saving], devices: int, ledger: Ledger | None) -> list[str]:
    """What is saved by removing one part, and by other changes; `ledger` is that of the step from which they are removed.

    If the largest part is not the one whose removal saves most, a sentence states it.
    """
    parts, others = ([one for one in found if one.is_part is of_part] for of_part in (True, False))
    sentences, where = [], counted(devices, "device")
    if parts:
        sentences.append(f"Largest saving on {where}, one part removed at a time: {_listed(parts)}.")
        sentences += _smaller_than_its_part(parts, ledger)
    if others:
        sentences.append(f"For comparison: {_listed(sorted(others, key=lambda one: -one.saved_us))}.")
    return sentences


def _listed(found: Sequence[Saving]) -> str:
    """Savings that show in their digits, then the names of the others."""
    listed, nothing = [], []
    for one in found:
        if abs(one.saved_us) >= _LEAST_SHOWN_US:
            error = "" if one.is_significant else " (within the error)"
            listed.append(f"{one.change} saves {one.saved_us / 1e3:.1f} ms{error}")
        else:
            nothing.append(one.change)
    return "; ".join([*listed, *([f"nothing: {', '.join(nothing)}"] if nothing else [])])


def _smaller_than_its_part(parts: Sequence[Saving], ledger: Ledger | None) -> list[str]:
    """Why the largest part of the step, which an action would remove first, is not the largest saving."""
    sizes = ledger.by_name_us if ledger is not None else {}
    sizes = {one.change: sizes[one.change] for one in parts if one.change in sizes}
    if not sizes:
        return []
    largest = max(sizes, key=lambda name: sizes[name])
    if largest == parts[0].change:
        return []
    saved = next(one.saved_us for one in parts if one.change == largest)
    return [
        f"The largest of these parts is {largest} ({show_time(sizes[largest])} of the step), but its removal alone saves only "
        f"{show_time(max(0.0, saved))}: other parts take its place."
    ]
