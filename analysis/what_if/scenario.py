"""What differs from a measured step, and the base that it is predicted from: plain data. Microseconds, bytes."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.what_if.collective_costs import Links, Place
from dpscope.analysis.what_if.lateness import Lateness
from dpscope.analysis.what_if.replay import (
    AS_IT_WAS,
    Compute,
    Prepared,
    Replayed,
    measured_conditions,
    replay,
)
from dpscope.analysis.what_if.step_profile import SHARES_THE_LINK, Bucketing, StepProfile
from dpscope.profiling.records.short_repr import short_repr

_Result = TypeVar("_Result")
DEFAULT_BUCKET = "default"


@dataclass(frozen=True)
class Interference:
    """`gamma`: what computing loses per time next to a collective; `slowdown`: how much longer each of two in flight takes.

    Each with the band of what it may be. `slowdown_measured`: of whole calls; else assumed, of their bytes. `contention` is the
    basis of gamma, in words; empty where it is assumed.
    """

    gamma: float = 0.0
    gamma_band: tuple[float, float] = (0.0, 0.0)
    slowdown: float = SHARES_THE_LINK
    slowdown_band: tuple[float, float] = (SHARES_THE_LINK, SHARES_THE_LINK)
    slowdown_measured: bool = False
    contention: str = ""


AS_MEASURED, USUAL_BUCKETS, UNKNOWN_LATENESS, NO_INTERFERENCE = (
    Links(),
    Bucketing(),
    Lateness(),
    Interference(),
)


@dataclass(frozen=True)
class Scenario:
    """What differs from the base; None keeps the base's.

    `batch_size` is per device and step, which `accumulate` cuts into micro-batches; without it every micro-batch is as large as
    the base's. `bucket_mb` in MiB, or "default". `faster` divides the time of every kernel. `on_time` is a rank that is no
    longer late. `jitter` is the standard deviation of a rank's lateness as a share of the step. The last six remove one part of
    the step each: bytes or latency of collectives, all time of the all-reduces of gradients, other collectives of these kinds,
    lateness, the host's own time.
    """

    devices: int | None = None
    per_node: int | None = None
    batch_size: int | None = None
    bucket_mb: float | str | None = None
    overlap: bool | None = None
    hook: str | None = None
    accumulate: int | None = None
    faster: float = 1.0
    links: Links = AS_MEASURED
    on_time: int | None = None
    jitter: float | None = None
    transfer_factor: float = 1.0
    latency_factor: float = 1.0
    buckets_factor: float = 1.0
    free_kinds: frozenset[str] = frozenset()
    lateness_factor: float = 1.0
    host_factor: float = 1.0


@dataclass(frozen=True)
class Base:
    """A measured cell, or a foreign trace: its replayed steps and what was measured of it.

    `step_us` is the untraced step where known, `ledger` where it goes, `spread` half a 90% band of it in logarithms, by its
    repeats. `single_us` is t_1 by batch per device. `method_error` is half a 90% band of the method on this run's other cells,
    None if there is none. `profiles` are the typical ones of `every`.
    """

    __repr__ = short_repr

    name: str
    profiles: tuple[StepProfile, ...]
    devices: int
    per_node: int
    step_us: float
    spread: float
    largest: int  # the largest device count that was measured
    ledger: Ledger | None
    batch_size: int | None = None
    single_us: Mapping[int, float] = field(default_factory=dict)
    bucketing: Bucketing = USUAL_BUCKETS
    hook: str = "none"
    accumulate: int = 1
    kinds: frozenset[str] = frozenset()
    lateness: Lateness = UNKNOWN_LATENESS
    method_error: float | None = None
    interference: Interference = NO_INTERFERENCE
    # by what the trace's times are scaled, so that the replay is as long as the untraced step
    traced: Compute = AS_IT_WAS
    lacks: tuple[str, ...] = ()
    host_cores: int | None = None  # of a host whose processes compute on its cores; None where devices compute
    every: tuple[StepProfile, ...] = ()
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """The result of `make`, computed once for each key: many scenarios share it.

        A profile is named by its id in a key: the base holds its profiles, so that no other has the same one.
        """
        if key not in self._kept:
            self._kept[key] = make()
        result: _Result = self._kept[key]
        return result

    def prepared(self, profile: StepProfile, compute: Compute) -> Prepared:
        """One of the profiles under a compute scale."""
        return self.once((id(profile), compute), lambda: Prepared(profile, compute))

    def replayed(self, profile: StepProfile, gamma: float | None = None) -> Replayed:
        """One of the profiles replayed as it was measured, untraced; under another `gamma` where it is given."""
        by = self.interference.gamma if gamma is None else gamma

        def as_measured() -> Replayed:  # contention cancels
            alike = replace(measured_conditions(profile), gamma=by, slowdown=self.interference.slowdown)
            return replay(self.prepared(profile, self.traced), alike)

        return self.once((id(profile), by), as_measured)

    @property
    def place(self) -> Place:
        return Place(self.devices, self.per_node)
