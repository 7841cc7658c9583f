"""One model of how a data-parallel step depends on devices, nodes and batch, fitted to measured steps.

t_N(b) = (A^g + T^g)^(1/g), where

- A = t_1(b) (1 + c + j z_N) is compute. t_1(b) is the step of one device, interpolated between batches; c is what
  DistributedDataParallel adds on one device; j z_N is the delay of the slowest of N ranks, where z_N is the expected maximum of N
  standard normal numbers (Blom, Statistical Estimates and Transformed Beta-Variables, Wiley 1958).
- T = a h(n) + w f(n) is the all-reduce over the n members of the level it crosses: the devices of one node, or the nodes. f(n) is
  the ring's 2(n-1)/n (`bus_factor`): the devices of a node share its link, so that between nodes each link carries that much of
  the gradients. a and w have a value for each level.
- h(n) = (n^p - 1)/p is how latency grows: with log n as p approaches 0 (trees), with n - 1 for p = 1 (a ring's hops).
- g is how far the two overlap: 1 adds them, infinity hides the shorter one. This form and the separate terms per level are
  those of Pollux (Qiao et al., OSDI 2021, section 3.2).

What the model misses at one batch and level is corrected by the median residual of the counts nearest to the one in question.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.what_if.step_table import MeasuredStep

BATCH_REACH = 2.0  # times the measured batches up to which t_1 is extrapolated

# Prior mean and standard deviation of log a and log w within a node, log a and log w between nodes (all as shares of the median
# t_1), log(g - 1), log c, log j and the logit of p. They decide what the rows leave open.
_PRIOR = np.array([*np.log([0.01, 0.1, 0.02, 0.5]), 1.0, *np.log([0.02, 0.05]), math.log(0.15 / 0.85)])
_WIDTH = np.array([3.0, 2.0, 3.0, 2.0, 0.7, 1.5, 1.0, 2.0])
# starting values of the logarithms of a and w, within a node and between nodes: the misfit has several minima
_STARTS = [np.log(links) for links in product(*[(0.01, 0.1), (0.02, 0.1, 0.5, 2.0)] * 2)]
_ALONE, _ALONE_WIDTH = 0.95, 0.3  # prior of an unmeasured t_1: share of the shortest step, width in logarithms
_NOISE = 0.06  # relative error of a step before the rows have shown theirs
_NOISE_ROWS = 2.0  # rows that this assumption counts for
_CORRECTION_ROWS = 0.2  # weight of "no residual", against 1 for four rows at the same count


def expected_maximum(ranks: Floats) -> Floats:
    """The expected maximum of that many standard normal numbers, by Blom's approximation; 0 for one."""
    from scipy.special import ndtri  # imported here because a replay fits nothing

    return np.where(ranks > 1, ndtri((ranks - 0.375) / (ranks + 0.25)), 0.0)


@dataclass(frozen=True)
class SingleDevice:
    """t_1 by batch per device, ascending; `measured` is False where it is an estimate, as no row is of one device."""

    batches: Floats
    step_us: Floats
    measured: bool = True

    @classmethod
    def of(cls, rows: Sequence[MeasuredStep]) -> "SingleDevice":
        """The median step by batch of one device, else of DistributedDataParallel on one device.

        Where no row is of one device, a first guess: a share of the shortest step at each batch.
        """
        alone = [row for row in rows if row.single] or [row for row in rows if row.ranks == 1]
        by_batch: dict[int, list[float]] = {}
        for row in sorted(alone or rows, key=lambda row: row.batch_size):
            by_batch.setdefault(row.batch_size, []).append(row.step_us)
        steps = [float(np.median(of)) if alone else _ALONE * min(of) for of in by_batch.values()]
        return cls(np.array(list(by_batch), dtype=float), np.array(steps), bool(alone))

    def at(self, batch_size: int) -> float | None:
        """Linear between measured batches and, by the nearest two, up to twice beyond them; None where it is not known."""
        least, most = self.batches[0], self.batches[-1]
        if least <= batch_size <= most:
            return float(np.interp(batch_size, self.batches, self.step_us))
        if len(self.batches) == 1 or not least / BATCH_REACH <= batch_size <= most * BATCH_REACH:
            return None
        pair = slice(0, 2) if batch_size < least else slice(-2, None)
        value = float(np.polyval(np.polyfit(self.batches[pair], self.step_us[pair], 1), batch_size))
        return value if value > 0 else None


def _design(rows: Sequence[MeasuredStep], single: SingleDevice) -> Floats:
    """A column per configuration: devices, members of the level, their ring's factor, LINKS' index, t_1 in us."""
    members = [row.nodes if row.link else row.ranks for row in rows]
    columns = [
        (row.ranks, count, bus_factor("all_reduce", count) or 0.0, row.link, single.at(row.batch_size))
        for row, count in zip(rows, members, strict=True)
    ]
    return np.array(columns, dtype=float).T


def _parts_us(design: Floats, parameters: Floats, unit_us: float) -> tuple[Floats, Floats]:
    """A without the delay of the slowest rank, and the step."""
    ranks, members, ring, link, alone_us = design
    latency, wire = np.where(link, *np.exp(parameters[[2, 0]])), np.where(link, *np.exp(parameters[[3, 1]]))
    overlap, (wrapping, delay) = 1 + np.exp(parameters[4]), np.exp(parameters[5:7])
    power = 1 / (1 + np.exp(-np.clip(parameters[7], -6, 6)))
    transfer = np.maximum(latency * (members**power - 1) / power + wire * ring, 1e-9) * unit_us
    wrapped = alone_us * (1 + wrapping)
    compute = wrapped + alone_us * delay * expected_maximum(ranks)
    longer = np.maximum(compute, transfer)
    steps = longer * ((compute / longer) ** overlap + (transfer / longer) ** overlap) ** (1 / overlap)
    return wrapped, np.where(ranks > 1, steps, wrapped)


@dataclass(frozen=True)
class StepModel:
    """The model fitted to `rows`; where no row has t_1, `single` is an estimate of the fit."""

    rows: tuple[MeasuredStep, ...]
    single: SingleDevice
    parameters: Floats
    unit_us: float

    def predict(self, configurations: Sequence[MeasuredStep]) -> tuple[Floats, Floats]:
        """The step and its exposed communication including waits, microseconds; t_1 must be known at every batch."""
        wrapped, steps = _parts_us(_design(configurations, self.single), self.parameters, self.unit_us)
        factors = np.exp([self._correction(row) for row in configurations])
        return steps * factors, np.maximum(steps * factors - wrapped, 0.0)

    def wire_us(self, link: int) -> float:
        """Time that all gradients take over a link once, without latency."""
        return float(np.exp(self.parameters[1 + 2 * link])) * self.unit_us

    @cached_property
    def _residuals(self) -> dict[tuple[int, int], dict[int, list[float]]]:
        """Log residuals by batch and link, then by device count."""
        groups: dict[tuple[int, int], dict[int, list[float]]] = {}
        _, steps = _parts_us(_design(self.rows, self.single), self.parameters, self.unit_us)
        for row, step in zip(self.rows, steps, strict=True):
            if row.ranks > 1:
                counts = groups.setdefault((row.batch_size, row.link), {})
                counts.setdefault(row.ranks, []).append(math.log(row.step_us / step))
        return groups

    def _correction(self, row: MeasuredStep) -> float:
        total, weights = 0.0, _CORRECTION_ROWS
        for count, logs in self._residuals.get((row.batch_size, row.link), {}).items():
            weight = min(len(logs), 4) / 4 * math.exp(-abs(math.log2(row.ranks / count)))
            total, weights = total + weight * float(np.median(logs)), weights + weight
        return total / weights


def fit_steps(rows: Sequence[MeasuredStep]) -> StepModel | None:
    """The most likely model of rows that measure one thing; None without rows on several devices that can be compared.

    Least squares on logarithms with a soft loss, so that single wild rows do not decide. Without a row of one device, t_1 is
    fitted at every batch, which takes at least two device counts.
    """
    single = SingleDevice.of(rows)
    usable = tuple(row for row in rows if not row.single and single.at(row.batch_size) is not None)
    counts = {row.ranks for row in usable}
    if not counts - {1} or (not single.measured and len(counts) < 2):
        return None
    unit = float(np.median([single.at(row.batch_size) for row in usable] if single.measured else single.step_us))
    parameters, corrections = np.split(_fitted(usable, single, unit), [len(_PRIOR)])
    if not single.measured:
        single = replace(single, step_us=single.step_us * np.exp(corrections))
    return StepModel(usable, single, parameters, unit)


def _fitted(rows: Sequence[MeasuredStep], single: SingleDevice, unit_us: float) -> Floats:
    """Parameters, then if t_1 was not measured its log corrections by batch."""
    from scipy.optimize import least_squares

    extra = np.zeros(0 if single.measured else len(single.batches))
    which = np.searchsorted(single.batches, [row.batch_size for row in rows])
    prior, width = np.concatenate([_PRIOR, extra]), np.concatenate([_WIDTH, extra + _ALONE_WIDTH])
    logs = np.log([row.step_us for row in rows])
    design = _design(rows, single)
    nearness = design[0] / design[0].max()  # predictions are for more devices rather than fewer

    def residuals(found: Floats) -> Floats:
        corrections = np.exp(found[len(_PRIOR) :])[which] if len(extra) else 1.0
        corrected = np.array([*design[:-1], design[-1] * corrections])
        return np.asarray(np.log(_parts_us(corrected, found, unit_us)[1]) - logs)

    def misfit(found: Floats, noise: float = _NOISE) -> Floats:
        return np.concatenate([residuals(found) * nearness / noise, (found - prior) / width])

    def minimum(start: Floats, noise: float = _NOISE) -> Floats:
        found = least_squares(misfit, start, loss="soft_l1", ftol=1e-5, xtol=1e-5, gtol=1e-5, args=(noise,))
        return np.asarray(found.x)

    starts = [np.concatenate([links, prior[4:]]) for links in _STARTS]
    found = minimum(min(starts, key=lambda start: float(np.sum(np.sqrt(1 + misfit(start) ** 2)))))
    typical = np.minimum(residuals(found) ** 2, (3 * _NOISE) ** 2)
    noise = math.sqrt((_NOISE_ROWS * _NOISE**2 + float(np.sum(typical))) / (_NOISE_ROWS + len(rows)))
    return minimum(found, noise)
