"""What a prediction may rest on: a calibration of the machine, else the link's specification. The two are never mixed."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from dpscope.analysis.costs.calibrated import ContentionRatios, contention_of
from dpscope.analysis.costs.calibration_fit import Statistic, find_fit, largest_bus_gb_per_s, predict_us
from dpscope.analysis.costs.formulas import ring_us
from dpscope.analysis.text.units import show_bytes
from dpscope.profiling.machine.interconnect import group_rate
from dpscope.profiling.machine.link_text import parse_link
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import Interconnect, LinkRate
from dpscope.profiling.records.run import Manifest

Source = Literal["calibration", "specification"]
NO_SOURCE = "no calibration and no link bandwidth known: calibrate, or give --link"


@dataclass(frozen=True)
class RingRate:
    """What the ring formula divides by, in 1e9 B/s of one direction, and where it is from."""

    gb_per_s: float
    source: Source
    told: str  # such as "NVLink 4 x18, 450 GB/s: NVML names the link, NVIDIA's data sheet its rate"


@dataclass(frozen=True)
class CostSources:
    """A calibration's fits, else what the links are specified for: as the user states them, as NVML reported them."""

    stated: LinkRate | None = None  # by the user, of any number of devices
    calibration: Calibration | None = None
    interconnect: Interconnect | None = None  # of the machine that was measured
    nodes: int = (
        1  # that what is predicted spans: NVML's links are one machine's, a calibration of as many as it ran on
    )

    within_a_node: frozenset[str] = frozenset()  # kinds of collectives that HSDP runs on each of its nodes by itself

    def on_nodes(self, nodes: int, within: Collection[str] = ()) -> "CostSources":
        """The same of a cell that spans so many hosts, `within` each of which it runs these kinds of collectives."""
        return replace(self, nodes=nodes, within_a_node=frozenset(within))

    def _of_kind(self, kind: str) -> "CostSources":
        return self.on_nodes(1) if kind in self.within_a_node else self

    def calibrated(self, devices: int) -> Calibration | None:
        """The calibration as far as it was made on as many hosts; None where so many devices were timed on others alone.

        1 x 4 GPUs are not 2 x 2.
        """
        if self.calibration is None or not {None, self.nodes} & self.calibration.spans(devices):
            return None
        return self.calibration.on_nodes(self.nodes)

    def no_source(self, devices: int) -> str:
        """Why nothing predicts cells on so many devices."""
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
        """What bounds a ring through the first `devices` devices in one direction; None where it is not known."""
        if self.stated is not None:
            return self.stated
        one_host = self.interconnect if self.nodes == 1 else None
        found = group_rate(one_host, range(devices)) if one_host is not None else None
        calibration = self.calibrated(devices)
        return found or (calibration.links.get(devices) if calibration is not None else None)

    def ring_rate(self, devices: int, kind: str = "all_reduce") -> RingRate | None:
        """The rate of the ring formula: the link's, else the bus bandwidth that was calibrated at the largest size.

        Bus bandwidth is size / time x a factor, of all-reduces 2(N-1)/N (nccl-tests, doc/PERFORMANCE.md): the rate at which the
        ring formula would have taken the time that the calibration did.
        """
        if (link := self.link(devices)) is not None:
            return RingRate(link.gb_per_s, "specification", self._told(link))
        calibration = self.calibrated(devices)
        fit = find_fit(calibration, kind, devices) if calibration is not None else None
        rate = largest_bus_gb_per_s(fit) if fit is not None else None
        if fit is None or rate is None:
            return None
        told = f"{rate:.3g} GB/s, the bus bandwidth calibrated at {show_bytes(fit.largest_bytes)}"
        return RingRate(rate, "calibration", f"{told} (no link is known)")

    def _told(self, link: LinkRate) -> str:
        rate = f"{link.name}, {link.gb_per_s:.4g} GB/s one way"
        if self.stated is not None:
            return f"{rate}, stated with --link"
        return f"{rate}: {'NVML' if self.interconnect is not None else 'the calibration'} names the link, {link.source} its rate"

    def source(self, devices: int) -> Source | None:
        """What predictions of cells on so many devices rest on."""
        if self.calibrated(devices) is not None:
            return "calibration"
        return "specification" if self.link(devices) is not None else None

    def contention(self, devices: int) -> ContentionRatios | None:
        """How much collectives and computing were calibrated to slow each other."""
        return contention_of(self.calibrated(devices), devices)

    def cost(self, kind: str, ranks: int, size_bytes: float, statistic: Statistic = "slowest") -> float | None:
        """Microseconds of one collective; None where the source does not know that kind on so many ranks.

        `statistic`: of its slowest rank, which a step has to wait for, or of the shortest, which a trace's transfer is.
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
        """Set where a size lies outside those calibrated: its cost is the fit's nearest line extended."""
        calibration = self._of_kind(kind).calibrated(ranks)
        fit = find_fit(calibration, kind, ranks) if calibration is not None else None
        return predict_us(fit, size_bytes).extrapolated if fit is not None else None


def cost_sources(manifest: Manifest | None, stated: LinkRate | None, calibration: Calibration | None) -> CostSources:
    """What the predictions of a run may rest on: the link as it is stated now, else as it was when the run was measured.

    Of traces alone, without a manifest, only what is stated and calibrated.
    """
    if manifest is None:
        return CostSources(stated, calibration)
    told = manifest.config.reporting.link
    stated = stated or (parse_link(told) if told is not None else None)
    return CostSources(stated, calibration, manifest.environment.interconnect)
