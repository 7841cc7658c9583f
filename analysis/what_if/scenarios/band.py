"""The 90% band of a replayed prediction: what each thing that it rests on may be off by, below and above, joined.

The repeats of the base; the method's error on other cells; the costs of collectives; two in flight and computing next to a
collective, where they are assumed or measured with an interval; the distance in devices; another GPU, another batch, unknown
lateness. They are independent, so their squares add. A cost that a specification bounds can be dearer and no cheaper.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dpscope.analysis.what_if.prediction import FARTHEST, distance_error
from dpscope.analysis.what_if.replay.replay import Conditions, Replayed, replayed_from
from dpscope.analysis.what_if.replay.step_profile import StepProfile
from dpscope.analysis.what_if.scenarios.inputs import Inputs
from dpscope.analysis.what_if.scenarios.scenario import Base, Scenario

Parts = Mapping[str, tuple[float, float]]
"""By name, half a 90% band below and above the step, in logarithms."""

ASSUMED_ERROR = 0.04  # of the method where no other cell measures it: the error of cells in the live experiments
GPU_ERROR = 0.12  # of times on another GPU by its speed alone, as published for such predictors (Habitat, ATC 2021)
_ONE_BATCH = 0.10  # samples may cost otherwise where one batch alone was measured
_NO_JITTER = 0.03
_NONE = (0.0, 0.0)


def replay_parts(base: Base, profile: StepProfile, inputs: Inputs, then: Replayed, step_us: float) -> Parts:
    """What a replay is off by where its costs, the slowdown of two in flight, or gamma are at the ends of what they may be."""
    prepared, conditions = base.prepared(profile, inputs.compute), inputs.conditions

    def off(changed: Conditions, moved_us: float = 0.0) -> float:
        """How much longer the step would be, `moved_us` being what the base's replay would be longer."""
        return replayed_from(prepared, changed, then.entered) - then.step_us - moved_us

    costs = [off(_times(conditions, math.exp(by))) if by else 0.0 for by in (-inputs.below, inputs.above)]
    in_flight = [
        off(replace(conditions, slowdown=one)) if one != conditions.slowdown and profile.servers > 1 else 0.0
        for one in inputs.slowdowns
    ]
    now = base.replayed(profile).step_us
    slower = [
        off(replace(conditions, gamma=one), base.replayed(profile, one).step_us - now)
        if one != conditions.gamma
        else 0.0
        for one in base.gamma_band
    ]
    found = {"costs": costs, "two in flight": in_flight, "computing next to them": slower}
    return {name: _below_above(values, step_us) for name, values in found.items()}


def half_band(
    base: Base, scenario: Scenario, parts: Sequence[Parts], exposed_share: float, times: float
) -> tuple[float, float]:
    """Half the band below and above; `times` is the requested count over the largest measured one."""
    alike = scenario == Scenario()
    spread, method = base.spread, ASSUMED_ERROR
    if base.method_error is not None:  # the repeats' noise is in the errors on own cells
        spread, method = (spread, 0.0) if alike or spread > base.method_error else (0.0, base.method_error)
    distance = distance_error(min(max(times, 1.0), FARTHEST)) * (0.5 + 0.5 * min(1.0, 4 * exposed_share))
    both = [spread, 0.0 if alike else method, distance]
    if scenario.faster != 1.0 or scenario.gpu is not None:
        both.append(GPU_ERROR)
    if scenario.batch_size is not None and len(base.single_us) < 2 and scenario.batch_size != base.batch_size:
        both.append(_ONE_BATCH)
    if not base.lateness.known and scenario.jitter is None and times > 1:
        both.append(_NO_JITTER)
    squares = sum(one**2 for one in both)
    names = {name for one in parts for name in one}
    sides = ([max(one.get(name, _NONE)[side] for one in parts) for name in names] for side in (0, 1))
    below, above = (math.sqrt(squares + sum(one**2 for one in side)) for side in sides)
    return below, above


def _below_above(moved_us: Sequence[float], step_us: float) -> tuple[float, float]:
    """From how much longer (negative: shorter) the step may be."""
    least, most = min(0.0, *moved_us), max(0.0, *moved_us)
    return -math.log(max(0.05, 1 + least / step_us)), math.log1p(most / step_us)


def _times(conditions: Conditions, factor: float) -> Conditions:
    return replace(
        conditions,
        latency_us=tuple(one * factor for one in conditions.latency_us),
        transfer_us=tuple(one * factor for one in conditions.transfer_us),
    )
