"""What one collective costs on so many devices so placed, by the best source there is, named; sources are never mixed silently.

In this order: (1) a calibration at that count, or the base's own transfers; (2) these carried to another count on the same level;
(3) a hierarchy of levels, ring or tree, the smaller; (4) a link's specification: a bound, and labelled so. A link that the
question states replaces what was measured on that level, at the efficiency that was measured on the old link, where known.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dpscope.analysis.costs.calibration_fit import find_fit, largest_bus_gb_per_s, latency_share
from dpscope.analysis.costs.collective_forecast import CollectiveLevel, measured_times
from dpscope.analysis.costs.formulas import bus_factor, ring_hops
from dpscope.analysis.costs.sources import NodeRate, rate_between
from dpscope.profiling.records.calibration import Calibration, CollectiveFit
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import REACHED_RATE, LinkRate

RING, TREE, HIERARCHICAL = "ring", "tree", "hierarchy"


class NotKnown(Exception):  # noqa: N818 (an answer, not a fault)
    """The measurements do not support a number; the message is the reason."""


def best_way(
    kind: str,
    size: float,
    devices: int,
    inside: int,
    hop_us: float,
    rate: float,
    within: tuple[float, float] | None,
) -> tuple[str, float, float] | None:
    """The fastest over so many devices, on nodes of `inside`: its name, and microseconds of latency and of transfer.

    None where the kind has no model. `rate` in bytes a microsecond is that of the link between nodes, which a node's devices
    share; on one node of the one within. `within`: latency and transfer of the same collective on the devices of one node; None
    where it is not known, and taken to hold nothing up. A ring and a tree are as slow as the slowest link they go over. A
    hierarchy is a reduce-scatter inside a node, an all-reduce of each share between nodes over the node's link, an all-gather
    inside. The bytes of a ring: nccl-tests, doc/PERFORMANCE.md.

    >>> best_way("all_reduce", 1e6, 8, 2, 0.0, 1e4, (0.0, 20.0))  # 20 inside and 2 x 3/4 MB between; a ring would take 175
    ('hierarchy', 0.0, 170.0)
    """
    nodes, factor, inner = (
        -(-devices // inside),
        bus_factor(kind, devices),
        bus_factor(kind, inside),
    )
    if factor is None:
        return None
    slowest = rate
    if within is not None and inner and within[1] > 0:
        slowest = min(rate, inner * size / within[1])
    found = [(RING, ring_hops(kind, devices) * hop_us, factor * size / slowest)]
    if nodes > 1 and kind == "all_reduce":
        found.append((TREE, 2 * math.ceil(math.log2(nodes)) * hop_us, 2 * size / slowest))
        if within is not None:
            between = (bus_factor(kind, nodes) or 0.0) * size / rate
            found.append((HIERARCHICAL, ring_hops(kind, nodes) * hop_us, sum(within) + between))
    return min(found, key=lambda one: one[1] + one[2])


# Half a 90% band of a collective's own time, in logarithms, by its source.
_CALIBRATED, _TRACED, _CARRIED, _HIERARCHY, _SPECIFIED = 0.05, 0.10, 0.15, 0.35, 0.35
_BOUND = ", so the step is at least this"


@dataclass(frozen=True)
class Cost:
    """Of one collective alone on its link: latency, then transfer.

    `bound`: by a link's specification alone, so it can take longer and no less.
    """

    latency_us: float
    transfer_us: float
    basis: str  # in words
    spread: float  # half a 90% band, in logarithms
    bound: bool = False

    @property
    def total_us(self) -> float:
        return self.latency_us + self.transfer_us

    def times(self, factor: float) -> "Cost":
        """So many times as long."""
        return replace(self, latency_us=self.latency_us * factor, transfer_us=self.transfer_us * factor)


@dataclass(frozen=True)
class Links:
    """The links that the question states; None is as measured. `inter` is one node's, all its devices sharing it."""

    intra: LinkRate | None = None
    inter: LinkRate | None = None
    latency_us: float | None = None  # of one hop on the stated link

    def on(self, place: "Place") -> LinkRate | None:
        """The stated link between the slowest neighbours of a ring over all devices."""
        return self.inter if place.nodes > 1 else self.intra


class Place(NamedTuple):
    """How many devices, on nodes of so many."""

    devices: int
    per_node: int

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.per_node)


class _Collective(NamedTuple):
    """What is to be costed."""

    kind: str
    size_bytes: float
    place: Place
    links: Links


@dataclass(frozen=True)
class Costs:
    """`traced`: (kind, bytes) -> microseconds of the base's own collectives, at `place`.

    `specified` is the link that was measured on, where known; `alike` False where links between the devices differ in rate.
    """

    place: Place
    traced: Mapping[tuple[str, float], float]
    calibration: Calibration | None = None
    every: Calibration | None = None  # the same on any number of nodes; `calibration` is of as many as the base's
    specified: LinkRate | None = None
    alike: bool = True
    traced_bounded: bool = False  # the trace's transfers hold waiting
    _known: dict[_Collective, Cost] = field(default_factory=dict, init=False, compare=False, repr=False)
    _levels: dict[tuple[object, ...], CollectiveLevel] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def cost(self, kind: str, size_bytes: float, place: Place, links: Links = Links()) -> Cost:
        """The cost of one collective; raises NotKnown."""
        one = _Collective(kind, size_bytes, place, links)
        if one not in self._known:
            self._known[one] = self._found(one)
        return self._known[one]

    def _found(self, one: _Collective) -> Cost:
        kind, size, place, links = one
        if place.devices == 1:
            return Cost(0.0, 0.0, "one device", 0.0)
        if (stated := links.on(place)) is not None:
            return self._on_stated(one, stated)
        if links.intra is not None and place.per_node > 1:
            return self._by_rate_between(one)  # what was timed holds the old links
        nodes, per_node, measured = place.nodes, place.per_node, self.place
        crosses = (nodes == 1) != (measured.nodes == 1)
        if not crosses and (nodes == 1 or per_node == measured.per_node):
            return self._as_measured(kind, size, place)
        level = self._level(kind, place)
        if level.times and (nodes == 1 or place.devices == nodes * per_node):
            return self._forecast(level, place, size)
        if nodes == 1:
            raise NotKnown(
                f"{kind} was measured over several nodes, and {place.devices} devices of one were requested: run dpscope "
                f"calibrate with --devices {place.devices}, or give --link"
            )
        if crosses or self._between() is not None:
            return self._by_rate_between(one)
        on_each = counted(measured.per_node, "device")
        raise NotKnown(f"measured with {on_each} a node, requested with {per_node}: give --link, or calibrate there")

    def _as_measured(self, kind: str, size: float, place: Place) -> Cost:
        """On the links that were measured."""
        level, devices = self._level(kind, place), place.devices
        if (place.nodes, devices) in level.times:
            return self._forecast(level, place, size)
        if devices == self.place.devices:
            return self._traced(kind, size)
        if not self.alike and place.nodes == 1:
            raise NotKnown(
                f"the links between the devices differ in rate, and there is no calibration on {counted(devices, 'device')}: run "
                f"dpscope calibrate with --devices {devices}"
            )
        if level.times:
            return self._forecast(level, place, size)
        here = self._traced(kind, size)
        before, after = (bus_factor(kind, count) for count in (self.place.devices, devices))
        if before is None or after is None:
            raise NotKnown(f"there is no model of {kind} on other numbers of devices")
        # by the ring: transfer by the bus factor, with latency as it was
        words = f"{here.basis}, carried to {devices} by the ring's formula"
        return Cost(here.latency_us, here.transfer_us * after / before, words, 2 * _CARRIED)

    def _level(self, kind: str, place: Place) -> CollectiveLevel:
        """What was timed of a collective on one node, or over several with as many devices on each."""
        several = place.nodes > 1
        key = (kind, several, several and place.per_node)
        if key not in self._levels:
            times = {} if self.every is None else measured_times(self.every).get(kind, {})
            alike = {
                (over, on): own
                for (over, on), own in times.items()
                if (over > 1) == several and (not several or on == over * place.per_node)
            }
            self._levels[key] = CollectiveLevel(kind, alike)
        return self._levels[key]

    def _forecast(self, level: CollectiveLevel, place: Place, size: float) -> Cost:
        """As `dpscope calibrate --predict` has it; of a measured count, latency has the share that the report's fit gives it."""
        nodes, devices = place.nodes, place.devices
        found = level.forecast(nodes, devices, round(size))
        layouts = ", ".join(_layout(*one) for one in level.counts)
        if found.time_us is None:
            raise NotKnown(f"{level.kind} calibrated on {layouts} devices: {found.source}")
        exact = (nodes, devices) in level.times
        beyond = ", beyond its sizes" if exact and "extended" in found.source else ""
        how = f"calibrated on {_layout(nodes, devices)} devices{beyond}"
        if not exact:
            how = f"calibrated on {layouts} devices and carried to {_layout(nodes, devices)}"
        fit = find_fit(self.every.on_nodes(nodes), level.kind, devices) if exact and self.every is not None else None
        latency = level.latency_us(nodes, devices) if fit is None else found.time_us * latency_share(fit, size)
        latency = min(latency, found.time_us)
        spread = max(
            _CALIBRATED,
            math.log(found.high_us / found.time_us) if found.high_us is not None else 0.0,
        )
        return Cost(latency, found.time_us - latency, how, spread)

    def _by_rate_between(self, one: _Collective) -> Cost:
        """From the rate between nodes that a calibration found with other numbers of devices on a node."""
        found = self._between()
        if found is None:
            raise NotKnown(
                "the cost of the link between nodes is not known: give --link, such as --link 100Gb/s, or calibrate over "
                "several nodes"
            )
        rate, latency = found
        words = f"the rate between nodes calibrated on {rate.layout}"
        if one.links.latency_us is None:
            one = one._replace(links=replace(one.links, latency_us=latency))
        return self._on_stated(one, LinkRate(rate.gb_per_s, words, words), (1.0, ""))

    def _between(self) -> tuple[NodeRate, float] | None:
        """The rate between nodes that was calibrated, and the latency of a hop there; None where none was."""
        rate = rate_between(self.every) if self.every is not None else None
        if rate is None or self.every is None:
            return None
        return rate, _hop_us(find_fit(self.every.on_nodes(rate.nodes), rate.collective, rate.devices))

    def _traced(self, kind: str, size: float) -> Cost:
        """A line through the base's own collectives of that kind; one size alone scales with its bytes."""
        times = sorted((moved, time) for (name, moved), time in self.traced.items() if name == kind)
        if not times:
            raise NotKnown(f"no {kind} was measured: run dpscope calibrate, or state the link with --link")
        bounds = ", upper bounds" if self.traced_bounded else ""
        words = f"transfers of the base on {counted(self.place.devices, 'device')}{bounds}"
        exact = self.traced.get((kind, size))
        latency, slope = _line(times)
        total = latency + slope * size if exact is None else exact
        spread = _TRACED * (2.0 if self.traced_bounded else 1.0)
        return Cost(min(latency, total), max(0.0, total - latency), words, spread)

    def _on_stated(self, one: _Collective, stated: LinkRate, reached: tuple[float, str] | None = None) -> Cost:
        """`reached`: the reached share of the rate and its description, where it was measured and is not a specification."""
        kind, size, place, links = one
        at_other_layout = reached is not None
        if stated.source == REACHED_RATE:
            reached = (1.0, ", as reached")
        efficiency, how = reached or self._efficiency(kind)
        hop_us, whence = (links.latency_us, "") if links.latency_us is not None else self._hop(kind, place.nodes > 1)
        inside = min(place.per_node, place.devices)
        within, words = self._within(kind, size, inside, links) if place.nodes > 1 and inside > 1 else (None, "")
        inner = None if within is None else (within.latency_us, within.transfer_us)
        rate = stated.gb_per_s * efficiency * 1e3  # bytes a microsecond
        way = best_way(kind, size, place.devices, inside, hop_us, rate, inner)
        if way is None:
            raise NotKnown(f"there is no model of {kind} by a link's rate")
        name, latency_us, transfer_us = way
        specified = "" if reached else ": specification"
        basis = f"{stated.name}{specified}{how}{whence}, {name}{words}"
        if name == HIERARCHICAL or at_other_layout:
            return Cost(latency_us, transfer_us, basis, _HIERARCHY)
        spread = _SPECIFIED if reached is None else _CARRIED
        return Cost(latency_us, transfer_us, basis, spread, bound=reached is None and how == _BOUND)

    def _within(self, kind: str, size: float, inside: int, links: Links) -> tuple[Cost | None, str]:
        """On the devices of one node, over the stated link, else as measured; and what the basis says of it."""
        try:
            cost = self._found(_Collective(kind, size, Place(inside, inside), Links(intra=links.intra)))
        except NotKnown:
            return None, "; links within a node taken to be no slower"
        return cost, "" if links.intra is None else f"; within a node {cost.basis}"

    def _efficiency(self, kind: str) -> tuple[float, str]:
        """What of a link's specification was reached, where a specification and a measurement of one link are known."""
        fit = find_fit(self.calibration, kind, self.place.devices) if self.calibration is not None else None
        rate = largest_bus_gb_per_s(fit) if fit is not None else None
        if self.specified is None or rate is None or not 0.05 < (reached := rate / self.specified.gb_per_s) <= 1.5:
            return 1.0, _BOUND
        return reached, f" x {reached:.2f}, reached on {self.specified.name}"

    def _hop(self, kind: str, between: bool) -> tuple[float, str]:
        """The latency of one hop as it was calibrated, on that level where it was, and where; 0 where it is not known."""
        one_node = self.place.nodes == 1
        if between and one_node and (found := self._between()) is not None:
            return found[1], f", {found[1]:.3g} us a hop as calibrated on {found[0].layout} devices"
        level, where = self.calibration, "within a node" if one_node else "between nodes"
        if not between and not one_node and self.every is not None:
            level, where = self.every.on_nodes(1), "within a node"
        every = () if level is None else level.fits
        fits = [one for one in every if (one.collective, one.statistic) == (kind, "slowest")]
        if not fits:
            return 0.0, ", no latency known"
        fit = min(fits, key=lambda one: abs(one.devices - self.place.devices))
        latency = _hop_us(fit)
        return latency, f", {latency:.3g} us a hop as calibrated {where}"


def _hop_us(fit: CollectiveFit | None) -> float:
    """What one hop of a ring takes, of a fitted collective's latency."""
    return 0.0 if fit is None else max(0.0, fit.pieces[0].alpha_us) / max(1, ring_hops(fit.collective, fit.devices))


def _layout(nodes: int, devices: int) -> str:
    return str(devices) if nodes == 1 else f"{nodes}x{devices // nodes}"


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Latency and microseconds a byte, both at least 0."""
    from scipy.optimize import nnls

    sizes = np.array([size for size, _ in points], dtype=float)
    times = np.array([time for _, time in points], dtype=float)
    if len(set(sizes.tolist())) < 2:
        return 0.0, float(times.mean() / sizes.mean()) if sizes.mean() else 0.0
    weights = 1 / np.maximum(times, 1.0)
    (start, slope), _ = nnls(np.stack((weights, sizes * weights), axis=1), times * weights)
    return float(start), float(slope)
