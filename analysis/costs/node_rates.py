"""How fast a node's links are, as a calibration's largest collectives show."""

from dataclasses import dataclass

import numpy as np

from dpscope.analysis.costs.cost import Place
from dpscope.analysis.costs.formulas import bus_factor, bus_gb_per_s
from dpscope.analysis.text.units import show_bytes
from dpscope.profiling.records.calibration import Calibration


@dataclass(frozen=True)
class NodeRate:
    """Bandwidth of one direction, 1e9 B/s, from the median over iterations of a collective's
    slowest rank.
    """

    gb_per_s: float
    collective: str
    size_bytes: int
    devices: int
    nodes: int

    @property
    def place(self) -> Place:
        return Place(self.devices, -(-self.devices // self.nodes))

    def __str__(self) -> str:
        return (
            f"{self.gb_per_s:.3g} GB/s (bus bandwidth of {self.collective}, {show_bytes(self.size_bytes)} on {self.place} "
            "devices)"
        )


def rate_within(calibration: Calibration) -> NodeRate | None:
    """The rate of the links within a node; None if nothing was timed on one node."""
    return _rate(calibration, several_nodes=False)


def rate_between(calibration: Calibration) -> NodeRate | None:
    """The rate of a node's links to other nodes, which a ring over all devices crosses once each
    way; None if none was timed.
    """
    return _rate(calibration, several_nodes=True)


def _rate(calibration: Calibration, several_nodes: bool) -> NodeRate | None:
    """From an all-reduce if there is one, on the most devices, at the largest size."""
    rates = []
    for point in calibration.points:
        nodes = point.nodes or calibration.nodes_of(point.devices)
        if (
            nodes is None
            or (nodes > 1) != several_nodes
            or bus_factor(point.collective, point.devices) is None
        ):
            continue
        gb_per_s = bus_gb_per_s(
            point.collective, point.size_bytes, point.devices, float(np.median(point.times_us))
        )
        if gb_per_s is not None:
            rates.append(
                NodeRate(gb_per_s, point.collective, point.size_bytes, point.devices, nodes)
            )
    return max(
        rates,
        key=lambda rate: (rate.collective == "all_reduce", rate.devices, rate.size_bytes),
        default=None,
    )
