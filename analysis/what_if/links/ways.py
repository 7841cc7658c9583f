"""The ways of a collective over nodes and the devices in them, by the rates of their links: ring, tree, hierarchy."""

import math
from dataclasses import dataclass

from dpscope.analysis.costs.formulas import bus_factor, ring_hops

RING, TREE, HIERARCHICAL = "ring", "tree", "hierarchy"


@dataclass(frozen=True)
class Way:
    """Microseconds of latency and of transfer."""

    name: str
    latency_us: float
    transfer_us: float

    @property
    def total_us(self) -> float:
        return self.latency_us + self.transfer_us


def best_way(
    kind: str, size: float, devices: int, inside: int, hop_us: float, rate: float, within: tuple[float, float] | None
) -> Way | None:
    """The fastest over so many devices, on nodes of `inside`; None where the kind has no model.

    `rate` in bytes a microsecond is that of the link between nodes, which a node's devices share; on one node of the one within.
    `within`: latency and transfer of the same collective on the devices of one node; None where it is not known, and taken to
    hold nothing up. A ring and a tree are as slow as the slowest link they go over. A hierarchy is a reduce-scatter inside a
    node, an all-reduce of each share between nodes over the node's link, an all-gather inside. The bytes of a ring: nccl-tests,
    doc/PERFORMANCE.md.

    >>> best_way("all_reduce", 1e6, 8, 2, 0.0, 1e4, (0.0, 20.0))  # 20 inside and 2 x 3/4 MB between; a ring would take 175
    Way(name='hierarchy', latency_us=0.0, transfer_us=170.0)
    """
    nodes, factor, inner = -(-devices // inside), bus_factor(kind, devices), bus_factor(kind, inside)
    if factor is None:
        return None
    slowest = rate
    if within is not None and inner and within[1] > 0:
        slowest = min(rate, inner * size / within[1])
    found = [Way(RING, ring_hops(kind, devices) * hop_us, factor * size / slowest)]
    if nodes > 1 and kind == "all_reduce":
        found.append(Way(TREE, 2 * math.ceil(math.log2(nodes)) * hop_us, 2 * size / slowest))
        if within is not None:
            between = (bus_factor(kind, nodes) or 0.0) * size / rate
            found.append(Way(HIERARCHICAL, ring_hops(kind, nodes) * hop_us, sum(within) + between))
    return min(found, key=lambda one: one.total_us)


def hop_us(kind: str, latency_us: float, devices: int) -> float:
    """What one hop of a ring takes, of a collective's latency on so many devices."""
    return max(0.0, latency_us) / max(1, ring_hops(kind, devices))
