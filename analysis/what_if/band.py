"""The 90% band of a prediction, and how far from the measured device counts there is one.

The band joins, below and above: the repeats of the base; the method's error on other cells; the
costs of collectives; computing next to a collective, where it is assumed or measured with an
interval; the distance in devices; another batch. They are independent, so their squares add.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dpscope.analysis.stats.left_out import half_band_beyond
from dpscope.analysis.what_if.inputs import Inputs
from dpscope.analysis.what_if.replay import Conditions, Replay
from dpscope.analysis.what_if.scenario import Base, Setting
from dpscope.analysis.what_if.step_profile import StepProfile

NINE_OF_TEN = 1.645  # standard deviations to either side that hold 90% of a normal distribution
# of the method where no other cell measures it: the error of cells in the live experiments
ASSUMED_ERROR = 0.04
# samples may cost otherwise at a batch beyond those that one device was measured at
_OTHER_BATCH = 0.10

Parts = Mapping[str, tuple[float, float]]
"""By name, half a 90% band below and above the step, in logarithms."""


def replay_parts(
    base: Base, profile: StepProfile, inputs: Inputs, then: Replay, step_us: float
) -> Parts:
    """What a replay is off by where its costs, or gamma, are at the ends of what they may be."""
    conditions = inputs.conditions

    def longer_us(of: Conditions) -> float:
        return Replay(inputs.prepared, of).step_us - then.step_us

    def longer_by_costs(by: float) -> float:
        """How much longer the step is with costs that are so much dearer, in logarithms."""
        factor = math.exp(by)
        dearer = conditions._replace(
            latency_us=tuple(factor * latency_us for latency_us in conditions.latency_us),
            transfer_us=tuple(factor * transfer_us for transfer_us in conditions.transfer_us),
        )
        return longer_us(dearer)

    def longer_by_gamma(gamma: float) -> float:
        """The same with another gamma, which the base's replay has, too."""
        now_us = base.replayed(profile, conditions.gamma).step_us
        base_longer_us = base.replayed(profile, gamma).step_us - now_us
        return longer_us(conditions._replace(gamma=gamma)) - base_longer_us

    by_costs = [longer_by_costs(by) for by in (-inputs.below, inputs.above) if by]
    gammas = (base.contention.low, base.contention.high)
    by_gamma = [
        longer_by_gamma(other_gamma) for other_gamma in gammas if other_gamma != conditions.gamma
    ]
    return {
        "costs": _in_logarithms(by_costs, step_us),
        "contention": _in_logarithms(by_gamma, step_us),
    }


def _in_logarithms(longer_us: Sequence[float], step_us: float) -> tuple[float, float]:
    """How far below and above the step these are."""
    least = min(0.0, *longer_us, 0.0) / step_us
    most = max(0.0, *longer_us, 0.0) / step_us
    return -math.log(max(0.05, 1 + least)), math.log1p(most)


class Band(NamedTuple):
    """Half of it below and above, in logarithms."""

    below: float
    above: float

    def around(self, value: float) -> tuple[float, float]:
        return value * math.exp(-self.below), value * math.exp(self.above)

    def joined(self, half: float) -> "Band":
        """With another part, independent of it."""
        return Band(math.hypot(self.below, half), math.hypot(self.above, half))


def band_of_change(
    base: Base, setting: Setting, parts: Sequence[Parts], exposed_share: float, times_largest: float
) -> Band:
    """Without the method's error; `times_largest` is the requested count over the largest measured
    one.
    """
    alike = []
    # less of what compute hides
    distance = half_band_beyond(times_largest)
    hidden_share = max(0.0, 1 - 4 * exposed_share)
    alike.append(distance * (1 - 0.5 * hidden_share))
    alike += _of_batch(base, setting.micro_batch)
    below, above = list(alike), list(alike)
    for name in parts[0]:
        halves = [of_profile[name] for of_profile in parts]
        below.append(max(half for half, _ in halves))
        above.append(max(half for _, half in halves))
    return Band(math.hypot(*below), math.hypot(*above))


def _of_batch(base: Base, wanted: int | None) -> list[float]:
    """What another batch adds: the repeats of one device at the batches that give its compute, and
    what is assumed where these are not on both sides of it.
    """
    if wanted is None or wanted == base.setting.micro_batch:
        return []
    measured = sorted(base.single_us)
    by_distance = sorted(measured, key=lambda batch: abs(batch - wanted))
    nearest = by_distance[:2]
    spreads = []
    for batch in nearest:
        spread = base.single_spread.get(batch, 0.0)
        spreads.append(spread)
    between = len(measured) > 1 and measured[0] <= wanted <= measured[-1]
    if not between:
        spreads.append(_OTHER_BATCH)
    return spreads


def method_error(base: Base) -> float:
    """Half a band of the method itself, of which the base's repeats are no part."""
    if base.method_error is None:
        return ASSUMED_ERROR
    return base.method_error


def repeats_and_method(base: Base, setting: Setting) -> float:
    """Of the base's own step its repeats alone. The repeats' noise is in the errors on own cells,
    too: the larger counts.
    """
    if setting == base.setting:
        return base.spread
    if base.method_error is None:
        return math.hypot(base.spread, ASSUMED_ERROR)
    return max(base.spread, base.method_error)
