"""Sources of costs by the rate of a link: the one that the question states, or the one calibrated
between nodes.

A link's rate gives the fastest of ring, tree and hierarchy; a stated specification is reached as
far as that of the measured link was, and is a bound where that is not known.
"""

import math
from typing import NamedTuple

from dpscope.analysis.costs.calibration_fit import find_fit, largest_bus_gb_per_s
from dpscope.analysis.costs.cost import Basis, Call, Cost, Known, Links, Place, banded
from dpscope.analysis.costs.formulas import bus_factor, ring_hops
from dpscope.analysis.costs.node_rates import NodeRate, rate_between
from dpscope.analysis.stats.missing import Missing
from dpscope.profiling.records.calibration import CollectiveFit
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import REACHED_RATE, LinkRate

RING, TREE, HIERARCHY = "ring", "tree", "hierarchy"
# Half a 90% band, in logarithms:
_REACHED_BAND = 0.15
_SPECIFIED_BAND = 0.35
_HIERARCHY_BAND = 0.35
# Of a specification; beyond, it is that of another link:
_LEAST_REACHED = 0.05
_MOST_REACHED = 1.5


class Way(NamedTuple):
    """How a collective goes over a link of known rate."""

    name: str
    latency_us: float
    transfer_us: float

    @property
    def total_us(self) -> float:
        return self.latency_us + self.transfer_us


class Hop(NamedTuple):
    """The latency of one hop, and where it was calibrated, in words."""

    latency_us: float
    words: str


def stated_link(call: Call, known: Known) -> Cost | None:
    """By the link that the question states between the slowest neighbours."""
    link = call.links.on(call.place)
    if link is None:
        return None
    hop = _hop(call, known)
    if link.source == REACHED_RATE:
        return _by_rate(
            call, known, link.gb_per_s, hop, f"{link.name}, as reached{hop.words}", _REACHED_BAND
        )
    share, reached_on = _reached(call.kind, known)
    if share is None:
        words = f"{link.name}: specification, so a collective takes at least this{hop.words}"
        return _by_rate(call, known, link.gb_per_s, hop, words, _SPECIFIED_BAND, bound=True)
    words = f"{link.name}: specification x {share:.2f}, reached on {reached_on}{hop.words}"
    return _by_rate(call, known, share * link.gb_per_s, hop, words, _SPECIFIED_BAND)


def calibrated_link(kind: str, place: Place, known: Known) -> LinkRate | None:
    """The link within a node as if it was stated at the rate that its calibration reached; None
    where that is not known, and for several nodes.
    """
    fit = known.fit(kind, place)
    rate = largest_bus_gb_per_s(fit) if fit is not None else None
    if rate is None or place.nodes > 1:
        return None
    return LinkRate(rate, "the calibrated link", REACHED_RATE)


def rate_between_nodes(call: Call, known: Known) -> Cost | None:
    """Over several nodes, by the rate between nodes that was calibrated with other numbers of
    devices on each.
    """
    place = call.place
    if place.nodes == 1 or call.exact:
        return None
    measured = _rate_between(known)
    if measured is not None:
        words = f"the rate between nodes calibrated on {measured.place}"
        return _by_rate(
            call, known, measured.gb_per_s, _hop_of(measured, known), words, _HIERARCHY_BAND
        )
    if known.place is None:
        return None
    if known.place.nodes > 1 and call.on_measured_links:
        on_each = counted(known.place.per_node, "device")
        raise Missing(
            f"measured with {on_each} a node, requested with {place.per_node}: give --link, or calibrate there"
        )
    raise Missing(
        "the cost of the link between nodes is not known: give --link, such as --link 100Gb/s, or calibrate over "
        "several nodes"
    )


def _by_rate(
    call: Call,
    known: Known,
    gb_per_s: float,
    hop: Hop,
    words: str,
    half: float,
    bound: bool = False,
) -> Cost:
    """Over a link of this rate between the slowest neighbours; what runs within the nodes by the
    best source for that.
    """
    place = call.place
    inside = Place(min(place.per_node, place.devices), min(place.per_node, place.devices))
    within: tuple[float, float] | None = None
    after = ""
    if place.nodes > 1 and inside.devices > 1:
        try:
            cost = known.answer(call._replace(place=inside, links=Links(intra=call.links.intra)))
        except Missing:
            after = "; links within a node taken to be no slower"
        else:
            within = (cost.latency_us, cost.transfer_us)
            after = "" if call.links.intra is None else f"; within a node {cost.words}"
    rate = gb_per_s * 1e3  # bytes a microsecond
    way = best_way(
        call.kind, call.size_bytes, place.devices, inside.devices, hop.latency_us, rate, within
    )
    if way is None:
        raise Missing(f"there is no model of {call.kind} by a link's rate")
    name, latency_us, transfer_us = way
    if name == HIERARCHY:
        half, bound = _HIERARCHY_BAND, False
    basis: Basis = "specification" if bound else "rate"
    return banded(latency_us, transfer_us, half, basis, f"{words}, {name}{after}", bound)


def best_way(
    kind: str,
    size: float,
    devices: int,
    inside: int,
    hop_us: float,
    rate: float,
    within: tuple[float, float] | None,
) -> Way | None:
    """The fastest over so many devices, on nodes of `inside`: its name, and microseconds of latency
    and of transfer.

    None where the kind has no model. `rate` in bytes a microsecond is that of the link between
    nodes, which a node's devices share; on one node of the one within. `within`: latency and
    transfer of the same collective on the devices of one node; None where it is not known, and
    taken to hold nothing up. A ring and a tree are as slow as the slowest link they go over. A
    hierarchy is a reduce-scatter inside a node, an all-reduce of each share between nodes over the
    node's link, an all-gather inside. The bytes of a ring: nccl-tests, doc/PERFORMANCE.md; the 2
    log2 N hops of a tree: Sanders, Speck and Träff, "Two-tree algorithms", 2009.

    >>> best_way("all_reduce", 1e6, 8, 2, 0.0, 1e4, (0.0, 20.0))  # 20 inside and 2 x 3/4 MB between; a ring would take 175
    Way(name='hierarchy', latency_us=0.0, transfer_us=170.0)
    """
    if bus_factor(kind, devices) is None:
        return None
    nodes = -(-devices // inside)
    inner = bus_factor(kind, inside)
    inner_rate = rate
    if within is not None and inner and within[1] > 0:
        inner_rate = inner * size / within[1]
    best = _ring_or_tree(kind, size, devices, hop_us, min(rate, inner_rate))
    if nodes == 1 or kind != "all_reduce" or within is None:
        return best
    between_us = (bus_factor(kind, nodes) or 0.0) * size / rate
    hierarchy = Way(HIERARCHY, ring_hops(kind, nodes) * hop_us, sum(within) + between_us)
    on_one_node = _ring_or_tree(kind, size, devices, hop_us, rate)
    if inner_rate <= rate and hierarchy.total_us < on_one_node.total_us:
        return on_one_node  # no link within a node is faster than there
    return min(best, hierarchy, key=lambda way: way.total_us)


def _ring_or_tree(kind: str, size: float, devices: int, hop_us: float, rate: float) -> Way:
    """The faster one over links that all have this rate."""
    factor = bus_factor(kind, devices) or 0.0
    ring = Way(RING, ring_hops(kind, devices) * hop_us, factor * size / rate)
    if kind != "all_reduce":
        return ring
    hops = 2 * math.ceil(math.log2(devices))
    tree = Way(TREE, hops * hop_us, 2 * size / rate)
    return min(ring, tree, key=lambda way: way.total_us)


def _reached(kind: str, known: Known) -> tuple[float | None, str]:
    """What of its specification the measured link reached, and that link's name, where both are
    known.
    """
    if known.place is None:
        return None, ""
    fit, link = known.fit(kind, known.place), known.link(known.place)
    rate = largest_bus_gb_per_s(fit) if fit is not None else None
    if link is None or rate is None or not _LEAST_REACHED < rate / link.gb_per_s <= _MOST_REACHED:
        return None, ""
    return rate / link.gb_per_s, link.name


def _hop(call: Call, known: Known) -> Hop:
    """As it was calibrated between nodes for a ring over several, else within one; 0 where neither
    is known.
    """
    if call.place.nodes > 1 and (measured := _rate_between(known)) is not None:
        return _hop_of(measured, known)
    within = known.on_nodes(1)
    fits = within.fits if within is not None else ()
    alike = [fit for fit in fits if (fit.collective, fit.statistic) == (call.kind, "slowest")]
    if not alike:
        return Hop(0.0, ", no latency known")
    latency_us = _hop_us(min(alike, key=lambda fit: abs(fit.devices - call.place.devices)))
    return Hop(latency_us, f", {latency_us:.3g} us a hop as calibrated within a node")


def _hop_of(measured: NodeRate, known: Known) -> Hop:
    """Of the collective that a rate between nodes was calibrated by."""
    over = known.on_nodes(measured.nodes)
    fit = find_fit(over, measured.collective, measured.devices) if over is not None else None
    latency_us = _hop_us(fit) if fit is not None else 0.0
    return Hop(latency_us, f", {latency_us:.3g} us a hop as calibrated on {measured.place} devices")


def _hop_us(fit: CollectiveFit) -> float:
    """What one hop of a ring takes, of a fitted collective's latency."""
    return max(0.0, fit.pieces[0].alpha_us) / max(1, ring_hops(fit.collective, fit.devices))


def _rate_between(known: Known) -> NodeRate | None:
    calibration = known.calibration
    return (
        None if calibration is None else known.once(rate_between, lambda: rate_between(calibration))
    )
