"""The basis of a prediction: a calibration of the machine, else the link's specification. The two are never mixed."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from dpscope.analysis.costs.calibrated import ContentionRatios, contention_of
from dpscope.analysis.costs.calibration_fit import Statistic, find_fit, largest_bus_gb_per_s, predict_us
from dpscope.analysis.costs.formulas import ring_us
from dpscope.analysis.text.units import show_bytes
from dpscope.profiling.machine.interconnect import group_rate
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import Interconnect, LinkRate
from dpscope.profiling.records.run import Manifest

Source = Literal["calibration", "specification"]
NO_SOURCE = "no calibration and no link bandwidth known: calibrate, or give --link"


@dataclass(frozen=True)
class RingRate:
    """The bandwidth of the ring formula in 1e9 B/s of one direction, and its source."""

    gb_per_s: float
    source: Source
    description: str  # such as "NVLink 4 x18, 450 GB/s: NVML names the link, NVIDIA's data sheet its rate"


@dataclass(frozen=True)
class CostSources:
    """A calibration's fits, else the specification of the links as the user states them or NVML reported them."""

    stated: LinkRate | None = None  # by the user, of any number of devices
    calibration: Calibration | None = None
    interconnect: Interconnect | None = None  # of the machine that was measured
    nodes: int = 1  # of the predicted cell; NVML's links are those of one machine
    within_a_node: frozenset[str] = frozenset()  # kinds of collectives that HSDP runs within each node

    def on_nodes(self, nodes: int, within: Collection[str] = ()) -> "CostSources":
        """The sources for a cell that spans this many hosts and runs the collectives of kinds `within` inside each."""
        return replace(self, nodes=nodes, within_a_node=frozenset(within))

    def _of_kind(self, kind: str) -> "CostSources":
        return self.on_nodes(1) if kind in self.within_a_node else self

    def calibrated(self, devices: int) -> Calibration | None:
        """The part of the calibration made on as many hosts; None if this many devices were timed on other layouts only.

        1 x 4 GPUs are not 2 x 2.
        """
        if self.calibration is None or not {None, self.nodes} & self.calibration.spans(devices):
            return None
        return self.calibration.on_nodes(self.nodes)

    def no_source(self, devices: int) -> str:
        """The reason why cells on this many devices cannot be predicted."""
        if self.nodes == 1:
            held = self.calibration is not None
            return (
                f"the calibration timed nothing on {counted(devices, 'device')}, and no link bandwidth is known: calibrate with "
                f"--devices {devices}, or give --link"
                if held
                else NO_SOURCE
            )
        spans = self.calibration.nodes_of(devices) if self.calibration is not None else None
        made = (
            f"the calibration was made on {counted(spans, 'node')}" if spans is not None else "there is no calibration"
        )
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
        """The rate of the ring formula: the link's, else the calibrated bus bandwidth at the largest size.

        Bus bandwidth is size / time x a factor, 2(N-1)/N for all-reduce (nccl-tests, doc/PERFORMANCE.md): the rate at which the
        ring formula gives the measured time.
        """
        if (link := self.link(devices)) is not None:
            return RingRate(link.gb_per_s, "specification", self._description(link))
        calibration = self.calibrated(devices)
        fit = find_fit(calibration, kind, devices) if calibration is not None else None
        rate = largest_bus_gb_per_s(fit) if fit is not None else None
        if fit is None or rate is None:
            return None
        description = f"{rate:.3g} GB/s, the bus bandwidth calibrated at {show_bytes(fit.largest_bytes)}"
        return RingRate(rate, "calibration", f"{description} (no link is known)")

    def _description(self, link: LinkRate) -> str:
        rate = f"{link.name}, {link.gb_per_s:.4g} GB/s one way"
        if self.stated is not None:
            return f"{rate}, stated with --link"
        return f"{rate}: {'NVML' if self.interconnect is not None else 'the calibration'} names the link, {link.source} its rate"

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
        own = self._of_kind(kind)
        if (calibration := own.calibrated(ranks)) is not None:
            fit = find_fit(calibration, kind, ranks, statistic)
            return predict_us(fit, size_bytes).time_us if fit is not None else None
        link = own.link(ranks)
        return ring_us(kind, size_bytes, ranks, link.gb_per_s) if link is not None else None

    def why_unknown(self, kind: str, ranks: int) -> str:
        """Why `cost` is None."""
        if self._of_kind(kind).calibrated(ranks) is not None:
            return f"the calibration holds no {kind} on {counted(ranks, 'rank')}"
        return f"there is no ring model of {kind}"

    def extrapolated(self, kind: str, ranks: int, size_bytes: float) -> str | None:
        """Set if a size is outside the calibrated ones: its cost is extrapolated from the fit's nearest line."""
        calibration = self._of_kind(kind).calibrated(ranks)
        fit = find_fit(calibration, kind, ranks) if calibration is not None else None
        return predict_us(fit, size_bytes).extrapolated if fit is not None else None


def cost_sources(manifest: Manifest | None, stated: LinkRate | None, calibration: Calibration | None) -> CostSources:
    """The basis of a run's predictions: the link as stated now, else as stated when the run was measured.

    For traces alone, without a manifest, only the stated link and the calibration.
    """
    if manifest is None:
        return CostSources(stated, calibration)
    recorded = manifest.config.reporting.link
    stated = stated or (parse_link(recorded) if recorded is not None else None)
    return CostSources(stated, calibration, manifest.environment.interconnect)
