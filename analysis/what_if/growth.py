"""How a table's overhead t_N - t_1 grows with the devices: a power of N - 1, and how surely it is known.

Of each batch and count the median overhead; log(overhead) is a line over log(N - 1) with one slope for all batches of a link, and
a level for each batch. A ring's bandwidth gives slopes near 0, a tree's latency some 0.3, a ring's latency and whatever all
ranks do in turn 1. The slope is held by a prior about what tables of few counts cannot tell (a conjugate normal prior: Gelman et
al., Bayesian Data Analysis, chapter 14), and lies between 0 and 1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.stats.arrays import Floats
from dpscope.analysis.what_if.step_table import MeasuredStep

_PRIOR = (0.3, 0.35)  # mean and standard deviation of the slope
_NOISE = 0.04  # of a step: what medians of one count err by
_NOISE_POINTS = 4.0  # how many points that weighs beside the table's own
_SHOWN = 0.03  # of t_1, from which on an overhead is more than noise
_SURELY = 0.5  # the slope above which, surely, an overhead is said to be steep
_NINE_OF_TEN = 1.645  # standard deviations: the upper edge of a 90% band


@dataclass(frozen=True)
class Growth:
    """`slope` and its standard deviation; `points`: the mean of log(N - 1) and of log(overhead) by batch, if it shows any."""

    slope: float
    deviation: float
    points: Mapping[int, tuple[float, float]]

    @property
    def steep(self) -> bool:
        """Whether the overhead surely grows faster than the square root: no forecast that saturates tells it then."""
        return self.slope - _NINE_OF_TEN * self.deviation > _SURELY

    def step_us(self, alone_us: float, batch: int, ranks: int) -> float | None:
        """The step if the overhead goes on growing as it did; None of a batch that shows none."""
        return self._at(self.slope, alone_us, batch, ranks)

    def steepest_us(self, alone_us: float, batch: int, ranks: int) -> float | None:
        """The same by the steepest slope that the rows leave likely: an upper edge."""
        return self._at(min(1.0, self.slope + _NINE_OF_TEN * self.deviation), alone_us, batch, ranks)

    def _at(self, slope: float, alone_us: float, batch: int, ranks: int) -> float | None:
        if batch not in self.points or ranks < 2:
            return None
        middle, level = self.points[batch]
        return alone_us + math.exp(level + slope * (math.log(ranks - 1) - middle))


def growth_of(rows: Sequence[MeasuredStep], alone_us: Callable[[int], float | None]) -> Growth:
    """Of rows over one kind of link; `alone_us` is t_1 by batch. How far points lie off the lines corrects the noise assumed."""
    lines = _lines(rows, alone_us)
    first = _fitted(lines, _NOISE)
    misfit, free = 0.0, -1
    for batch, line in lines.items():
        middle, level = first.points[batch]
        misfit += float(np.sum(_weights(line, _NOISE) * (line.logs - level - first.slope * (line.hops - middle)) ** 2))
        free += len(line.hops) - 1
    if free < 1:
        return first
    return _fitted(lines, _NOISE * math.sqrt((_NOISE_POINTS + misfit) / (_NOISE_POINTS + free)))


@dataclass(frozen=True)
class _Line:
    """One batch, a point a count: log(N - 1), log(overhead) and what share of the step the overhead is."""

    hops: Floats
    logs: Floats
    shares: Floats


def _lines(rows: Sequence[MeasuredStep], alone_us: Callable[[int], float | None]) -> dict[int, _Line]:
    groups: dict[int, dict[int, list[float]]] = {}
    for row in rows:
        if row.placement.ranks > 1:
            groups.setdefault(row.batch_size, {}).setdefault(row.placement.ranks, []).append(row.step_us)
    lines = {}
    for batch, counts in groups.items():
        alone, steps = alone_us(batch), np.array([np.median(steps) for steps in counts.values()])
        if alone is None or steps.max() - alone < _SHOWN * alone:
            continue
        over = np.maximum(steps - alone, _NOISE * steps / 2)  # one that noise hides is small, and weighs little
        lines[batch] = _Line(np.log(np.array(list(counts)) - 1.0), np.log(over), over / steps)
    return lines


def _weights(line: _Line, noise: float) -> Floats:
    """One over each point's variance: of a small overhead the step's error is a large part."""
    return np.asarray((line.shares / noise) ** 2)


def _fitted(lines: Mapping[int, _Line], noise: float) -> Growth:
    precision, pull, points = 1 / _PRIOR[1] ** 2, _PRIOR[0] / _PRIOR[1] ** 2, {}
    for batch, line in lines.items():
        weights = _weights(line, noise)
        middle, level = float(np.average(line.hops, weights=weights)), float(np.average(line.logs, weights=weights))
        precision += float(np.sum(weights * (line.hops - middle) ** 2))
        pull += float(np.sum(weights * (line.hops - middle) * (line.logs - level)))
        points[batch] = (middle, level)
    return Growth(min(max(pull / precision, 0.0), 1.0), precision**-0.5, points)
