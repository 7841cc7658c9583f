"""A scenario and the base from which it is predicted: plain data, no torch. Microseconds, bytes."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.what_if.replay.buckets import Bucketing
from dpscope.analysis.what_if.replay.replay import AS_IT_WAS, Compute, Prepared, Replayed, measured_conditions, replay
from dpscope.analysis.what_if.replay.step_profile import SHARES_THE_LINK, StepProfile
from dpscope.analysis.what_if.scenarios.collective_costs import Links
from dpscope.analysis.what_if.scenarios.lateness import Lateness
from dpscope.profiling.machine.gpu_speed import GpuSpeed

_Result = TypeVar("_Result")
DEFAULT_BUCKET = "default"
AS_MEASURED, USUAL_BUCKETS, UNKNOWN_LATENESS = Links(), Bucketing(), Lateness()


@dataclass(frozen=True)
class Scenario:
    """What differs from the base; None keeps the base's.

    `batch_size` is per device and step, which `accumulate` cuts into micro-batches; without it every micro-batch is as large as
    the base's. `bucket_mb` in MiB, or "default". `faster` divides the time of every kernel. `jitter` is the standard deviation of
    a rank's lateness as a share of the step. The last six remove one part of the step each: bytes or latency of collectives, all
    time of the all-reduces of gradients, other collectives of these kinds, lateness, the host's own time.
    """

    devices: int | None = None
    per_node: int | None = None
    batch_size: int | None = None
    bucket_mb: float | str | None = None
    overlap: bool | None = None
    hook: str | None = None
    accumulate: int | None = None
    strategy: str | None = None  # ddp, dp
    faster: float = 1.0
    gpu: GpuSpeed | None = None  # on which it computes in the base's place
    links: Links = AS_MEASURED
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
    None if there is none.
    """

    name: str
    profiles: tuple[StepProfile, ...]
    devices: int
    per_node: int
    step_us: float
    spread: float
    ledger: Ledger | None
    batch_size: int | None = None
    single_us: Mapping[int, float] = field(default_factory=dict)
    bucketing: Bucketing = USUAL_BUCKETS
    hook: str = "none"
    accumulate: int = 1
    kinds: frozenset[str] = frozenset()
    lateness: Lateness = UNKNOWN_LATENESS
    largest: int = 0  # the largest device count that was measured; 0: this one's
    method_error: float | None = None
    parameter_bytes: tuple[int, ...] = ()
    buffer_bytes: int = 0
    gamma: float = 0.0  # what computing loses per time that a collective runs next to it
    gamma_band: tuple[float, float] = (0.0, 0.0)  # what it may be
    contention: str = ""  # what gamma rests on; empty where it is assumed
    # by what the trace's times are scaled, so that the replay is as long as the untraced step
    traced: Compute = AS_IT_WAS
    slowdown: float = SHARES_THE_LINK  # how many times as long each of two collectives in flight takes
    slowdown_band: tuple[float, float] = (SHARES_THE_LINK, SHARES_THE_LINK)  # what it may be
    slowdown_measured: bool = False  # of whole calls; else assumed, of their bytes
    lacks: tuple[str, ...] = ()
    device_name: str | None = None  # of the GPU that computed; None where the traces name none
    host_cores: int | None = None  # of a host whose processes compute on its cores; None where devices compute
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
        """One of the profiles replayed as it was measured; under another `gamma` where it is given."""
        by = self.gamma if gamma is None else gamma

        def as_measured() -> Replayed:
            alike = replace(measured_conditions(profile), gamma=by, slowdown=self.slowdown)  # contention cancels
            return replay(self.prepared(profile, self.traced), alike)

        return self.once((id(profile), by), as_measured)

    @property
    def largest_count(self) -> int:
        return max(self.largest, self.devices)
