"""Five forecasts of one step from a table, and how much each is trusted: by how it did on the table's own larger counts.

`model` is the fitted model of step_model.py. The others speak of one batch and one kind of link only: `nearest`, the step at the
nearest measured count; `ring`, a straight line in 1/N, which is how a ring's time saturates; `growth`, a straight line in log N,
which does not (latencies of trees, congestion, the slowest of N); `power`, the overhead as a power of N - 1 (growth.py). They
are joined by their geometric mean, weighted with the inverse squared errors that each made when it was shown the smaller counts
and asked for the larger ones (Bates and Granger, "The combination of forecasts", OR 20(4), 1969). The power of N - 1 counts
where the rows show that the overhead surely grows faster than a square root, in place of the three that grow slower than any
such power; elsewhere it only widens the band.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.what_if.step_table import MeasuredStep, Placement

MODEL, NEAREST, RING, GROWTH, POWER = "model", "nearest", "ring", "growth", "power"
_PRIOR_ERRORS = {MODEL: 0.06, NEAREST: 0.06, RING: 0.06, GROWTH: 0.12, POWER: 0.06}
_PRIOR_GROUPS = 1.0  # how many counts that prior weighs
_LEAST_ERROR = 0.02  # added to every error: what noise alone makes of it

LINKS = ("one device", "within a node", "between nodes")

Forecasts = Mapping[str, float]


def level(place: Placement) -> str:
    """Which link a step's gradients cross."""
    return "one device" if place.ranks == 1 else "between nodes" if place.nodes > 1 else "within a node"


def simple_forecasts(alike: Sequence[MeasuredStep], alone_us: float, ranks: int) -> dict[str, float]:
    """Those that need no fit of all rows, microseconds: from rows of one batch and link, and t_1 at that batch."""
    points = [(row.placement.ranks, row.step_us) for row in alike]
    if not points:
        return {}
    counts = {count for count, _ in points}
    closest = min(counts, key=lambda count: abs(math.log(count / ranks)))
    found = {NEAREST: float(np.median([step for count, step in points if count == closest]))}
    if len(counts) < 2:
        points = [*points, (1, alone_us)]  # which is where both lines begin
    steps = [step for _, step in points]
    slope, start = np.polyfit([1 / count for count, _ in points], steps, 1)
    found[RING] = float(start + slope / ranks)
    slope, start = np.polyfit([math.log(count) for count, _ in points], steps, 1)
    found[GROWTH] = float(start + max(slope, 0.0) * math.log(ranks)) if slope > 0 else found[NEAREST]
    return {name: value for name, value in found.items() if value > 0}


@dataclass(frozen=True)
class Hindcast:
    """One measured row forecast from the rows of fewer devices, `largest` at most, or of other counts (None)."""

    row: MeasuredStep
    forecasts: Forecasts
    exposed_share: float  # of the model's step
    largest: int | None

    @property
    def times(self) -> float:
        return self.row.placement.ranks / self.largest if self.largest else 1.0


@dataclass(frozen=True)
class Trust:
    """How much each forecast counts on one link; `steep`: overheads surely grow faster than what saturates."""

    weights: Mapping[str, float]
    steep: bool = False

    def joins(self, name: str) -> bool:
        """Whether a forecast is one of those that are joined."""
        return name in (MODEL, POWER) if self.steep else name != POWER


def trust_of(hindcasts: Sequence[Hindcast], link: str, steep: bool = False) -> Trust:
    """How much each forecast counts on this link; by the errors assumed where the table tells nothing."""
    groups: dict[tuple[int | None, int], list[Hindcast]] = {}
    for one in hindcasts:
        if level(one.row.placement) == link:
            groups.setdefault((one.largest, one.row.placement.ranks), []).append(one)
    most = max((largest or 1 for largest, _ in groups), default=1)
    found = {}
    for name, prior in _PRIOR_ERRORS.items():
        sum_, weight = _PRIOR_GROUPS * prior, _PRIOR_GROUPS
        for (largest, _), group in groups.items():
            own = [abs(math.log(one.forecasts[name] / one.row.step_us)) for one in group if name in one.forecasts]
            if own:
                nearness = (largest or 1) / most
                sum_, weight = sum_ + nearness * float(np.mean(own)), weight + nearness
        found[name] = 1 / (_LEAST_ERROR + sum_ / weight) ** 2
    return Trust(found, steep)


def combined_us(forecasts: Forecasts, trust: Trust) -> float:
    """The weighted geometric mean of those that are joined, microseconds."""
    names = [name for name in forecasts if trust.joins(name)]
    logs = np.log([forecasts[name] for name in names])
    return math.exp(float(np.average(logs, weights=[trust.weights[name] for name in names])))


def disagreement(forecasts: Forecasts, trust: Trust) -> float:
    """The weighted standard deviation of all forecasts about the joined one, in logarithms.

    The part of an error's variance that lies between models, beside that within one (Hoeting et al., "Bayesian model averaging",
    Statistical Science 14(4), 1999).
    """
    off = np.log(list(forecasts.values())) - math.log(combined_us(forecasts, trust))
    return math.sqrt(float(np.average(off**2, weights=[trust.weights[name] for name in forecasts])))
