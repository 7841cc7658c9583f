"""Times of collectives on counts that were not measured, from a calibration or nccl-tests' logs alone.

Per collective and level (one node, several nodes) one law with three coefficients, none of them negative:

    t(n, S) = a + b log2(k) + f(n) S / B        k: nodes, within one node ranks; f: bus factor of nccl-tests

The latency term is that of a tree (2 log2 N hops: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", 2009; NCCL uses it between nodes), the transfer term the ring's bound. Nothing can grow faster. The fit is of
the logarithms of the times with a loss that limits the influence of single points and counts. What the law misses at a size
(protocols, algorithms) is added as the median residual of that size and its neighbours over the largest counts.

Between measured counts or sizes what the law misses is interpolated. The band is derived from leaving out the largest measured
counts. It grows with the distance; if it is wider than WIDEST either way, no time is given. Neither is one beyond FREE_DISTANCE
times the measured counts, unless the law holds on the counts left out: a band does not show what a network does farther away.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.text.units import show_bytes, show_time
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode

WIDEST = 3.0  # times shorter or longer; beyond, the answer is "not known"
INSIDE = 0.94  # share of the errors of left-out counts within a band
MEASURED = "measured"  # the source of a time of a measured count and size
FREE_DISTANCE = 4.0  # times the largest measured count, beyond which the law must hold on counts left out
HELD = 1.25  # times too long or too short, at most, of a law that holds
LARGEST_NODE = 16  # devices; beyond, one node's measurements are not extrapolated
_CLIFF = math.log(2.0)  # least difference from the neighbours' times
_LOCAL_COUNTS = 3  # the largest, over which a size's own residual is taken
_GROWTH = 0.4  # exponent of log2(distance) by which errors grow, on generated clusters and on a real one
_ASSUMED_ERRORS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.7)  # in logarithms, at twice the count
_ASSUMED_WEIGHT = 0.6  # of each, next to a measured one
_NEAR_OCTAVES, _FAR_WEIGHT = 2.0, 0.25  # range of errors that count in full for a size's band; weight of the others
_LEAST_BAND = 0.05  # in logarithms, half a band
_MOST_CLIFFS = 5  # findings for each collective

Times = Mapping[tuple[int, int], Mapping[int, float]]
"""(nodes, devices) -> size in bytes -> microseconds."""


@dataclass(frozen=True)
class CollectiveForecast:
    """One collective, count and size; `time_us` is None if unknown, with the reason in `source`.

    A measured time has no band: `low_us` and `high_us` are those of a prediction.
    """

    collective: str
    devices: int
    nodes: int
    size_bytes: int
    time_us: float | None
    low_us: float | None
    high_us: float | None
    source: str

    @property
    def basis(self) -> Literal["measured", "predicted", "not known"]:
        """What the time is."""
        return "not known" if self.time_us is None else "measured" if self.source == MEASURED else "predicted"


@dataclass(frozen=True)
class _LeftOut:
    """A measured time that was predicted from smaller counts alone; the error is the absolute one of the logarithm."""

    size_bytes: int
    distance: float  # the count over the largest of the smaller ones
    error: float

    def is_near(self, size: int) -> bool:
        return abs(math.log2(self.size_bytes / size)) <= _NEAR_OCTAVES


@dataclass(frozen=True)
class CollectiveLevel:
    """Measured times of one collective on one level of the network: a node, or several nodes with all their devices."""

    kind: str
    times: Times

    @cached_property
    def counts(self) -> list[tuple[int, int]]:
        return sorted(self.times, key=lambda one: (one[1], one[0]))

    @cached_property
    def sizes(self) -> list[int]:
        return sorted({size for own in self.times.values() for size in own})

    @cached_property
    def _law(self) -> tuple[float, float, float]:
        return _fitted(self.kind, self.times)

    def _law_log_us(self, nodes: int, devices: int, size: float) -> float:
        a_us, b_us, us_per_byte = self._law
        transfer_us = (bus_factor(self.kind, devices) or 1.0) * size * us_per_byte
        return float(np.log(a_us + b_us * np.log2(float(_units(nodes, devices))) + transfer_us))

    @cached_property
    def residuals(self) -> dict[tuple[int, int], dict[int, float]]:
        """log(measured / law) of every point."""
        return {
            key: {size: math.log(time) - self._law_log_us(*key, size) for size, time in own.items()}
            for key, own in self.times.items()
        }

    def predicted_log_us(self, nodes: int, devices: int, size: int) -> float:
        """For a count that was not measured: with residuals interpolated between measured counts, else with the size's own.

        That is the median over the size and its two neighbours, on the largest counts.
        """
        law = self._law_log_us(nodes, devices, size)
        if self.counts[0][1] < devices < self.counts[-1][1]:
            known = [_between(self.residuals[key], size) for key in self.counts]
            return law + float(np.interp(math.log(devices), [math.log(count) for _, count in self.counts], known))
        place = min(range(len(self.sizes)), key=lambda index: abs(math.log(self.sizes[index] / size)))
        near = self.sizes[max(0, place - 1) : place + 2]
        last = [self.residuals[key] for key in self.counts[-_LOCAL_COUNTS:]]
        found = [own[one] for own in last for one in near if one in own]
        return law + (float(np.median(found)) if found else 0.0)

    @cached_property
    def _left_out(self) -> list["_LeftOut"]:
        """Each count predicted from the smaller ones."""
        found = []
        for cut, (_, devices) in enumerate(self.counts[:-1]):
            kept = CollectiveLevel(self.kind, {key: own for key, own in self.times.items() if key[1] <= devices})
            for nodes, left_out in self.counts[cut + 1 :]:
                if left_out > devices:
                    found += [
                        _LeftOut(
                            size, left_out / devices, abs(math.log(time) - kept.predicted_log_us(nodes, left_out, size))
                        )
                        for size, time in self.times[nodes, left_out].items()
                    ]
        return found

    def law_holds(self, size: int) -> bool:
        """Whether the counts left out, one of them FREE_DISTANCE beyond the others, were predicted within HELD near a size."""
        near = [one for one in self._left_out if one.is_near(size)]
        far_enough = any(one.distance >= FREE_DISTANCE for one in near)
        return far_enough and float(np.quantile([one.error for one in near], INSIDE)) <= math.log(HELD)

    def half_band(self, size: int) -> float:
        """Half the band, in logarithms, at twice the largest count: from errors of left-out counts and assumed ones.

        Errors at distant sizes count less, so that cliffs widen only the bands of nearby sizes.
        """
        near = [
            (one.error / _growth(one.distance), 1.0 if one.is_near(size) else _FAR_WEIGHT) for one in self._left_out
        ]
        errors, weights = zip(*sorted([*near, *((one, _ASSUMED_WEIGHT) for one in _ASSUMED_ERRORS)]), strict=True)
        shares = np.cumsum(weights) / np.sum(weights)
        return float(errors[min(int(np.searchsorted(shares, INSIDE)), len(errors) - 1)])

    def size_half_band(self, nodes: int, devices: int, size: int) -> float:
        """Half the band, in logarithms, of a time interpolated between two sizes of a measured count.

        The larger error of predicting these two from their own neighbours, twice as far apart.
        """
        own = self.residuals[nodes, devices]
        known = sorted(own)
        above = next(place for place, one in enumerate(known) if one > size)
        errors = [
            abs(own[one] - _between({other: own[other] for other in known if other != one}, one))
            for one in known[max(1, above - 1) : min(above + 1, len(known) - 1)]
        ]
        return max(_LEAST_BAND, *errors) if errors else self.half_band(size)

    def latency_us(self, nodes: int, devices: int) -> float:
        """The law's time of an empty message."""
        a_us, b_us, _ = self._law
        return a_us + b_us * math.log2(_units(nodes, devices))

    def forecast(self, nodes: int, devices: int, size: int) -> CollectiveForecast:
        """Measured, interpolated or by the law; unknown where nothing was measured, or the band would be too wide."""
        own, place = self.times.get((nodes, devices)), (self.kind, devices, nodes, size)
        if own is not None and size in own:
            return CollectiveForecast(*place, own[size], None, None, MEASURED)
        log_us: float | None = None
        half = 0.0
        if not self.times:
            where = "over several nodes" if nodes > 1 else "on one node"
            source = f"not known: nothing was measured {where}; measure at {devices}"
        elif own is None:
            log_us, half, source = self._extrapolated(nodes, devices, size)
        elif min(own) < size < max(own):
            log_us = self._law_log_us(nodes, devices, size) + _between(self.residuals[nodes, devices], size)
            half = self.size_half_band(nodes, devices, size)
            source = f"interpolated between sizes measured on {devices}"
        else:
            log_us, half = self.predicted_log_us(nodes, devices, size), self.half_band(size)
            source = f"measured on {devices} at other sizes, extended by the law"
        if log_us is None:
            return CollectiveForecast(*place, None, None, None, source)
        us = math.exp(log_us)
        return CollectiveForecast(*place, us, us * math.exp(-half), us * math.exp(half), source)

    def _extrapolated(self, nodes: int, devices: int, size: int) -> tuple[float | None, float, str]:
        """The logarithm of the time, half its band and its source on a count that was not measured."""
        measured, widest = [count for _, count in self.counts], math.log(WIDEST)
        distance = max(devices / measured[-1], measured[0] / devices)
        at_twice = self.half_band(size)
        half = at_twice * _growth(distance)
        if half > widest:
            farthest = 2 ** math.floor((widest / at_twice) ** (1 / _GROWTH)) if at_twice < widest else 1
            nearer = max(2 * measured[-1], -(-devices // farthest))
            unknown = f"the band is wider than {WIDEST:g} times; measure at {nearer}"
            return None, half, f"not known: {distance:.3g} times beyond the measured counts: {unknown}"
        if distance > FREE_DISTANCE and not self.law_holds(size):
            nearer = max(2 * measured[-1], math.ceil(devices / FREE_DISTANCE))
            unknown = f"no count left out confirms the law; measure at {nearer}"
            return None, half, f"not known: {distance:.3g} times beyond the measured counts: {unknown}"
        source = (
            f"between {measured[0]} and {measured[-1]} devices, interpolated"
            if measured[0] < devices < measured[-1]
            else f"law fitted on {', '.join(map(str, measured))} devices, {distance:.3g} times beyond"
        )
        return self.predicted_log_us(nodes, devices, size), half, source


def _between(values: Mapping[int, float], at: float) -> float:
    """Interpolated linearly between the logarithms of the keys."""
    known = sorted(values)
    return float(np.interp(math.log(at), [math.log(one) for one in known], [values[one] for one in known]))


def _growth(distance: float) -> float:
    return math.pow(max(1.0, math.log2(max(distance, 1.0))), _GROWTH)


def _units(nodes: int, devices: int) -> int:
    return nodes if nodes > 1 else devices


def _fitted(kind: str, times: Times) -> tuple[float, float, float]:
    """a and b in microseconds and 1/B in microseconds per byte, non-negative, by approximate least absolute deviations of
    logarithms (soft L1)."""
    from scipy.optimize import least_squares

    points = [
        (math.log2(_units(*key)), (bus_factor(kind, key[1]) or 1.0) * size, math.log(time))
        for key, own in times.items()
        for size, time in own.items()
    ]
    doublings, moved, measured = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    least_us, rate = math.exp(float(measured.min())), float(np.median(np.exp(measured) / moved))
    large = moved >= np.quantile(moved, 0.8)
    slope = float(np.median(np.exp(measured[large]) / moved[large]))

    def residuals(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        a, b, per_byte = np.exp(logs)
        growth = 0.5 * (logs[1] - logs[0] - math.log(0.3))  # a weak prior of how latency grows
        return np.append(np.log(a + b * doublings + moved * per_byte) - measured, growth)

    starts = [np.log([least_us, 0.3 * least_us, one]) for one in (slope, rate)]
    found = [least_squares(residuals, start, loss="soft_l1", f_scale=0.1) for start in starts]
    a, b, per_byte = (float(one) for one in np.exp(min(found, key=lambda one: one.cost).x))
    return a, b, per_byte


def forecasts(calibration: Calibration, counts: Sequence[int]) -> list[CollectiveForecast]:
    """All collectives of a calibration at its sizes on these device counts, by collective, count and size.

    A full node has the most devices that were measured on one; with only one node measured, at least LARGEST_NODE.
    """
    every = measured_times(calibration)
    layouts = [key for times in every.values() for key in times]
    per_node = max((-(-devices // nodes) for nodes, devices in layouts), default=1)
    if all(nodes == 1 for nodes, _ in layouts):
        per_node = max(LARGEST_NODE, per_node)
    found = []
    for kind, times in every.items():
        levels, sizes = by_level(kind, times), CollectiveLevel(kind, times).sizes
        for devices in counts:
            nodes = -(-devices // per_node)
            found += [levels[nodes > 1].forecast(nodes, devices, size) for size in sizes]
    return found


def by_level(kind: str, times: Times) -> dict[bool, CollectiveLevel]:
    """Levels by whether several nodes are spanned; empty if nothing was measured."""
    return {
        several: CollectiveLevel(kind, {key: own for key, own in times.items() if (key[0] > 1) == several})
        for several in (False, True)
    }


def measured_times(calibration: Calibration) -> dict[str, dict[tuple[int, int], dict[int, float]]]:
    """Median times by collective, (nodes, devices) and size; points of one layout and size are merged."""
    samples: dict[str, dict[tuple[int, int], dict[int, list[float]]]] = {}
    for point in calibration.points:
        if point.size_bytes > 0 and point.times_us and point.devices > 1:
            nodes = point.nodes or calibration.nodes_of(point.devices) or 1
            own = samples.setdefault(point.collective, {}).setdefault((nodes, point.devices), {})
            own.setdefault(point.size_bytes, []).extend(point.times_us)
    return {
        kind: {key: {size: float(np.median(own[size])) for size in sorted(own)} for key, own in layouts.items()}
        for kind, layouts in samples.items()
    }


def cliff_findings(calibration: Calibration) -> list[Finding]:
    """Findings for times that disagree with those of neighbouring sizes and counts, the largest difference first."""
    findings = []
    for kind, times in measured_times(calibration).items():
        found = [one for level in by_level(kind, times).values() for one in _cliffs(level)]
        for off, (_, devices), size, time_us in sorted(found, key=lambda one: -abs(one[0]))[:_MOST_CLIFFS]:
            message = (
                f"{kind} of {show_bytes(size)} on {counted(devices, 'device')} takes {show_time(time_us)}, "
                f"{math.exp(abs(off)):.1f} times {'longer' if off > 0 else 'shorter'} than neighbouring sizes and counts suggest"
            )
            findings.append(RunCode.COLLECTIVE_CLIFF.finding(message))
    return findings


def _cliffs(level: CollectiveLevel) -> Iterator[tuple[float, tuple[int, int], int, float]]:
    """Points whose residual is far from the median of their neighbours by size and count."""
    for place, key in enumerate(level.counts):
        for index, size in enumerate(level.sizes):
            if size not in level.times[key]:
                continue
            around = [
                level.residuals[other][near]
                for other in level.counts[max(0, place - 1) : place + 2]
                for near in level.sizes[max(0, index - 1) : index + 2]
                if (other, near) != (key, size) and near in level.residuals[other]
            ]
            off = level.residuals[key][size] - float(np.median(around)) if len(around) > 2 else 0.0
            if abs(off) > _CLIFF:
                yield off, key, size, level.times[key][size]
