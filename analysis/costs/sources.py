"""The basis of a prediction: a calibration of the machine, else the link's specification. The two are never mixed.

Also what a calibration's samples show: how collectives and computing slow each other, and how fast a node's links are.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dpscope.analysis.costs.calibration_fit import Statistic, find_fit, largest_bus_gb_per_s, predict_us
from dpscope.analysis.costs.formulas import bus_factor, bus_gb_per_s, moved_as, ring_us
from dpscope.analysis.text.units import show_bytes
from dpscope.profiling.machine.interconnect import group_rate
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.calibration import Calibration, CalibrationPoint, CollectiveFit, Contention
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.links import Interconnect, LinkRate
from dpscope.profiling.records.run import Manifest
from dpscope.profiling.records.run_codes import RunCode

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
    choice = np.random.default_rng(0).choice
    drawn = [
        np.median(choice(beside_us, len(beside_us))) / np.median(choice(alone_us, len(alone_us)))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(drawn, _TAILS).tolist()
    return Slowdown(float(np.median(beside_us) / np.median(alone_us)), low, high, min(len(beside_us), len(alone_us)))


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
    return _rate(calibration, several_nodes=False)


def rate_between(calibration: Calibration) -> NodeRate | None:
    """The rate of a node's links to other nodes, which a ring over all devices crosses once each way; None if none was timed."""
    return _rate(calibration, several_nodes=True)


def nodes_of(calibration: Calibration, timed: CalibrationPoint) -> int | None:
    """The number of hosts of a point's ranks; None if unknown."""
    return timed.nodes or calibration.nodes_of(timed.devices)


def _rate(calibration: Calibration, several_nodes: bool) -> NodeRate | None:
    """From an all-reduce if there is one, on the most devices, at the largest size."""
    known = [
        one
        for one in calibration.points
        if (nodes := nodes_of(calibration, one)) is not None
        and (nodes > 1) == several_nodes
        and bus_factor(one.collective, one.devices) is not None
    ]
    if not known:
        return None
    best = max(known, key=lambda one: (one.collective == "all_reduce", one.devices, one.size_bytes))
    rate = bus_gb_per_s(best.collective, best.size_bytes, best.devices, float(np.median(best.times_us)))
    nodes = nodes_of(calibration, best) or 1
    return None if rate is None else NodeRate(rate, best.collective, best.size_bytes, best.devices, nodes)


def wrong_results(calibration: Calibration | None) -> tuple[Finding, ...]:
    """A calibration's findings that its times are of wrong results, which hold wherever it is used."""
    stored = calibration.findings if calibration is not None else ()
    return tuple(one for one in stored if one.code == RunCode.CALIBRATION_RESULTS_WRONG.code)


Source = Literal["calibration", "specification"]
NO_SOURCE = "no calibration and no link bandwidth known: calibrate, or give --link"


@dataclass(frozen=True)
class RingRate:
    """The bandwidth of the ring formula in 1e9 B/s of one direction, and its source."""

    gb_per_s: float
    source: Source
    description: str  # such as "NVLink 4 x18, 450 GB/s: NVML names the link, NVIDIA's data sheet its rate"
    kind: str = "all_reduce"  # the collective that was calibrated; a link has one rate for all


@dataclass(frozen=True)
class CostSources:
    """A calibration's fits, else the specification of the links as the user states them or NVML reported them."""

    stated: LinkRate | None = None  # by the user, of any number of devices
    calibration: Calibration | None = None
    interconnect: Interconnect | None = None  # of the machine that was measured
    nodes: int = 1  # of the predicted cell; NVML's links are those of one machine
    within_a_node: frozenset[str] = frozenset()  # kinds of collectives that HSDP runs within each node
    concurrent: frozenset[str] = frozenset()  # kinds that it runs in several groups at once, on links that they share

    def on_nodes(self, nodes: int, within: Collection[str] = (), concurrent: Collection[str] = ()) -> "CostSources":
        """The sources for a cell that spans this many hosts and runs the collectives of kinds `within` inside each.

        Those of kinds `concurrent` run in several groups at once: neither a calibration nor a link's rate, of one group alone,
        is their cost.
        """
        return replace(self, nodes=nodes, within_a_node=frozenset(within), concurrent=frozenset(concurrent))

    def of_kind(self, kind: str) -> "CostSources":
        """The sources for one kind of collective."""
        return self.on_nodes(1) if kind in self.within_a_node else self

    def _calibrated_for(self, kind: str, ranks: int) -> Calibration | None:
        return self.of_kind(kind).calibrated(ranks)

    def calibrated(self, devices: int) -> Calibration | None:
        """The calibration made on as many hosts (1 x 4 GPUs are not 2 x 2); None if this many were timed on others only."""
        if self.calibration is None or not {None, self.nodes} & self.calibration.spans(devices):
            return None
        return self.calibration.on_nodes(self.nodes)

    def no_source(self, devices: int) -> str:
        """The reason why cells on this many devices cannot be predicted."""
        if self.nodes == 1:
            if self.calibration is None:
                return NO_SOURCE
            return (
                f"the calibration timed nothing on {counted(devices, 'device')}, and no link bandwidth is known: calibrate with "
                f"--devices {devices}, or give --link"
            )
        spans = self.calibration.nodes_of(devices) if self.calibration is not None else None
        made = "there is no calibration" if spans is None else f"the calibration was made on {counted(spans, 'node')}"
        return (
            f"the cell spans {self.nodes} nodes and {made}: give the link between them with --link, or nccl-tests' logs"
        )

    def link(self, devices: int) -> LinkRate | None:
        """The link that bounds a ring through the first `devices` devices in one direction; None if unknown."""
        if self.stated is not None:
            return self.stated
        one_host = self.interconnect if self.nodes == 1 else None
        reported = group_rate(one_host, range(devices)) if one_host is not None else None
        calibration = self.calibrated(devices)
        return reported or (calibration.links.get(devices) if calibration is not None else None)

    def ring_rate(self, devices: int, kind: str = "all_reduce") -> RingRate | None:
        """The rate of the ring formula: the link's, else the fitted bus bandwidth at the largest calibrated size."""
        if (link := self.link(devices)) is not None:
            if self.stated is not None:
                known = ", stated with --link"
            else:
                names = "NVML" if self.interconnect is not None else "the calibration"
                known = f": {names} names the link, {link.source} its rate"
            description = f"{link.name}, {link.gb_per_s:.4g} GB/s one way{known}"
            return RingRate(link.gb_per_s, "specification", description)
        calibration = self.calibrated(devices)
        fit = find_fit(calibration, kind, devices) if calibration is not None else None
        rate = largest_bus_gb_per_s(fit) if fit is not None else None
        if calibration is None or fit is None or rate is None:
            return None
        # nccl-tests' bus bandwidth of what gloo moves for a reduce-scatter would be twice the formula's rate
        by = "with which the formula takes as long as"
        by = "the bus bandwidth by" if moved_as(kind, calibration.backend) == kind else by
        description = f"{rate:.3g} GB/s, {by} the calibration's fit at {show_bytes(fit.largest_bytes)}"
        return RingRate(rate, "calibration", f"{description} (no link is known)", kind)

    def source(self, devices: int) -> Source | None:
        """The basis of predictions for cells on this many devices."""
        if self.calibrated(devices) is not None:
            return "calibration"
        return "specification" if self.link(devices) is not None else None

    def contention(self, devices: int) -> ContentionRatios | None:
        """The calibrated slowdown of collectives and computing by each other."""
        return contention_of(self.calibrated(devices), devices)

    def cost(self, kind: str, ranks: int, size_bytes: float, statistic: Statistic = "slowest") -> float | None:
        """Microseconds of one collective; None if the source does not have that kind on this many ranks.

        `statistic` chooses the slowest rank's time, for which a step has to wait, or the shortest, which a trace's transfer is.
        """
        if kind in self.concurrent:
            return None
        if self._calibrated_for(kind, ranks) is not None:
            fit = self.fit(kind, ranks, statistic)
            return predict_us(fit, size_bytes).time_us if fit is not None else None
        link = self.of_kind(kind).link(ranks)
        return ring_us(kind, size_bytes, ranks, link.gb_per_s) if link is not None else None

    def fit(self, kind: str, ranks: int, statistic: Statistic) -> CollectiveFit | None:
        """The calibration's fit that `cost` is by; None where it is not by a fit."""
        calibration = self._calibrated_for(kind, ranks) if kind not in self.concurrent else None
        return find_fit(calibration, kind, ranks, statistic) if calibration is not None else None

    def why_unknown(self, kind: str, ranks: int) -> str:
        """Why `cost` is None."""
        if kind in self.concurrent:
            return f"several groups run their {kind} at the same time, and what is known is of one group alone"
        if self._calibrated_for(kind, ranks) is not None:
            return f"the calibration holds no {kind} on {counted(ranks, 'rank')}"
        return f"there is no ring model of {kind}"

    def extrapolated(self, kind: str, ranks: int, size_bytes: float) -> str | None:
        """Set if a size is outside the calibrated ones: its cost is extrapolated from the fit's nearest line."""
        fit = self.fit(kind, ranks, "slowest")
        return predict_us(fit, size_bytes).extrapolated if fit is not None else None


def cost_sources(manifest: Manifest | None, stated: LinkRate | None, calibration: Calibration | None) -> CostSources:
    """The basis of a run's predictions: the link as stated now, else as when it was measured; traces have no manifest."""
    if manifest is None:
        return CostSources(stated, calibration)
    recorded = manifest.config.reporting.link
    stated = stated or (parse_link(recorded) if recorded is not None else None)
    return CostSources(stated, calibration, manifest.environment.interconnect)
