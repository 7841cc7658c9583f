"""One model of how a data-parallel step depends on devices, nodes and batch, fitted to measured steps.

t_N(b) = (A^g + T^g)^(1/g), where

- A = t_1(b) (1 + c + j z_N) is compute. t_1(b) is the step of one device, interpolated between batches; c is what
  DistributedDataParallel adds on one device; j z_N is the delay of the slowest of N ranks, where z_N is the expected maximum of N
  standard normal numbers (Blom, Statistical Estimates and Transformed Beta-Variables, Wiley 1958).
- T = a h(n) + w 2(n-1)/n is the all-reduce over the n members of the level it crosses: the devices of one node, or the nodes. The
  second term is the ring's (Patarasu and Yuan, J. Parallel Distrib. Comput. 69, 2009): the devices of a node share its link, so
  that between nodes each link carries 2(n-1)/n of the gradients. a and w have a value for each level.
- h(n) = (n^p - 1)/p is how latency grows: with log n as p approaches 0 (trees), with n - 1 for p = 1 (a ring's hops).
- g says how far the two overlap: 1 adds them, infinity hides the shorter one. This form and the separate terms per level are
  those of Pollux (Qiao et al., OSDI 2021, section 3.2).

What the model misses at one batch and level is corrected by the median residual of the counts nearest to the one in question.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from dpscope.analysis.stats.arrays import Floats
from dpscope.analysis.what_if.single_device import SingleDevice, single_device
from dpscope.analysis.what_if.step_table import MeasuredStep, Placement

LEVELS = ("within a node", "between nodes")

# Prior mean and standard deviation of log a and log w within a node, log a and log w between nodes (all as shares of the median
# t_1), log(g - 1), log c, log j and the logit of p. They decide what the rows leave open.
_PRIOR = np.array([*np.log([0.01, 0.1, 0.02, 0.5]), 1.0, *np.log([0.02, 0.05]), math.log(0.15 / 0.85)])
_WIDTH = np.array([3.0, 2.0, 3.0, 2.0, 0.7, 1.5, 1.0, 2.0])
_WIRES, _LATENCIES = (0.02, 0.1, 0.5, 2.0), (0.01, 0.1)  # starting values of w and a: the misfit has several minima
_ALONE = (
    0.95,
    0.3,
)  # an unmeasured t_1: prior median as a share of the shortest step at its batch, and its width in logarithms
_NOISE = 0.06  # relative error of a step before the rows have shown theirs
_NOISE_ROWS = 2.0  # rows that this assumption counts for
_CORRECTION_ROWS = 0.2  # weight of "no residual", against 1 for four rows at the same count


def level(place: Placement) -> int:
    """The index in LEVELS of the link that the gradients cross."""
    return int(place.nodes > 1)


def expected_maximum(ranks: Floats) -> Floats:
    """The expected maximum of that many standard normal numbers, by Blom's approximation; 0 for one."""
    from scipy.special import ndtri  # imported here because a replay fits nothing

    return np.where(ranks > 1, ndtri((ranks - 0.375) / (ranks + 0.25)), 0.0)


@dataclass(frozen=True)
class _Design:
    """One entry per configuration: devices, members of the level, whether that is the nodes, t_1, microseconds."""

    ranks: Floats
    members: Floats
    several: npt.NDArray[np.bool_]
    alone_us: Floats

    @classmethod
    def of(cls, rows: Sequence[MeasuredStep], alone_us: Floats) -> "_Design":
        places = [row.placement for row in rows]
        several = np.array([place.nodes > 1 for place in places])
        ranks = np.array([place.ranks for place in places], dtype=float)
        return cls(ranks, np.where(several, [float(place.nodes) for place in places], ranks), several, alone_us)

    def parts_us(self, parameters: Floats, unit_us: float) -> tuple[Floats, Floats]:
        """A without the delay of the slowest rank, and the step."""
        latency = np.where(self.several, *np.exp(parameters[[2, 0]]))
        wire = np.where(self.several, *np.exp(parameters[[3, 1]]))
        overlap, (own, late), power = 1 + np.exp(parameters[4]), np.exp(parameters[5:7]), _share(parameters[7])
        growth = (self.members**power - 1) / power
        transfer = np.maximum(latency * growth + wire * 2 * (1 - 1 / self.members), 1e-9) * unit_us
        wrapped = self.alone_us * (1 + own)
        compute = wrapped + self.alone_us * late * expected_maximum(self.ranks)
        longer = np.maximum(compute, transfer)
        steps = longer * ((compute / longer) ** overlap + (transfer / longer) ** overlap) ** (1 / overlap)
        return wrapped, np.where(self.ranks > 1, steps, wrapped)


def _share(logit: float) -> float:
    return float(1 / (1 + np.exp(-np.clip(logit, -6, 6))))


@dataclass(frozen=True)
class StepModel:
    """The model fitted to `rows`; `measured_alone` is False where t_1 is an estimate of the fit, as no row has it."""

    rows: tuple[MeasuredStep, ...]
    single: SingleDevice
    measured_alone: bool
    parameters: Floats
    unit_us: float

    def predict(self, configurations: Sequence[MeasuredStep]) -> tuple[Floats, Floats]:
        """The step and its exposed communication including waits, microseconds; t_1 must be known at every batch."""
        wrapped, steps = self._uncorrected(configurations)
        factors = np.exp([self._correction(row.batch_size, row.placement) for row in configurations])
        return steps * factors, np.maximum(steps * factors - wrapped, 0.0)

    def wire_us(self, several_nodes: bool) -> float:
        """Time that all gradients take over the link once, without latency."""
        return float(np.exp(self.parameters[3 if several_nodes else 1])) * self.unit_us

    def _uncorrected(self, rows: Sequence[MeasuredStep]) -> tuple[Floats, Floats]:
        alone = np.array([self.single.at(row.batch_size) for row in rows], dtype=float)
        return _Design.of(rows, alone).parts_us(self.parameters, self.unit_us)

    @cached_property
    def _residuals(self) -> dict[tuple[int, int], list[tuple[float, float, float]]]:
        """By batch and level: device count, median log residual, weight."""
        groups: dict[tuple[int, int], dict[int, list[float]]] = {}
        _, steps = self._uncorrected(self.rows)
        for row, step in zip(self.rows, steps, strict=True):
            if row.placement.ranks > 1:
                counts = groups.setdefault((row.batch_size, level(row.placement)), {})
                counts.setdefault(row.placement.ranks, []).append(math.log(row.step_us / step))
        return {
            key: [(float(count), float(np.median(logs)), min(len(logs), 4) / 4) for count, logs in counts.items()]
            for key, counts in groups.items()
        }

    def _correction(self, batch_size: int, place: Placement) -> float:
        near = [
            (residual, weight * math.exp(-abs(math.log2(place.ranks / count))))
            for count, residual, weight in self._residuals.get((batch_size, level(place)), [])
        ]
        total = sum(weight for _, weight in near)
        return sum(residual * weight for residual, weight in near) / (total + _CORRECTION_ROWS)


def fit_steps(rows: Sequence[MeasuredStep]) -> StepModel | None:
    """The most likely model of rows that measure one thing; None without rows on several devices that can be compared.

    Least squares on logarithms with a soft loss, so that single wild rows do not decide. Without a row of one device, t_1 is
    fitted at every batch, which takes at least two device counts.
    """
    single = single_device(rows)
    if single is None:
        return _without_single(rows)
    usable = [row for row in rows if not row.single and single.at(row.batch_size) is not None]
    if not any(row.placement.ranks > 1 for row in usable):
        return None
    alone = np.array([single.at(row.batch_size) for row in usable], dtype=float)
    unit = float(np.median(alone))
    start = StepModel(tuple(usable), single, True, _PRIOR, unit)
    return replace(start, parameters=_fitted(usable, alone, None, unit)[: len(_PRIOR)])


def _without_single(rows: Sequence[MeasuredStep]) -> StepModel | None:
    if len({row.placement.ranks for row in rows}) < 2:
        return None
    batches, which = np.unique([row.batch_size for row in rows], return_inverse=True)
    steps = np.array([row.step_us for row in rows])
    guesses = np.array([_ALONE[0] * steps[which == index].min() for index in range(len(batches))])
    unit = float(np.median(guesses))
    found = _fitted(rows, guesses[which], which, unit)
    single = SingleDevice(batches.astype(float), guesses * np.exp(found[len(_PRIOR) :]))
    return StepModel(tuple(rows), single, False, found[: len(_PRIOR)], unit)


def _fitted(
    rows: Sequence[MeasuredStep], alone_us: Floats, which: npt.NDArray[np.intp] | None, unit_us: float
) -> Floats:
    """Parameters, then log corrections of t_1 by batch where `which` names each row's batch."""
    from scipy.optimize import least_squares

    extra = 0 if which is None else int(which.max()) + 1
    prior = np.concatenate([_PRIOR, np.zeros(extra)])
    width = np.concatenate([_WIDTH, np.full(extra, _ALONE[1])])
    logs = np.log([row.step_us for row in rows])
    design = _Design.of(rows, alone_us)
    nearness = design.ranks / design.ranks.max()  # predictions are for more devices rather than fewer

    def residuals(found: Floats) -> Floats:
        fitted = design if which is None else replace(design, alone_us=alone_us * np.exp(found[len(_PRIOR) :])[which])
        return np.asarray(np.log(fitted.parts_us(found, unit_us)[1]) - logs)

    def minimum(noise: float, start: Floats) -> Floats:
        def misfit(found: Floats) -> Floats:
            return np.concatenate([residuals(found) * nearness / noise, (found - prior) / width])

        return np.asarray(least_squares(misfit, start, loss="soft_l1", ftol=1e-5, xtol=1e-5, gtol=1e-5).x)

    def cost(found: Floats) -> float:
        scaled = np.concatenate([residuals(found) * nearness / _NOISE, (found - prior) / width])
        return float(np.sum(np.sqrt(1 + scaled**2)))

    starts = [
        np.concatenate([np.log([a_in, w_in, a_net, w_net]), prior[4:]])
        for a_in, w_in, a_net, w_net in product(_LATENCIES, _WIRES, _LATENCIES, _WIRES)
    ]
    found = minimum(_NOISE, min(starts, key=cost))
    typical = np.minimum(residuals(found) ** 2, (3 * _NOISE) ** 2)
    noise = math.sqrt((_NOISE_ROWS * _NOISE**2 + float(np.sum(typical))) / (_NOISE_ROWS + len(rows)))
    return minimum(noise, found)
