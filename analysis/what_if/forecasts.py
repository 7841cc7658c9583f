"""Four forecasts of one step from a table, and how much each is trusted: by how it did on the table's own larger counts.

`model` is the fitted model of step_model.py. The others speak of one batch and one kind of link only: `nearest`, the step at the
nearest measured count; `ring`, a straight line in 1/N, which is how a ring's time saturates; `growth`, a straight line in log N,
which does not (latencies of trees, congestion, the slowest of N). They are joined by their geometric mean, weighted with the
inverse squared errors that each made when it was shown the smaller counts and asked for the larger ones (Bates and Granger, "The
combination of forecasts", OR 20(4), 1969).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.what_if.step_table import MeasuredStep, Placement

MODEL, NEAREST, RING, GROWTH = "model", "nearest", "ring", "growth"
_PRIOR_ERRORS = {MODEL: 0.06, NEAREST: 0.06, RING: 0.06, GROWTH: 0.12}  # before the table tells its own
_PRIOR_GROUPS = 1.0  # how many counts that prior weighs
_SHOWN = 0.03  # of t_1, from which on an overhead is more than noise
_LEAST_ERROR = 0.02  # errors below it are noise

LINKS = ("one device", "within a node", "between nodes")

Forecasts = Mapping[str, float]


def level(place: Placement) -> str:
    """Which link a step's gradients cross."""
    return "one device" if place.ranks == 1 else "between nodes" if place.nodes > 1 else "within a node"


def simple_forecasts(rows: Sequence[MeasuredStep], alone_us: float, asked: MeasuredStep) -> dict[str, float]:
    """Those that need no fitted model, microseconds; `alone_us` is t_1 at the batch asked for."""
    points = [(row.placement.ranks, row.step_us) for row in _alike(rows, asked)]
    if not points:
        return {}
    counts, ranks = {count for count, _ in points}, asked.placement.ranks
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


def grown(rows: Sequence[MeasuredStep], alone_us: float, asked: MeasuredStep) -> float | None:
    """The step if its overhead t_N - t_1 kept growing by the power of N (0 to 1) that the measured counts show.

    The steepest of the plausible continuations: an upper edge. None where no overhead is clear at two counts.
    """
    over: dict[int, list[float]] = {}
    for row in _alike(rows, asked):
        over.setdefault(row.placement.ranks, []).append(row.step_us - alone_us)
    medians = {count: float(np.median(values)) for count, values in over.items()}
    if len(medians) < 2 or min(medians.values()) < _SHOWN * alone_us:
        return None
    counts, logs = np.log(list(medians)), np.log(list(medians.values()))
    power = min(max(float(np.polyfit(counts, logs, 1)[0]), 0.0), 1.0)
    start = float(np.mean(logs - power * counts))
    return alone_us + math.exp(start + power * math.log(asked.placement.ranks))


def _alike(rows: Sequence[MeasuredStep], asked: MeasuredStep) -> list[MeasuredStep]:
    """Rows of the same batch over the same kind of link."""
    link = level(asked.placement)
    return [row for row in rows if row.batch_size == asked.batch_size and level(row.placement) == link]


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


def weights(hindcasts: Sequence[Hindcast], link: str) -> dict[str, float]:
    """How much each forecast counts on this link; equal where the table tells nothing."""
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
        found[name] = 1 / (_LEAST_ERROR + sum_ / weight) ** 3
    return found


def combined_us(forecasts: Forecasts, trust: Mapping[str, float]) -> float:
    """The weighted geometric mean, microseconds."""
    names = list(forecasts)
    logs = np.log([forecasts[name] for name in names])
    return math.exp(float(np.average(logs, weights=[trust[name] for name in names])))
