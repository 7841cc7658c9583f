"""What removing one part of a step would save, and what a faster device or link would."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from dpscope.analysis.traces.ranks.ledger import (
    IDLE,
    TRANSFER,
    UNSPLIT,
    WAITING,
    Ledger,
    other_part,
)
from dpscope.analysis.what_if.band import ASSUMED_ERROR, DEVICE_ERROR, distance_error
from dpscope.analysis.what_if.collective_costs import Costs
from dpscope.analysis.what_if.predict import ReplayedScenario, predicted
from dpscope.analysis.what_if.prediction import Prediction
from dpscope.analysis.what_if.scenario import Base, Scenario

TWICE_AS_FAST = "a device twice as fast"
INFINITE_BANDWIDTH, ZERO_LATENCY = "infinite bandwidth", "zero latency"

_WithReplays = tuple[Prediction, Sequence[ReplayedScenario]]


@dataclass(frozen=True)
class Saving:
    """What one change alone takes off the step, in microseconds, with its 90% band.

    The band is that of the saving alone, in which errors that both steps share cancel. `step_error_us` is the method's error on
    the whole step; `is_significant`: the band's low end exceeds it. `is_part`: the change removes a part of the step, and is
    named as that part.
    """

    change: str
    saved_us: float
    low_us: float
    high_us: float
    step_error_us: float
    is_part: bool

    @property
    def is_significant(self) -> bool:
        return self.low_us > self.step_error_us


def savings(base: Base, scenario: Scenario, costs: Costs) -> list[Saving]:
    """Of each part of the step that can be removed, the largest saving first, then of other changes for comparison.

    Empty if the scenario itself has no number.
    """
    before = predicted(base, scenario, costs)
    if before[0].step_us is None:
        return []
    parts = _removals(base, scenario) if before[0].devices > 1 else {}
    if any(one.on_device for one in base.profiles):
        parts[IDLE] = replace(scenario, host_factor=0.0)
    others = {TWICE_AS_FAST: replace(scenario, faster=2 * scenario.faster)}
    if before[0].devices > 1:
        others[INFINITE_BANDWIDTH] = replace(scenario, transfer_factor=0.0)
        others[ZERO_LATENCY] = replace(scenario, latency_factor=0.0)
    changes = []
    for name, one in (parts | others).items():
        after = predicted(base, one, costs)
        if after[0].step_us is not None:
            changes.append(_saving(base, name, name in parts, before, after))
    return sorted(changes, key=lambda one: (not one.is_part, -one.saved_us))


def _removals(base: Base, scenario: Scenario) -> dict[str, Scenario]:
    """The scenario without each part of its exposed communication, by the part's name."""
    kinds = _other_kinds(base)
    if base.ledger is not None and not base.ledger.is_split:
        return {UNSPLIT: replace(scenario, buckets_factor=0.0, lateness_factor=0.0, free_kinds=kinds)}
    return {
        WAITING: replace(scenario, lateness_factor=0.0),
        TRANSFER: replace(scenario, buckets_factor=0.0),
        **{other_part(kind): replace(scenario, free_kinds=frozenset({kind})) for kind in sorted(kinds)},
    }


def _other_kinds(base: Base) -> frozenset[str]:
    """Of the collectives that are no buckets."""
    return frozenset(one.kind for profile in base.profiles for one in profile.others)


def _saving(base: Base, name: str, is_part: bool, before: _WithReplays, after: _WithReplays) -> Saving:
    """What the second prediction, and its replays, take off the first; both have numbers."""
    (now, replays), (then, changed_replays) = before, after
    step_us, then_us = now.step_us or 0.0, then.step_us or 0.0
    saved_us = step_us - then_us
    part_us = now.ledger.by_name_us.get(name) if is_part and now.ledger is not None else None
    if part_us is not None:  # the typical steps that are replayed may have more or less of it than the mean step
        replayed_us = _replayed_us(base, replays, name)
        saved_us = part_us * max(0.0, min(1.0, saved_us / replayed_us)) if replayed_us else min(saved_us, part_us)
    error = base.method_error if base.method_error is not None else ASSUMED_ERROR
    share = math.hypot(error, base.spread, distance_error(now.devices / base.largest))  # of what is saved
    off_us = [share * saved_us, DEVICE_ERROR * then_us if name == TWICE_AS_FAST else 0.0]
    unsure, unsure_then = (
        _unsure_us(replays),
        _unsure_us(changed_replays),
    )  # what both steps share cancels
    below, above = (
        math.hypot(*off_us, *(ends[side] - unsure_then[part][side] for part, ends in unsure.items())) for side in (0, 1)
    )
    return Saving(name, saved_us, saved_us - below, saved_us + above, error * step_us, is_part)


def _replayed_us(base: Base, replays: Sequence[ReplayedScenario], name: str) -> float | None:
    """How long a part is in the replayed steps; None of a kind that the replay does not separate."""
    ledgers = [Ledger(sum(one.parts), *one.parts) for one in replays]
    if name == UNSPLIT:
        return fmean(one.exposed_us or 0.0 for one in ledgers)
    if name in (WAITING, TRANSFER, IDLE):
        return fmean(one.by_name_us[name] for one in ledgers)
    if len(_other_kinds(base)) == 1:
        return fmean(one.parts.exposed_other for one in replays)
    return None


def _unsure_us(replays: Sequence[ReplayedScenario]) -> dict[str, tuple[float, float]]:
    """By what a replay rests on, half a 90% band of the step below and above, microseconds: mean of the profiles."""
    return {
        name: (
            fmean(-one.step_us * math.expm1(-one.unsure[name][0]) for one in replays),
            fmean(one.step_us * math.expm1(one.unsure[name][1]) for one in replays),
        )
        for name in replays[0].unsure
    }
