"""What one collective costs: the question, the answer with its band and basis, and what sources may
know of the machine.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

from dpscope.analysis.costs.calibration_fit import Statistic, find_fit
from dpscope.profiling.machine.interconnect import group_rate
from dpscope.profiling.records.calibration import Calibration, CollectiveFit
from dpscope.profiling.records.links import Interconnect, LinkRate

_Result = TypeVar("_Result")
Basis = Literal["calibration", "specification", "transfers", "law", "rate"]


class Place(NamedTuple):
    """How many devices, on nodes of so many."""

    devices: int
    per_node: int

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.per_node)

    @property
    def layout(self) -> tuple[int, int]:
        """Nodes and devices: what a calibration knows of its ranks."""
        return self.nodes, self.devices

    def __str__(self) -> str:
        """Such as ``8``, over several nodes ``2x8``."""
        return (
            str(self.devices) if self.nodes == 1 else f"{self.nodes}x{self.devices // self.nodes}"
        )


@dataclass(frozen=True)
class Links:
    """The links that the question states; None is as measured. `inter` is one node's, all its
    devices sharing it.
    """

    intra: LinkRate | None = None
    inter: LinkRate | None = None

    def on(self, place: Place) -> LinkRate | None:
        """The stated link between the slowest neighbours of a ring over all devices."""
        return self.inter if place.nodes > 1 else self.intra

    def replace_any(self, place: Place) -> bool:
        """Whether a collective over these devices would use any of the stated links, so that no
        measured time holds.
        """
        return self.on(place) is not None or (self.intra is not None and place.per_node > 1)


AS_MEASURED = Links()


class Call(NamedTuple):
    """What is to be costed: `size_bytes` is the larger of a rank's buffers, `statistic` which
    rank's time is wanted.

    A step has to wait for the slowest; a trace's transfer is the time of the shortest. `exact`: the
    cost is to be compared with a measured one, so times of other counts may not stand in.
    """

    kind: str
    size_bytes: float
    place: Place
    links: Links = AS_MEASURED
    statistic: Statistic = "slowest"
    exact: bool = False

    @property
    def on_measured_links(self) -> bool:
        """Whether it would use none of the links that the question states, so that measured times
        hold.
        """
        return not self.links.replace_any(self.place)


@dataclass(frozen=True)
class Cost:
    """Of one collective alone on its link: latency, then transfer, and a 90% band of their sum;
    microseconds.

    A cost by a specification alone is a bound: it can take longer and no less, so that `low_us` is
    the cost itself. `words` say what it rests on, `formula` how it was computed, with its numbers,
    where that is one line.
    """

    latency_us: float
    transfer_us: float
    low_us: float
    high_us: float
    basis: Basis
    words: str
    formula: str = ""
    extrapolated: str | None = None  # set if the size is outside the measured ones: how far

    @property
    def total_us(self) -> float:
        return self.latency_us + self.transfer_us

    @property
    def below(self) -> float:
        """How far the band reaches towards cheaper, in logarithms."""
        return math.log(self.total_us / self.low_us) if self.low_us > 0 else 0.0

    @property
    def above(self) -> float:
        """How far the band reaches towards dearer, in logarithms."""
        return math.log(self.high_us / self.total_us) if self.total_us > 0 else 0.0

    @property
    def explanation(self) -> str:
        """The formula with its numbers, else what the cost rests on."""
        return self.formula or self.words

    def computed_by(self, formula: str, extrapolated: str | None = None) -> "Cost":
        return replace(self, formula=formula, extrapolated=extrapolated)

    def times(self, factor: float) -> "Cost":
        """So many times as long."""
        names = ("latency_us", "transfer_us", "low_us", "high_us")
        return replace(self, **{name: factor * getattr(self, name) for name in names})

    def widened(self, by: float) -> "Cost":
        """With a band to which an independent error is added, in logarithms."""
        below = math.hypot(self.below, by)
        above = math.hypot(self.above, by)
        low_us = self.total_us * math.exp(-below)
        return replace(self, low_us=low_us, high_us=self.total_us * math.exp(above))

    def between(self, least_us: float, most_us: float) -> "Cost":
        """With the share of latency, but no shorter and no longer than this, nor its band."""
        total_us = min(max(self.total_us, least_us), most_us)
        scaled = self.times(total_us / self.total_us if self.total_us > 0 else 1.0)
        low_us = min(max(self.low_us, least_us), total_us)
        high_us = max(min(self.high_us, most_us), total_us)
        return replace(scaled, low_us=low_us, high_us=high_us)


def banded(
    latency_us: float,
    transfer_us: float,
    half: float,
    basis: Basis,
    words: str,
    bound: bool = False,
) -> Cost:
    """A cost whose 90% band reaches a factor of e^half either way; of a bound only upwards."""
    total_us = latency_us + transfer_us
    low_us = total_us if bound else total_us * math.exp(-half)
    return Cost(latency_us, transfer_us, low_us, total_us * math.exp(half), basis, words)


@dataclass(frozen=True)
class Known(ABC):
    """What sources may know: the machine's links, a calibration on any of its layouts, and the
    transfers of a measured step.

    `stated` is the link as a user states it, `interconnect` what NVML reported; `place` is where
    the measured step ran, None where there is none; `transfers` are its own collectives, (kind,
    bytes) -> microseconds, upper bounds where `transfers_bounded`.
    """

    stated: LinkRate | None = None
    calibration: Calibration | None = None
    interconnect: Interconnect | None = None
    place: Place | None = None
    transfers: Mapping[tuple[str, float], float] = field(default_factory=dict)
    transfers_bounded: bool = False
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @abstractmethod
    def answer(self, call: Call) -> Cost:
        """What the best source has; raises Missing."""

    def once(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """The result of `make`, computed once for each key."""
        if key not in self._kept:
            self._kept[key] = make()
        result: _Result = self._kept[key]
        return result

    def is_own(self, place: Place) -> bool:
        """Whether the measured step ran on such devices."""
        return self.place is not None and self.place.layout == place.layout

    def same_level(self, place: Place) -> bool:
        """Whether the measured step crossed the same links: those within a node, or those between
        nodes that are as full.
        """
        if self.place is None or (self.place.nodes == 1) != (place.nodes == 1):
            return False
        return place.nodes == 1 or self.place.per_node == place.per_node

    def calibrated(self, place: Place) -> Calibration | None:
        """The part of the calibration made on as many hosts (1 x 4 GPUs are not 2 x 2); None if
        only others were timed.
        """
        if self.calibration is None or not {None, place.nodes} & self.calibration.spans(
            place.devices
        ):
            return None
        return self.on_nodes(place.nodes)

    def on_nodes(self, nodes: int) -> Calibration | None:
        """The part of the calibration that was timed on so many hosts, or on an unknown number."""
        calibration = self.calibration
        return (
            None if calibration is None else self.once(nodes, lambda: calibration.on_nodes(nodes))
        )

    def fit(
        self, kind: str, place: Place, statistic: Statistic = "slowest"
    ) -> CollectiveFit | None:
        """The calibration's fit of a collective on exactly these devices; None if there is none."""
        here = self.calibrated(place)
        return None if here is None else find_fit(here, kind, place.devices, statistic)

    def link(self, place: Place) -> LinkRate | None:
        """The link that bounds a ring through the first devices of a node in one direction; None if
        unknown.
        """
        if self.stated is not None:
            return self.stated
        devices = place.devices
        reported = None
        if self.interconnect is not None and place.nodes == 1:
            reported = group_rate(self.interconnect, range(devices))
        here = self.calibrated(place)
        return reported or (here.links.get(devices) if here is not None else None)

    @property
    def alike(self) -> bool:
        """Whether all links between the devices have one rate; those of unknown rate count as
        alike.
        """
        pairs = self.interconnect.pairs if self.interconnect is not None else ()
        return len({pair.rate.gb_per_s for pair in pairs if pair.rate is not None}) <= 1
