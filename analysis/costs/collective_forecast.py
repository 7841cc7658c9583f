"""Times of collectives on counts that were not measured, from a calibration or nccl-tests' logs alone.

Per collective and level (one node, several nodes) one law with three coefficients, none of them negative:

    t(n, S) = a + b log2(k) + f(n) S / B        k: nodes, within one node ranks; f: bus factor of nccl-tests

The latency term is that of a tree (2 log2 N hops: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", 2009; NCCL uses it between nodes), the transfer term the ring's bound. Nothing can grow faster. The fit is of
the logarithms of the times with a loss that limits the influence of single points and counts. What the law misses at a size
(protocols, algorithms) is added as the median residual of that size and its neighbours over the largest counts.

Measured counts and sizes are interpolated and not fitted. The band is derived from leaving out the largest measured counts. It
grows with the distance; if it is wider than WIDEST either way, no time is given.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.text.units import show_bytes, show_time
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode

WIDEST = 3.0  # times shorter or longer; beyond, the answer is "not known"
INSIDE = 0.94  # share of the errors of left-out counts within a band
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
    """One collective, count and size; `time_us` is None if unknown, with the reason in `source`."""

    collective: str
    devices: int
    nodes: int
    size_bytes: int
    time_us: float | None
    low_us: float | None
    high_us: float | None
    source: str


@dataclass(frozen=True)
class _Law:
    a_us: float
    b_us: float
    us_per_byte: float
    kind: str

    def log_us(self, units: npt.ArrayLike, devices: int, sizes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        factor = bus_factor(self.kind, devices) or 1.0
        transfer = factor * np.asarray(sizes, dtype=float) * self.us_per_byte
        return np.asarray(np.log(self.a_us + self.b_us * np.log2(np.asarray(units, dtype=float)) + transfer))


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
    def law(self) -> _Law:
        return _fitted(self.kind, self.times)

    @cached_property
    def residuals(self) -> dict[tuple[int, int], dict[int, float]]:
        """log(measured / law) of every point."""
        return {
            (nodes, devices): {
                size: math.log(time) - float(self.law.log_us(_units(nodes, devices), devices, size))
                for size, time in own.items()
            }
            for (nodes, devices), own in self.times.items()
        }

    def up_to(self, devices: int) -> "CollectiveLevel":
        return CollectiveLevel(self.kind, {key: own for key, own in self.times.items() if key[1] <= devices})

    def own_residual(self, size: int) -> float:
        """The law's error at a size: the median over it and its two neighbours, on the largest counts."""
        place = min(range(len(self.sizes)), key=lambda index: abs(math.log(self.sizes[index] / size)))
        near = self.sizes[max(0, place - 1) : place + 2]
        last = self.counts[-_LOCAL_COUNTS:]
        found = [self.residuals[key][one] for key in last for one in near if one in self.residuals[key]]
        return float(np.median(found)) if found else 0.0

    def predicted_log_us(self, nodes: int, devices: int, size: int) -> float:
        """For a count that was not measured: with residuals interpolated between measured counts, else with the size's own."""
        law = float(self.law.log_us(_units(nodes, devices), devices, size))
        known = [(math.log(key[1]), self._residual(key, size)) for key in self.counts]
        if not known[0][0] < math.log(devices) < known[-1][0]:
            return law + self.own_residual(size)
        return law + float(np.interp(math.log(devices), [one for one, _ in known], [one for _, one in known]))

    def _residual(self, key: tuple[int, int], size: int) -> float:
        own = self.residuals[key]
        return float(
            np.interp(math.log(size), [math.log(one) for one in sorted(own)], [own[one] for one in sorted(own)])
        )

    @cached_property
    def _left_out(self) -> list[tuple[int, float]]:
        """(size, error at twice the count) of each count predicted from the smaller ones, in logarithms."""
        found = []
        for cut, (_, devices) in enumerate(self.counts[:-1]):
            kept = self.up_to(devices)
            for nodes, left_out in self.counts[cut + 1 :]:
                if left_out > devices:
                    grown = _growth(left_out / devices)
                    found += [
                        (size, abs(math.log(time) - kept.predicted_log_us(nodes, left_out, size)) / grown)
                        for size, time in self.times[nodes, left_out].items()
                    ]
        return found

    def half_band(self, size: int) -> float:
        """Half the band, in logarithms, at twice the largest count: from errors of left-out counts and assumed ones.

        Errors at distant sizes count less, so that cliffs widen only the bands of nearby sizes.
        """
        near = [
            (error, 1.0 if abs(math.log2(one / size)) <= _NEAR_OCTAVES else _FAR_WEIGHT)
            for one, error in self._left_out
        ]
        errors, weights = zip(*sorted([*near, *((one, _ASSUMED_WEIGHT) for one in _ASSUMED_ERRORS)]), strict=True)
        shares = np.cumsum(weights) / np.sum(weights)
        return float(errors[min(int(np.searchsorted(shares, INSIDE)), len(errors) - 1)])

    def size_half_band(self, nodes: int, devices: int, size: int) -> float:
        """Half the band, in logarithms, of a time interpolated between two sizes of a measured count.

        The larger error of predicting these two from their own neighbours, twice as far apart.
        """
        own = self.times[nodes, devices]
        known = sorted(own)
        above = next(place for place, one in enumerate(known) if one > size)
        errors = [
            abs(
                math.log(own[known[place]])
                - _between({one: own[one] for one in known if one != known[place]}, known[place])
            )
            for place in (above - 1, above)
            if 0 < place < len(known) - 1
        ]
        return max(_LEAST_BAND, *errors) if errors else self.half_band(size)

    def latency_us(self, nodes: int, devices: int) -> float:
        """The law's time of an empty message."""
        return self.law.a_us + self.law.b_us * math.log2(_units(nodes, devices))

    def forecast(self, nodes: int, devices: int, size: int) -> CollectiveForecast:
        """Measured, interpolated or by the law; unknown where nothing was measured, or the band would be too wide."""
        one = CollectiveForecast(self.kind, devices, nodes, size, None, None, None, "")
        if not self.times:
            where = "over several nodes" if nodes > 1 else "on one node"
            return replace(one, source=f"not known: nothing was measured {where}; measure at {devices}")
        return self._interpolated(one) if (nodes, devices) in self.times else self._extrapolated(one)

    def _interpolated(self, one: CollectiveForecast) -> CollectiveForecast:
        """On a measured count: the time itself, or a linear interpolation between the logarithms of neighbouring sizes."""
        own = self.times[one.nodes, one.devices]
        size = one.size_bytes
        if size in own:
            return replace(one, time_us=own[size], low_us=own[size], high_us=own[size], source="measured")
        if not min(own) < size < max(own):
            log_us = self.predicted_log_us(one.nodes, one.devices, size)
            source = f"measured on {one.devices} at other sizes, extended by the law"
            return _banded(replace(one, time_us=math.exp(log_us), source=source), self.half_band(size))
        source = f"interpolated between sizes measured on {one.devices}"
        half = self.size_half_band(one.nodes, one.devices, size)
        return _banded(replace(one, time_us=math.exp(_between(own, size)), source=source), half)

    def _extrapolated(self, one: CollectiveForecast) -> CollectiveForecast:
        devices, measured = one.devices, [count for _, count in self.counts]
        distance = max(devices / measured[-1], measured[0] / devices)
        at_twice = self.half_band(one.size_bytes)
        half = at_twice * _growth(distance)
        if half > math.log(WIDEST):
            farthest = (
                2 ** math.floor((math.log(WIDEST) / at_twice) ** (1 / _GROWTH)) if at_twice < math.log(WIDEST) else 1
            )
            nearer = max(2 * measured[-1], -(-devices // farthest))
            unknown = f"the band is wider than {WIDEST:g} times; measure at {nearer}"
            return replace(one, source=f"not known: {distance:.3g} times beyond the measured counts {unknown}")
        time_us = math.exp(self.predicted_log_us(one.nodes, devices, one.size_bytes))
        source = (
            f"between {measured[0]} and {measured[-1]} devices, interpolated"
            if measured[0] < devices < measured[-1]
            else f"law fitted on {', '.join(map(str, measured))} devices, {distance:.3g} times beyond"
        )
        return _banded(replace(one, time_us=time_us, source=source), half)


def _between(times: Mapping[int, float], size: float) -> float:
    """The logarithm of a time, interpolated linearly between the logarithms of sizes."""
    known = sorted(times)
    return float(np.interp(math.log(size), [math.log(one) for one in known], [math.log(times[one]) for one in known]))


def _growth(distance: float) -> float:
    return math.pow(max(1.0, math.log2(max(distance, 1.0))), _GROWTH)


def _units(nodes: int, devices: int) -> int:
    return nodes if nodes > 1 else devices


def _fitted(kind: str, times: Times) -> _Law:
    """Non-negative coefficients by approximate least absolute deviations of logarithms (soft L1)."""
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
        fitted = np.log(a + b * doublings + moved * per_byte)
        return np.append(
            fitted - measured, 0.5 * (logs[1] - logs[0] - math.log(0.3))
        )  # a weak prior of how latency grows

    starts = [np.log([least_us, 0.3 * least_us, one]) for one in (slope, rate)]
    found = min(
        (least_squares(residuals, start, loss="soft_l1", f_scale=0.1) for start in starts), key=lambda one: one.cost
    )
    a, b, per_byte = (float(one) for one in np.exp(found.x))
    return _Law(a, b, per_byte, kind)


def forecasts(calibration: Calibration, counts: Sequence[int]) -> list[CollectiveForecast]:
    """All collectives of a calibration at its sizes on these device counts, by collective, count and size."""
    per_node = _per_node(calibration)
    return [
        one
        for kind, times in measured_times(calibration).items()
        for levels in [_by_level(kind, times)]
        for devices in counts
        for nodes in [-(-devices // per_node)]
        for one in (levels[nodes > 1].forecast(nodes, devices, size) for size in _sizes(times))
    ]


def laws_alone_us(calibration: Calibration, predicted: Sequence[CollectiveForecast]) -> list[float]:
    """The laws' times for these forecasts, including those that are not known: for validating the laws."""
    levels = {kind: _by_level(kind, times) for kind, times in measured_times(calibration).items()}
    return [
        math.exp(levels[one.collective][one.nodes > 1].predicted_log_us(one.nodes, one.devices, one.size_bytes))
        for one in predicted
    ]


def _sizes(times: Times) -> list[int]:
    return sorted({size for own in times.values() for size in own})


def _by_level(kind: str, times: Times) -> dict[bool, CollectiveLevel]:
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
        kind: {
            key: {size: float(np.median(found)) for size, found in sorted(own.items())} for key, own in layouts.items()
        }
        for kind, layouts in samples.items()
    }


def _per_node(calibration: Calibration) -> int:
    """Devices on a full node: the most that were measured on one; with only one node, at least LARGEST_NODE."""
    layouts = [key for times in measured_times(calibration).values() for key in times]
    if not any(nodes > 1 for nodes, _ in layouts):
        return max(LARGEST_NODE, *(devices for _, devices in layouts))
    return max(-(-devices // nodes) for nodes, devices in layouts)


def _banded(one: CollectiveForecast, half: float) -> CollectiveForecast:
    assert one.time_us is not None
    return replace(one, low_us=one.time_us * math.exp(-half), high_us=one.time_us * math.exp(half))


def cliff_findings(calibration: Calibration) -> list[Finding]:
    """Findings for times that disagree with those of neighbouring sizes and counts, the largest difference first."""
    findings = []
    for kind, times in measured_times(calibration).items():
        found = sorted(
            (one for level in _by_level(kind, times).values() for one in _cliffs(level)), key=lambda one: -abs(one[0])
        )
        for off, (_, devices), size, time_us in found[:_MOST_CLIFFS]:
            findings.append(
                RunCode.COLLECTIVE_CLIFF.finding(
                    f"{kind} of {show_bytes(size)} on {counted(devices, 'device')} takes {show_time(time_us)}, "
                    f"{math.exp(abs(off)):.1f} times {'longer' if off > 0 else 'shorter'} than neighbouring sizes and "
                    "counts suggest"
                )
            )
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
