"""One model of how a data-parallel step depends on devices, nodes and batch, fitted to a table of measured steps, and its errors.

t_N(b) = (A^g + T^g)^(1/g), where

- A = t_1(b) (1 + c + j z_N) is compute. t_1(b) is the step of one device, interpolated between batches (not measured: 95% of the
  shortest step); c is what DistributedDataParallel adds on one device; j z_N is the delay of the slowest of N ranks, where z_N is
  the expected maximum of N standard normal numbers (Blom, Statistical Estimates and Transformed Beta-Variables, Wiley 1958).
- T = a h(n) + w f(n) is the all-reduce over the n members of the level it crosses: the devices of one node, or the nodes. f(n) is
  the ring's 2(n-1)/n (`bus_factor`): the devices of a node share its link, so that between nodes each link carries that much of
  the gradients. a and w have a value for each level.
- h(n) = (n^p - 1)/p is how latency grows: with log n as p approaches 0 (trees), with n - 1 for p = 1 (a ring's hops).
- g is how far the two overlap: 1 adds them, infinity hides the shorter one. This form and the separate terms per level are
  those of Pollux (Qiao et al., OSDI 2021, section 3.2).

What the model misses at one batch and level is corrected by the median residual of the counts nearest to the one in question.

Bands: every count is predicted from the smaller ones, for each measured count as the largest, and every count but the largest
from all others. Errors grow with the exposed share of the step and with the distance in devices, so half of a 90% band is
k sqrt(s0^2 + (s1 share)^2 + (s2 log2 times)^2) in logarithms of the step. k comes from those errors, weighted by how near their
count and distance are, and from a normal distribution where none is near: errors at small counts are no evidence for large ones.
s0, s1 and s2 were chosen on the public T4 series (tests/data/scaling).
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.what_if.prediction import BAND, FARTHEST, NINE_OF_TEN, UNKNOWABLE, Prediction, beyond_reach
from dpscope.analysis.what_if.step_table import LINKS, MeasuredStep
from dpscope.profiling.records.finding import counted

BATCH_REACH = 2.0  # times the measured batches up to which t_1 is extrapolated

# Prior mean and standard deviation of log a and log w within a node, log a and log w between nodes (all as shares of the median
# t_1), log(g - 1), log c, log j and the logit of p. They decide what the rows leave open.
_PRIOR = np.array([*np.log([0.01, 0.1, 0.02, 0.5]), 1.0, *np.log([0.02, 0.05]), math.log(0.15 / 0.85)])
_WIDTH = np.array([3.0, 2.0, 3.0, 2.0, 0.7, 1.5, 1.0, 2.0])
# starting values of the logarithms of a and w, within a node and between nodes: the misfit has several minima
_STARTS = [np.log(links) for links in product(*[(0.01, 0.1), (0.02, 0.1, 0.5, 2.0)] * 2)]
_ALONE = 0.95  # of the shortest step at a batch: t_1 where it was not measured
_NOISE = 0.06  # relative error of a step before the rows have shown theirs
_NOISE_ROWS = 2.0  # rows that this assumption counts for
_CORRECTION_ROWS = 0.2  # weight of "no residual", against 1 for four rows at the same count
_STEADY, _BY_SHARE, _BY_DISTANCE = 0.03, 0.17, 0.03
_ASSUMED_COUNTS = 0.3  # counts that the assumed width, 1.645, stands for
_NEAR_COUNT = 4.0  # errors at other counts lose weight by exp(-4) per factor of two
_MANY_ROWS = 10  # at one count, from which on their 90% quantile is used
_FASTER = 0.95  # times t_1: a median step below it is not the same training on more devices
_OTHER_UNIT = 100.0  # times t_1: a step this long suggests another unit
_TO_DEVIATION = 1.4826  # from a median absolute deviation to the standard deviation of a normal distribution
HIDDEN = 0.05  # share of the step below which exposed communication is too small to judge


def expected_maximum(ranks: Floats) -> Floats:
    """The expected maximum of that many standard normal numbers, by Blom's approximation; 0 for one."""
    from scipy.special import ndtri  # imported here because a replay fits nothing

    return np.where(ranks > 1, -ndtri(0.625 / (ranks + 0.25)), 0.0)


@dataclass(frozen=True)
class SingleDevice:
    """t_1 by batch per device, ascending; `measured` is False where it is assumed, as no row is of one device."""

    batches: Floats
    step_us: Floats
    measured: bool = True

    @classmethod
    def of(cls, rows: Sequence[MeasuredStep]) -> "SingleDevice":
        """The median step by batch of one device, else of DistributedDataParallel on one device.

        Where no row is of one device, a share of the shortest step at each batch, to which the fit's c adds.
        """
        alone = [row for row in rows if row.single] or [row for row in rows if row.ranks == 1]
        by_batch: dict[int, list[float]] = defaultdict(list)
        for row in alone or rows:
            by_batch[row.batch_size].append(row.step_us)
        steps = [np.median(by_batch[batch]) if alone else _ALONE * min(by_batch[batch]) for batch in sorted(by_batch)]
        return cls(np.array(sorted(by_batch), dtype=float), np.array(steps), bool(alone))

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
    steps = np.exp(np.logaddexp(overlap * np.log(compute), overlap * np.log(transfer)) / overlap)
    return wrapped, np.where(ranks > 1, steps, wrapped)


@dataclass(frozen=True)
class TableFit:
    """The model fitted to `rows`, and its errors.

    `errors` has a row per device count predicted without its rows: devices, how many times the largest count fitted (1 in
    between), 90% of |error| / shape. `left_out` are measured rows predicted without their device count.
    """

    rows: tuple[MeasuredStep, ...]
    single: SingleDevice
    parameters: Floats
    unit_us: float
    errors: tuple[tuple[int, float, float], ...] = ()
    left_out: tuple[tuple[MeasuredStep, Prediction], ...] = ()

    def predict(self, configurations: Sequence[MeasuredStep]) -> tuple[Floats, Floats]:
        """The step and its exposed communication including waits, microseconds; t_1 must be known at every batch."""
        wrapped, steps = _parts_us(_design(configurations, self.single), self.parameters, self.unit_us)
        factors = np.exp([self._correction(row) for row in configurations])
        return steps * factors, np.maximum(steps * factors - wrapped, 0.0)

    @cached_property
    def _residuals(self) -> dict[tuple[int, int], dict[int, list[float]]]:
        """Log residuals by batch and link, then by device count."""
        groups: dict[tuple[int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        _, steps = _parts_us(_design(self.rows, self.single), self.parameters, self.unit_us)
        for row, step in zip(self.rows, steps, strict=True):
            if row.ranks > 1:
                groups[row.batch_size, row.link][row.ranks].append(math.log(row.step_us / step))
        return groups

    def _correction(self, row: MeasuredStep) -> float:
        total, weights = 0.0, _CORRECTION_ROWS
        for count, logs in self._residuals.get((row.batch_size, row.link), {}).items():
            weight = min(len(logs), 4) / 4 * math.exp(-abs(math.log2(row.ranks / count)))
            total, weights = total + weight * float(np.median(logs)), weights + weight
        return total / weights

    def largest(self, link: int) -> int:
        """The largest device count measured over a link; 0 if none was."""
        return max((row.ranks for row in self.rows if row.link == link and row.ranks > 1), default=0)

    def half_width(self, share: float, ranks: int, times: float) -> float:
        """Half of the 90% band, in logarithms of the step; twice the assumed width where one count leaves its growth unknown."""
        shape = float(_shape(share, times))
        if not self.errors:
            return min(2 * NINE_OF_TEN * shape, math.log(2))
        counts, distances, scaled = np.array(self.errors).T
        weights = np.exp(-_NEAR_COUNT * abs(np.log2(counts / ranks)) - abs(np.log2(distances / times)))
        square = (_ASSUMED_COUNTS * NINE_OF_TEN**2 + weights @ scaled**2) / (_ASSUMED_COUNTS + weights.sum())
        return float(min(math.sqrt(square) * shape, math.log(2)))

    def link_rate_gb_per_s(self, link: int, gradient_bytes: float) -> float | None:
        """The bus bandwidth of the fitted ring over a link; None where compute hides most of what it costs."""
        steps, exposed = self.predict([row for row in self.rows if row.ranks > 1 and row.link == link])
        if float(np.median(exposed / steps)) < HIDDEN:
            return None
        wire_us = float(np.exp(self.parameters[1 + 2 * link])) * self.unit_us  # of all gradients once, without latency
        return gradient_bytes / wire_us / 1e3


def _shape(shares: Floats | float, times: float) -> Floats:
    return np.asarray(np.sqrt(_STEADY**2 + (_BY_SHARE * shares) ** 2 + (_BY_DISTANCE * math.log2(times)) ** 2))


def _fit_steps(rows: Sequence[MeasuredStep]) -> TableFit | None:
    """The most likely model of rows that measure one thing; None without rows on several devices that can be compared.

    Least squares on logarithms with a soft loss, so that single wild rows do not decide. Without a row of one device, two
    device counts are needed.
    """
    from scipy.optimize import least_squares

    single = SingleDevice.of(rows)
    usable = tuple(row for row in rows if not row.single and single.at(row.batch_size) is not None)
    counts = {row.ranks for row in usable}
    if not counts - {1} or (not single.measured and len(counts) < 2):
        return None
    design, logs = _design(usable, single), np.log([row.step_us for row in usable])
    unit_us = float(np.median(design[-1]))
    nearness = design[0] / design[0].max()  # predictions are for more devices rather than fewer

    def residuals(found: Floats) -> Floats:
        return np.log(_parts_us(design, found, unit_us)[1]) - logs

    def misfit(found: Floats, noise: float = _NOISE) -> Floats:
        return np.concatenate([residuals(found) * nearness / noise, (found - _PRIOR) / _WIDTH])

    def minimum(start: Floats, noise: float = _NOISE) -> Floats:
        found = least_squares(misfit, start, loss="soft_l1", ftol=1e-5, xtol=1e-5, gtol=1e-5, args=(noise,))
        return np.asarray(found.x)

    starts = [np.append(links, _PRIOR[4:]) for links in _STARTS]
    found = minimum(min(starts, key=lambda start: float(np.sum(np.sqrt(1 + misfit(start) ** 2)))))
    typical = np.minimum(residuals(found) ** 2, (3 * _NOISE) ** 2)
    noise = math.sqrt((_NOISE_ROWS * _NOISE**2 + float(np.sum(typical))) / (_NOISE_ROWS + len(usable)))
    return TableFit(usable, single, minimum(found, noise), unit_us)


def fit_table(rows: Sequence[MeasuredStep]) -> TableFit | str:
    """The fit of rows that measure one thing, or the reason why there is none."""
    if (fit := _fit_steps(rows)) is None:
        return (
            "no two device counts at a batch per device that can be compared; measure one batch per device at two counts, best "
            "on one device, too"
        )
    if (reason := _incomparable(fit)) is not None:
        return reason
    errors, left_out = [], []
    for kept, held, times in _splits(fit.rows):
        without = _fit_steps([*kept, *(row for row in rows if row.single)])
        held = [row for row in held if without is not None and without.single.at(row.batch_size) is not None]
        if without is None or not held:
            continue
        steps, exposed = without.predict(held)
        off = np.abs(np.log(steps / np.array([row.step_us for row in held]))) / _shape(exposed / steps, times)
        typical = NINE_OF_TEN * np.sqrt(np.mean(np.minimum(off, 4.0) ** 2))
        scaled = np.quantile(off, BAND) if len(off) >= _MANY_ROWS else typical
        errors.append((held[0].ranks, times, float(scaled)))
        if times == 1 or len(kept) + len(held) == len(fit.rows):
            pairs = zip(held, steps.tolist(), exposed.tolist(), strict=True)
            left_out += [(row, replace(row.unanswered, step_us=us, exposed_us=late)) for row, us, late in pairs]
    return replace(fit, errors=tuple(errors), left_out=tuple(left_out))


def _splits(rows: Sequence[MeasuredStep]) -> Iterator[tuple[list[MeasuredStep], list[MeasuredStep], float]]:
    """Rows to fit, rows of one device count to predict, and how many times the largest fitted count that is."""
    counts = sorted({row.ranks for row in rows if row.ranks > 1})
    pairs = [(most, larger) for most in counts for larger in counts if most < larger <= FARTHEST * most]
    for most, count in [*((math.inf, count) for count in counts[:-1]), *pairs]:
        kept = [row for row in rows if row.ranks <= most and row.ranks != count]
        links = {row.link for row in kept if row.ranks > 1}
        yield kept, [row for row in rows if row.ranks == count and row.link in links], max(1.0, count / most)


def _incomparable(fit: TableFit) -> str | None:
    """Why the rows cannot be data-parallel training of what one device ran; None where they may be.

    Each device count is judged by its median relative to the noise among rows of one count.
    """
    groups: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in fit.rows:
        if row.ranks > 1 and (alone := fit.single.at(row.batch_size)):
            groups[row.link, row.ranks].append(math.log(row.step_us / alone))
    apart = [one for group in groups.values() for one in sorted(abs(np.array(group) - np.median(group)))[1:]]
    noise = _TO_DEVIATION * float(np.median(apart)) if apart else 0.0
    for (link, count), group in groups.items():
        times, what = math.exp(np.median(group)), f"{counted(count, 'device')}{' between nodes' if link else ''} take "
        if max(times, 1 / times) > _OTHER_UNIT:
            reason = "check the units"
        elif times < min(_FASTER, math.exp(-2 * noise / math.sqrt(len(group)))):
            reason = "a step that gets faster with more devices means that something else changed between these rows"
        else:
            continue
        shown = f"{times:,.0f}" if times > 1 else f"{times:.2g}"
        return f"{what}{shown}x the time of one at the same batch per device: {reason}"
    return None


def predict_step(fit: TableFit | str, row: MeasuredStep) -> Prediction:
    """The step of a row's configuration, whatever its times; a refusal carries its reason."""
    reason = _refusal(fit, row)
    if isinstance(fit, str) or reason is not None or (alone := fit.single.at(row.batch_size)) is None:
        return replace(row.unanswered, reason=reason)
    (step,), (exposed,) = ([alone], [0.0]) if row.single else (one.tolist() for one in fit.predict([row]))
    largest = fit.largest(row.link) or 1
    times = max(1.0, row.ranks / largest)
    half = fit.half_width(exposed / step, row.ranks, min(times, FARTHEST))
    if (reason := beyond_reach(times, largest, "at perfect scaling")) is not None:
        high_us = max(step, alone + exposed * times / FARTHEST) * math.exp(half)
        low_us, most_us = (alone, high_us) if times <= UNKNOWABLE else (None, None)
        return replace(row.unanswered, low_us=low_us, high_us=most_us, reason=reason)
    counts, batches = sorted(other.ranks for other in fit.rows if other.link == row.link), fit.single.batches
    span = "-".join(dict.fromkeys(f"{one}" for one in (*counts[:1], *counts[-1:])))
    where = "between" if batches[0] <= row.batch_size <= batches[-1] else "beyond"
    basis = {
        f"{counted(len(counts), 'row')} {LINKS[row.link]}, {span} devices": True,
        f"t_1 not measured, assumed to be {_ALONE:.0%} of the shortest step": not fit.single.measured,
        f"t_1 {where} measured batches": row.batch_size not in batches,
        "an assumed band, because one device count shows no error": not fit.errors,
    }
    if row.single:
        where = f" at {', '.join(f'{one:.0f}' for one in batches)} samples per device" if batches.any() else ""
        basis = {f"t_1, measured{where}": True}
    return replace(
        row.unanswered,
        step_us=step,
        low_us=max(step * math.exp(-half), min(step, alone) * math.exp(-fit.half_width(0.0, row.ranks, 1.0))),
        high_us=step * math.exp(half),
        exposed_us=exposed,
        efficiency=alone / step if fit.single.measured else None,
        bound_by="communication" if exposed > step - exposed else "compute",
        rests_on="; ".join(clause for clause, applies in basis.items() if applies),
    )


def _refusal(fit: TableFit | str, row: MeasuredStep) -> str | None:
    """Why a row's configuration cannot be predicted, apart from its distance; None where it may be."""
    if isinstance(fit, str):
        return fit
    if fit.single.at(row.batch_size) is None:
        known = ", ".join(f"{batch:.0f}" for batch in fit.single.batches)
        measured = "one device was measured at" if fit.single.measured else "was measured"
        if known == "0":
            return f"the table has no batch_per_rank, so that it may not be of batch {row.batch_size}"
        if row.batch_size == 0:
            return f"no batch is given, and the step depends on it; {measured}: samples {known}"
        return f"batch {row.batch_size} is too far from what {measured} ({known})"
    if row.ranks == 1 and not fit.single.measured:
        return "no row of one device"
    if row.ranks > 1 and not fit.largest(row.link):
        return f"no row {LINKS[row.link]} was measured: the cost of that link is not known"
    return None
