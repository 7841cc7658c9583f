"""How fast a calibration found the links within a node and those between nodes, by bus bandwidth at the largest size timed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.costs.formulas import bus_factor, bus_gb_per_s
from dpscope.analysis.text.units import show_bytes
from dpscope.profiling.records.calibration import Calibration, CalibrationPoint


@dataclass(frozen=True)
class NodeRate:
    """1e9 B/s in one direction, and the collective that reached it, each iteration by its slowest rank (median of iterations)."""

    gb_per_s: float
    collective: str
    size_bytes: int
    devices: int
    nodes: int

    @property
    def layout(self) -> str:
        """Such as ``8``, over several nodes ``2x8``."""
        return str(self.devices) if self.nodes == 1 else f"{self.nodes}x{self.devices // self.nodes}"

    def __str__(self) -> str:
        return (
            f"{self.gb_per_s:.3g} GB/s (bus bandwidth of {self.collective}, {show_bytes(self.size_bytes)} on {self.layout} "
            "devices)"
        )


def rate_within(calibration: Calibration) -> NodeRate | None:
    """Of one node's links; None where nothing was timed on one node."""
    return _rate(calibration, [one for one in calibration.points if nodes_of(calibration, one) == 1])


def rate_between(calibration: Calibration) -> NodeRate | None:
    """Of a node's links to the others, which its devices share: a ring over all devices crosses them once in each direction.

    None where nothing was timed over several nodes.
    """
    return _rate(calibration, [one for one in calibration.points if (nodes_of(calibration, one) or 1) > 1])


def nodes_of(calibration: Calibration, timed: "CalibrationPoint") -> int | None:
    """Hosts that a point's ranks were on; None where that is not told."""
    return timed.nodes or calibration.nodes_of(timed.devices)


def _rate(calibration: Calibration, points: Sequence[CalibrationPoint]) -> NodeRate | None:
    """All-reduce before any other, then the most devices, then the largest size."""
    known = [one for one in points if bus_factor(one.collective, one.devices) is not None]
    if not known:
        return None
    best = max(known, key=lambda one: (one.collective == "all_reduce", one.devices, one.size_bytes))
    rate = bus_gb_per_s(best.collective, best.size_bytes, best.devices, float(np.median(best.times_us)))
    if rate is None:
        return None
    return NodeRate(rate, best.collective, best.size_bytes, best.devices, nodes_of(calibration, best) or 1)
