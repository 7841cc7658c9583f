"""From a calibration's samples: how collectives and computing slow each other, and how fast a node's links are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.costs.formulas import bus_factor, bus_gb_per_s
from dpscope.analysis.text.units import show_bytes
from dpscope.profiling.records.calibration import Calibration, CalibrationPoint, Contention
from dpscope.profiling.records.finding import counted

_RESAMPLES = 300
_TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Slowdown:
    """How many times as long something takes next to something else: ratio of medians with its 95% interval.

    The interval is a bootstrap over iterations, `count` of them; it shows how well these iterations determine the ratio.
    """

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f}, {counted(self.count, 'iteration')})"


@dataclass(frozen=True)
class ContentionRatios:
    """Of one device count: two collectives at once over one alone, a collective next to computing, computing next to it."""

    two_in_flight: Slowdown
    beside_compute: Slowdown
    compute: Slowdown
    size_bytes: int

    @property
    def summary(self) -> str:
        """The slowdown of two in flight and of one next to computing, with intervals."""
        return f"two in flight take {self.two_in_flight}, one next to computing {self.beside_compute}"


def contention_of(calibration: Calibration | None, devices: int) -> ContentionRatios | None:
    """The ratios on this many devices; None if they were not timed, as in logs."""
    timed = next((one for one in calibration.contention if one.devices == devices), None) if calibration else None
    return contention_ratios(timed) if timed is not None else None


def contention_ratios(timed: Contention) -> ContentionRatios:
    """Ratios from the samples of one device count."""
    return ContentionRatios(
        two_in_flight=_slowdown(timed.two_in_flight_us, timed.alone_us),
        beside_compute=_slowdown(timed.beside_compute_us, timed.alone_us),
        compute=_slowdown(timed.compute_beside_us, timed.compute_alone_us),
        size_bytes=timed.size_bytes,
    )


def _slowdown(beside_us: Sequence[float], alone_us: Sequence[float]) -> Slowdown:
    generator = np.random.default_rng(0)
    drawn = [
        np.median(generator.choice(beside_us, len(beside_us))) / np.median(generator.choice(alone_us, len(alone_us)))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(drawn, _TAILS)
    return Slowdown(
        float(np.median(beside_us) / np.median(alone_us)), float(low), float(high), min(len(beside_us), len(alone_us))
    )


@dataclass(frozen=True)
class NodeRate:
    """Bandwidth of one direction, 1e9 B/s, from the median over iterations of a collective's slowest rank."""

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
    """The rate of the links within a node; None if nothing was timed on one node."""
    return _rate(calibration, [one for one in calibration.points if nodes_of(calibration, one) == 1])


def rate_between(calibration: Calibration) -> NodeRate | None:
    """The rate of a node's links to other nodes, which a ring over all devices crosses once in each direction.

    None if nothing was timed over several nodes.
    """
    return _rate(calibration, [one for one in calibration.points if (nodes_of(calibration, one) or 1) > 1])


def nodes_of(calibration: Calibration, timed: "CalibrationPoint") -> int | None:
    """The number of hosts of a point's ranks; None if unknown."""
    return timed.nodes or calibration.nodes_of(timed.devices)


def _rate(calibration: Calibration, points: Sequence[CalibrationPoint]) -> NodeRate | None:
    """From an all-reduce if there is one, on the most devices, at the largest size."""
    known = [one for one in points if bus_factor(one.collective, one.devices) is not None]
    if not known:
        return None
    best = max(known, key=lambda one: (one.collective == "all_reduce", one.devices, one.size_bytes))
    rate = bus_gb_per_s(best.collective, best.size_bytes, best.devices, float(np.median(best.times_us)))
    if rate is None:
        return None
    return NodeRate(rate, best.collective, best.size_bytes, best.devices, nodes_of(calibration, best) or 1)
