"""What differs from a measured step, the base that it is predicted from, and a prediction: plain
data. Microseconds, bytes.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple, TypeVar, get_args

from dpscope.analysis.costs.cost import Links, Place
from dpscope.analysis.what_if.lateness import Lateness
from dpscope.analysis.what_if.replay import AS_IT_WAS, Prepared, Replay, Scale, measured_conditions
from dpscope.analysis.what_if.step_profile import Bucketing, StepProfile
from dpscope.profiling.records.matrix import CommHook
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.records.typed_text import choose_from
from dpscope.profiling.store.errors import DpscopeError

_Result = TypeVar("_Result")
DEFAULT_BUCKET = "default"
BAND = 0.9  # share of the truths that lie inside a band

AS_MEASURED, USUAL_BUCKETS, UNKNOWN_LATENESS = Links(), Bucketing(), Lateness()


@dataclass(frozen=True)
class Scenario:
    """What differs from the base; None keeps the base's.

    `devices` on nodes of `per_node` each. `batch_size` is per device and step, which `accumulate`
    cuts into micro-batches; without it every micro-batch is as large as the base's. `bucket_mb` in
    MiB, or "default". `overlap` is False where gradients travel after the backward pass. `hook` is
    how they travel: "none", "fp16" or "bf16". `links` are other links. `on_time` is a rank that is
    no longer late.
    """

    devices: int | None = None
    per_node: int | None = None
    batch_size: int | None = None
    bucket_mb: float | str | None = None
    overlap: bool | None = None
    hook: str | None = None
    accumulate: int | None = None
    links: Links = AS_MEASURED
    on_time: int | None = None

    def __post_init__(self) -> None:
        for name in ("devices", "per_node", "batch_size", "accumulate"):
            value: int | None = getattr(self, name)
            if value is not None and value < 1:
                raise DpscopeError(f"Scenario: {name} {value} is less than 1")
        hooks = get_args(CommHook)
        if self.hook is not None and self.hook not in hooks:
            raise DpscopeError(f"Scenario: hook {self.hook}: {choose_from(self.hook, hooks)}")


class Contention(NamedTuple):
    """What computing loses per time next to a collective, the band of it, and its basis in words;
    assumed without one.
    """

    gamma: float = 0.0
    low: float = 0.0
    high: float = 0.3  # fits of public jobs gave 0.05 to 0.6 (Pollux, OSDI 2021)
    basis: str = ""


UNKNOWN_CONTENTION = Contention()


@dataclass(frozen=True)
class Base:
    """A measured cell, or a foreign trace: its replayed steps and what was measured of it.

    `step_us` is the untraced step where known, `exposed_us` its exposed communication, `spread` half a 90% band of
    it in logarithms, by its repeats. `single_us` is t_1 by batch per device, and `single_spread` its
    spread. `method_error` is half a 90% band of the method on this run's other cells, None if there
    is none. `profiles` are the typical ones of `every`. `slowed` is how many times as long tracing
    made a step, where its parts are not reliable for that.
    """

    __repr__ = short_repr

    name: str
    profiles: tuple[StepProfile, ...]
    devices: int
    per_node: int
    step_us: float
    spread: float
    largest: int  # the largest device count that was measured
    exposed_us: float | None
    batch_size: int | None = None
    single_us: Mapping[int, float] = field(default_factory=dict)
    bucketing: Bucketing = USUAL_BUCKETS
    hook: str = "none"
    accumulate: int = 1
    kinds: frozenset[str] = frozenset()
    lateness: Lateness = UNKNOWN_LATENESS
    # exposed waiting for each late rank, in the mean of all ranks
    wait_by_rank_us: Mapping[int, float] = field(default_factory=dict)
    single_spread: Mapping[int, float] = field(default_factory=dict)
    method_error: float | None = None
    contention: Contention = UNKNOWN_CONTENTION
    # by what the trace's times are scaled, so that the replay is as long as the untraced step
    traced: Scale = AS_IT_WAS
    slowed: float | None = None
    lacks: tuple[str, ...] = ()
    # of a host whose processes compute on its cores; None where devices compute
    host_cores: int | None = None
    every: tuple[StepProfile, ...] = ()
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """The result of `make`, computed once for each key: many scenarios share it.

        A profile is named by its id in a key: the base holds its profiles, so that no other has the
        same one.
        """
        if key not in self._kept:
            self._kept[key] = make()
        result: _Result = self._kept[key]
        return result

    def prepared(self, profile: StepProfile, scale: Scale) -> Prepared:
        """One of the profiles under a scale."""
        return self.once((id(profile), scale), lambda: Prepared(profile, scale))

    def replayed(self, profile: StepProfile, gamma: float) -> Replay:
        """One of the profiles replayed as it was measured, untraced; its contention cancels that of
        a scenario.
        """

        def replayed() -> Replay:
            return Replay(self.prepared(profile, self.traced), measured_conditions(profile, gamma))

        return self.once((id(profile), gamma), replayed)

    @cached_property
    def left_us(self) -> float | None:
        """Exposed communication, no longer than what computing leaves of the untraced step."""
        if self.exposed_us is None or self.slowed is not None:
            return None
        computing = [self.prepared(profile, self.traced).busy_us for profile in self.profiles]
        return min(self.exposed_us, max(0.0, self.step_us - fmean(computing)))

    @cached_property
    def place(self) -> Place:
        return Place(self.devices, self.per_node)

    @cached_property
    def setting(self) -> "Setting":
        """As it was measured."""
        batch = None if self.batch_size is None else self.batch_size // self.accumulate
        return Setting(
            self.place, batch, self.bucketing, self.hook, self.accumulate, AS_MEASURED, None
        )


class Setting(NamedTuple):
    """What a step is replayed under: a scenario, with the base's value of whatever it does not
    state.
    """

    place: Place
    micro_batch: int | None  # samples of a forward pass per device
    bucketing: Bucketing
    hook: str
    accumulate: int
    links: Links
    on_time: int | None

    @property
    def batch_size(self) -> int | None:
        """Samples of one optimizer step per device."""
        return None if self.micro_batch is None else self.micro_batch * self.accumulate


@dataclass(frozen=True)
class Prediction:
    """One configuration. Microseconds; `low_us` to `high_us` is the 90% band; None is unknown, and
    `reason` is the reason.

    `efficiency` is t_1 / t_N at equal batch per device; `limit` is what makes the step too short, or hides
    what changes.
    """

    __repr__ = short_repr

    devices: int
    nodes: int
    batch_size: int | None
    step_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    # the step less the base's, whose own repeats it shares
    change_us: float | None = None
    change_low_us: float | None = None
    change_high_us: float | None = None
    exposed_us: float | None = None
    efficiency: float | None = None
    rests_on: tuple[str, ...] = ()
    limit: str | None = None
    reason: str | None = None
