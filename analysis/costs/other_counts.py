"""A source of costs: collectives on counts that were not timed, by a law through a calibration's
other counts.

Per collective and level (one node, several nodes) one law with three coefficients, none of them
negative:

    t(n, S) = a + b log2(k) + f(n) S / B        k: nodes, within one node ranks; f: bus factor of
    nccl-tests

The latency term is that of a tree (2 log2 N hops: Sanders, Speck, Träff, "Two-tree algorithms for
full bandwidth broadcast, reduction and scan", 2009; NCCL uses it between nodes), the transfer term
the ring's bound. Nothing can grow faster. The fit is of the logarithms of the times with a loss
that limits the influence of single points and counts. What the law misses at a size (protocols,
algorithms) is added as the median residual of that size and its neighbours over the largest counts,
between two measured counts interpolated.

The band is derived from leaving out the largest measured counts. It grows with the distance; if it
is wider than WIDEST_BAND either way, no time is given. Neither is one beyond FREE_DISTANCE times the
measured counts, unless the law holds on the counts left out: a band does not show what a network
does farther away.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpscope.analysis.costs.cost import Call, Cost, Known, Place, banded
from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.costs.timed_here import half_band
from dpscope.analysis.stats.left_out import too_wide
from dpscope.analysis.stats.missing import Missing
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import counted

INSIDE = 0.94  # share of the errors of left-out counts within a band
# times the largest measured count, beyond which the law must hold on counts left out
FREE_DISTANCE = 4.0
HELD = 1.25  # times too long or too short, at most, of a law that holds
_LOCAL_COUNTS = 3  # the largest, over which a size's own residual is taken
# exponent of log2(distance) by which errors grow, on generated clusters and on a real one
_GROWTH = 0.4
# in logarithms, at twice the count
_ASSUMED_ERRORS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.7)
_ASSUMED_WEIGHT = 0.6  # of each, next to a measured one
_USUAL_GROWTH = 0.3  # of the latency of one rank or node, with each doubling
_NEAR_OCTAVES = 2.0  # range of sizes whose errors count in full for a size's band
_FAR_WEIGHT = 0.25  # of the other errors
_LEAST_BAND = 0.05  # in logarithms, half a band

Layout = tuple[int, int]
"""Nodes and devices."""


@dataclass(frozen=True)
class Timed:
    """The median time of a collective at one size on one layout."""

    nodes: int
    devices: int
    size_bytes: int
    time_us: float

    @property
    def layout(self) -> Layout:
        return self.nodes, self.devices


def medians(calibration: Calibration) -> dict[str, list[Timed]]:
    """The medians of each collective, by count and size; points of one layout and size are
    merged.
    """
    samples: dict[str, dict[tuple[int, int, int], list[float]]] = {}
    for point in calibration.points:
        if point.size_bytes == 0 or point.devices == 1:
            continue
        nodes = point.nodes or calibration.nodes_of(point.devices) or 1
        place = (point.devices, nodes, point.size_bytes)
        of_kind = samples.setdefault(point.collective, {})
        of_kind.setdefault(place, []).extend(point.times_us)
    timed: dict[str, list[Timed]] = {}
    for kind, of_kind in samples.items():
        timed[kind] = []
        for place in sorted(of_kind):
            devices, nodes, size = place
            time_us = float(np.median(of_kind[place]))
            timed[kind].append(Timed(nodes, devices, size, time_us))
    return timed


def by_law(call: Call, known: Known) -> Cost | None:
    """Through what was timed on one node, or over several with as many devices on each."""
    place, calibration = call.place, known.calibration
    if call.exact or not call.on_measured_links:
        return None
    if place.nodes == 1 and not known.alike:
        devices = place.devices
        raise Missing(
            "the links between the devices differ in rate, and there is no calibration on "
            f"{counted(devices, 'device')}: run dpscope calibrate with --devices {devices}"
        )
    if calibration is None:
        return None
    per_node = place.per_node if place.nodes > 1 else None
    law = known.once((by_law, call.kind, per_node), lambda: _law(calibration, call.kind, per_node))
    if law is None:
        return None
    measured = law.nearest(place.devices)
    noise = _LEAST_BAND
    fit = known.fit(call.kind, measured, call.statistic)
    if fit is not None:
        # sizes may also be off by a cliff, which the law has from the measured times
        noise = max(noise, min(half_band(fit), _spread(calibration, call.kind, measured)))
    return law.cost(place, call.size_bytes, noise)


def _spread(calibration: Calibration, kind: str, place: Place) -> float:
    """Half the logarithm of longest over shortest time of one size, at the size where that is
    largest.
    """
    halves = [0.0]
    for point in calibration.points:
        if (point.collective, point.devices) == (kind, place.devices):
            longest = max(point.times_us)
            shortest = min(point.times_us)
            spread = math.log(longest / shortest)
            halves.append(spread / 2)
    return max(halves)


def _law(calibration: Calibration, kind: str, per_node: int | None) -> "Law | None":
    """Over several nodes of `per_node` devices, within one node where that is None; None if nothing
    was timed so.
    """
    points = medians(calibration).get(kind, [])
    if per_node is None:
        alike = [point for point in points if point.nodes == 1]
    else:
        several = [point for point in points if point.nodes > 1]
        alike = [point for point in several if point.nodes == Place(point.devices, per_node).nodes]
    return Law(kind, alike) if alike else None


@dataclass(frozen=True)
class _LeftOut:
    """A measured time that was predicted from smaller counts alone; the error is the absolute one
    of the logarithm.
    """

    size_bytes: float
    distance: float  # the count over the largest of the smaller ones
    error: float

    def is_near(self, size: float) -> bool:
        return abs(math.log2(self.size_bytes / size)) <= _NEAR_OCTAVES


@dataclass(frozen=True)
class Law:
    """Measured times of one collective on one level of the network, and what follows from them for
    other counts.
    """

    kind: str
    points: Sequence[Timed]

    @cached_property
    def layouts(self) -> list[Layout]:
        """By count."""
        return sorted({point.layout for point in self.points}, key=lambda layout: layout[1])

    def nearest(self, devices: int) -> Place:
        """The measured place whose count is nearest."""

        def distance(layout: Layout) -> float:
            _, count = layout
            return max(count / devices, devices / count)

        nodes, count = min(self.layouts, key=distance)
        per_node = math.ceil(count / nodes)
        return Place(count, per_node)

    @cached_property
    def sizes(self) -> list[int]:
        return sorted({point.size_bytes for point in self.points})

    @cached_property
    def _coefficients(self) -> tuple[float, float, float]:
        return _fitted(self.kind, self.points)

    def latency_us(self, layout: Layout) -> float:
        """The law's time of an empty message."""
        a_us, b_us, _ = self._coefficients
        return a_us + b_us * _doublings(layout)

    def _log_us(self, layout: Layout, size: float) -> float:
        transfer_us = self._coefficients[2] * _moved(self.kind, layout, size)
        return math.log(self.latency_us(layout) + transfer_us)

    @cached_property
    def residuals(self) -> dict[Layout, dict[int, float]]:
        """log(measured / law) of every point."""
        residuals: dict[Layout, dict[int, float]] = {layout: {} for layout in self.layouts}
        for point in self.points:
            size = point.size_bytes
            law = self._log_us(point.layout, size)
            residuals[point.layout][size] = math.log(point.time_us) - law
        return residuals

    def predicted_log_us(self, layout: Layout, size: float) -> float:
        """By the law and what it misses on measured counts: between these interpolated, else a
        median of the largest.
        """
        law = self._log_us(layout, size)
        _, devices = layout
        counts = [count for _, count in self.layouts]
        if counts[0] < devices < counts[-1]:
            return law + self._missed_between(devices, size)
        return law + self._missed_by_the_largest(size)

    def _missed_between(self, devices: int, size: float) -> float:
        """log(measured / law) interpolated between the measured counts, at each of them between
        sizes.
        """
        missed: dict[int, float] = {}
        for layout, residuals in self.residuals.items():
            _, count = layout
            missed[count] = _interpolated(residuals, size)
        return _interpolated(missed, devices)

    def _missed_by_the_largest(self, size: float) -> float:
        """The median of log(measured / law) over the largest counts, at the nearest size and its
        neighbours.
        """
        distances = [abs(math.log(measured / size)) for measured in self.sizes]
        nearest = distances.index(min(distances))
        first = max(0, nearest - 1)
        near = self.sizes[first : nearest + 2]
        missed: list[float] = []
        for layout in self.layouts[-_LOCAL_COUNTS:]:
            residuals = self.residuals[layout]
            missed += [residuals[neighbour] for neighbour in near if neighbour in residuals]
        return float(np.median(missed))

    @cached_property
    def _left_out(self) -> list[_LeftOut]:
        """Each count predicted from the smaller ones."""
        errors = []
        for largest in sorted({devices for _, devices in self.layouts}):
            smaller = [point for point in self.points if point.devices <= largest]
            beyond = [point for point in self.points if point.devices > largest]
            kept = Law(self.kind, smaller)
            for point in beyond:
                size = point.size_bytes
                predicted = kept.predicted_log_us(point.layout, size)
                error = abs(math.log(point.time_us) - predicted)
                distance = point.devices / largest
                errors.append(_LeftOut(size, distance, error))
        return errors

    def _holds(self, size: float) -> bool:
        """Whether the counts left out, one of them FREE_DISTANCE beyond the others, were predicted
        within HELD near a size.
        """
        near = [left_out for left_out in self._left_out if left_out.is_near(size)]
        farthest = max((left_out.distance for left_out in near), default=0.0)
        if farthest < FREE_DISTANCE:
            return False
        errors = [left_out.error for left_out in near]
        return float(np.quantile(errors, INSIDE)) <= math.log(HELD)

    def half_band(self, size: float) -> float:
        """Half the band, in logarithms, at twice the largest count: from errors of left-out counts
        and assumed ones.

        Errors at distant sizes count less, so that cliffs widen only the bands of nearby sizes.
        """
        weighted = [(error, _ASSUMED_WEIGHT) for error in _ASSUMED_ERRORS]
        for left_out in self._left_out:
            weight = 1.0 if left_out.is_near(size) else _FAR_WEIGHT
            weighted.append((left_out.error / _growth(left_out.distance), weight))
        weighted.sort()
        errors, weights = zip(*weighted, strict=True)
        reached = np.cumsum(weights)
        shares = reached / reached[-1]
        place = int(np.searchsorted(shares, INSIDE))
        last = len(errors) - 1
        return float(errors[min(place, last)])

    @cached_property
    def _known(self) -> str:
        """On which counts it was measured."""
        places = [Place(devices, -(-devices // nodes)) for nodes, devices in self.layouts]
        counts = ", ".join(map(str, places))
        return f"calibrated on {counts} devices"

    def _distance(self, devices: int) -> float:
        """How many times a count is beyond the measured ones, above or below them."""
        _, smallest = self.layouts[0]
        _, largest = self.layouts[-1]
        return max(devices / largest, smallest / devices)

    def _refusal(self, devices: int, why: str) -> Missing:
        """That no cost is given on a count, why, and the next one to measure."""
        _, largest = self.layouts[-1]
        distance = self._distance(devices)
        where = f"{self.kind} {self._known}: {distance:.3g} times beyond the measured counts"
        return Missing(f"{where}: {why}; measure at {2 * largest}")

    def cost(self, place: Place, size: float, least_half: float = _LEAST_BAND) -> Cost:
        """On a count that was not measured, or only at one size; raises Missing where the distance
        makes the band too wide. It is no narrower than `least_half`, that of measured counts.
        """
        distance = self._distance(place.devices)
        half = self.half_band(size) * _growth(distance)
        open_by = too_wide(half)
        if open_by is not None:
            raise self._refusal(place.devices, open_by)
        if distance > FREE_DISTANCE and not self._holds(size):
            raise self._refusal(place.devices, "no count left out confirms the law")
        time_us = math.exp(self.predicted_log_us(place.layout, size))
        latency_us = min(self.latency_us(place.layout), time_us)
        transfer_us = time_us - latency_us
        half = max(half, least_half)
        words = f"{self._known}, extrapolated to {place} by a law"
        return banded(latency_us, transfer_us, half, "law", words)


def _growth(distance: float) -> float:
    """How many times wider than at twice the count a band is."""
    return math.pow(max(1.0, math.log2(distance)), _GROWTH)


def _interpolated(values: Mapping[int, float], at: float) -> float:
    """Linearly between the logarithms of the keys."""
    keys = sorted(values)
    return float(np.interp(math.log(at), np.log(keys), [values[key] for key in keys]))


def _doublings(layout: Layout) -> float:
    """log2 of the nodes, within one node of the ranks."""
    nodes, devices = layout
    return math.log2(nodes if nodes > 1 else devices)


def _moved(kind: str, layout: Layout, size_bytes: float) -> float:
    """Bytes that each rank moves."""
    factor = bus_factor(kind, layout[1])
    return size_bytes if factor is None else factor * size_bytes


def _fitted(kind: str, points: Sequence[Timed]) -> tuple[float, float, float]:
    """a and b in microseconds and 1/B in microseconds per byte, non-negative.

    By approximate least absolute deviations of logarithms (soft L1).
    """
    from scipy.optimize import least_squares

    doublings = np.array([_doublings(point.layout) for point in points])
    moved_bytes = [_moved(kind, point.layout, point.size_bytes) for point in points]
    moved = np.array(moved_bytes, dtype=float)
    times_us = np.array([point.time_us for point in points])
    measured = np.log(times_us)

    def residuals(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        log_a, log_b, _ = logs
        a, b, per_byte = np.exp(logs)
        # a weak prior of how latency grows
        growth = log_b - log_a - math.log(_USUAL_GROWTH)
        law_us = a + b * doublings + moved * per_byte
        return np.append(np.log(law_us) - measured, 0.5 * growth)

    us_per_byte_of_each = times_us / moved
    large = moved >= np.quantile(moved, 0.8)
    least_us = float(times_us.min())
    fits = []
    for part in (us_per_byte_of_each[large], us_per_byte_of_each):
        start = np.log([least_us, _USUAL_GROWTH * least_us, np.median(part)])
        fit = least_squares(residuals, start, loss="soft_l1", f_scale=0.1)
        fits.append(fit)
    best = min(fits, key=lambda fit: fit.cost)
    a_us, b_us, us_per_byte = np.exp(best.x).tolist()
    return a_us, b_us, us_per_byte
