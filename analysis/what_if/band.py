"""The 90% band of a prediction, and how far from the measured device counts there is one.

The band joins, below and above: the repeats of the base; the method's error on other cells; the costs of collectives; two in
flight and computing next to a collective, where they are assumed or measured with an interval; the distance in devices; a faster
device, another batch, unknown lateness. They are independent, so their squares add.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpscope.analysis.what_if.inputs import Inputs
from dpscope.analysis.what_if.replay import Replayed, replayed_from
from dpscope.analysis.what_if.scenario import Base, Scenario
from dpscope.analysis.what_if.step_profile import StepProfile

NINE_OF_TEN = 1.645  # standard deviations to either side that hold 90% of a normal distribution
FARTHEST = 8.0  # times the largest measured device count: beyond it no number is given
UNKNOWABLE = 64  # times the largest measured device count: beyond it no range is given either
ASSUMED_ERROR = 0.04  # of the method where no other cell measures it: the error of cells in the live experiments
DEVICE_ERROR = 0.12  # of times on a faster device, as published for such predictors (Habitat, ATC 2021)
_ONE_BATCH = 0.10  # samples may cost otherwise where one batch alone was measured
_NO_JITTER = 0.03
_DISTANCES = (1.0, 2.0, 4.0, FARTHEST), (0.0, 0.06, 0.12, 0.25)  # from public series of step times

Parts = Mapping[str, tuple[float, float]]
"""By name, half a 90% band below and above the step, in logarithms."""


def distance_error(times_largest: float) -> float:
    """Half of the 90% band, in logarithms of the step, that so many times the largest measured device count adds: 0 below 1."""
    times, halves = _DISTANCES
    return float(np.interp(math.log(times_largest), np.log(times), halves))


def beyond_reach(devices: int, largest: int) -> str | None:
    """Why so many devices have no number, given the largest measured count; None where they may have one."""
    times = devices / largest
    if times <= FARTHEST:
        return None
    far = f"{times:,.0f}x the largest measured count ({largest}): no number"
    return f"{far} and no range" if times > UNKNOWABLE else f"{far}; the range begins without any exposed communication"


def replay_parts(base: Base, profile: StepProfile, inputs: Inputs, then: Replayed, step_us: float) -> Parts:
    """What a replay is off by where its costs, the slowdown of two in flight, or gamma are at the ends of what they may be."""
    conditions = inputs.conditions

    def off(**values: Any) -> float:
        """How much longer the step would be under changed conditions."""
        return replayed_from(inputs.prepared, replace(conditions, **values), then.entered) - then.step_us

    def off_by_costs(by: float) -> float:
        latency_us, transfer_us = (
            tuple(math.exp(by) * one for one in each) for each in (conditions.latency_us, conditions.transfer_us)
        )
        return off(latency_us=latency_us, transfer_us=transfer_us)

    def off_by_gamma(gamma: float) -> float:
        return off(gamma=gamma) - (base.replayed(profile, gamma).step_us - base.replayed(profile).step_us)

    slowdowns = inputs.slowdowns if profile.servers > 1 else ()
    longer_us = {
        "costs": [off_by_costs(by) for by in (-inputs.below, inputs.above) if by],
        "two in flight": [off(slowdown=one) for one in slowdowns if one != conditions.slowdown],
        "computing next to them": [
            off_by_gamma(one) for one in base.interference.gamma_band if one != conditions.gamma
        ],
    }
    return {
        name: (
            -math.log(max(0.05, 1 + min(0.0, *us, 0.0) / step_us)),
            math.log1p(max(0.0, *us, 0.0) / step_us),
        )
        for name, us in longer_us.items()
    }


def half_band(
    base: Base, scenario: Scenario, parts: Sequence[Parts], exposed_share: float, times: float
) -> tuple[float, float]:
    """Half the band below and above; `times` is the requested count over the largest measured one."""
    alike = scenario == Scenario()
    spread, method = base.spread, 0.0 if alike else ASSUMED_ERROR
    if (
        base.method_error is not None and not alike
    ):  # the repeats' noise is in the errors on own cells: the larger counts
        spread, method = (spread, 0.0) if spread > base.method_error else (0.0, base.method_error)
    both = [spread, method, distance_error(times) * (0.5 + 0.5 * min(1.0, 4 * exposed_share))]
    if scenario.faster != 1.0:
        both.append(DEVICE_ERROR)
    if scenario.batch_size is not None and len(base.single_us) < 2 and scenario.batch_size != base.batch_size:
        both.append(_ONE_BATCH)
    if not base.lateness.known and scenario.jitter is None and times > 1:
        both.append(_NO_JITTER)
    below, above = (math.hypot(*both, *(max(one[name][side] for one in parts) for name in parts[0])) for side in (0, 1))
    return below, above
