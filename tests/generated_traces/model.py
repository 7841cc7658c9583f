"""What a generated trace comes with: the trace, and what a right analysis of it must find.

Times are microseconds. `window_us` and `start_us` count from `Expected.zero_us`, the trace's own
time stamp of 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Trace = dict[str, Any]
DP_BROADCAST_BYTES = (12582912, 3145728, 38400, 160)  # by chunk of DataParallel
DP_REDUCE_BYTES = (6291456, 9437184)


@dataclass(frozen=True)
class ExpectedPhase:
    """Device time of one phase on one device in one step: the union of the whole events launched in
    it.

    `copied_bytes` is the sum over the copies recorded on this device (a peer copy is recorded on
    its source, and occupies its target too); `collective_bytes` is what the collective kernels
    moved, which no field of a DataParallel trace states.
    """

    time_us: float
    copied_bytes: int = 0
    collective_count: int = 0
    collective_bytes: int = 0


@dataclass(frozen=True)
class ExpectedStep:
    """One (device, step). `step` is the number in `ProfilerStep#`; `device` is None in a CPU trace.

    None: a right analysis must not state this number (communication that left no kernel, host
    copies on a CPU). `clipped_us`: time of the step's own events that lies outside its window.
    `collective_count`: collective kernels launched in the step, on a CPU `gloo:*` ranges begun in
    it; no peer copies. `phases`: the phases of a DataParallel step, empty otherwise. `range_us`: by
    range (host_to_device, forward, backward, optimizer), the union of the whole events launched in
    it that are not communication; copies and memsets belong to it. A range with clipped events is
    left out, and there are none in a trace without named ranges.
    """

    device: int | None
    step: int
    window_us: tuple[float, float]
    step_us: float
    compute_us: float
    communication_us: float | None
    hidden_us: float | None
    exposed_us: float | None
    host_copy_us: float | None
    device_copy_us: float | None
    idle_us: float | None
    clipped_us: float = 0.0
    partial_window: bool = False
    collective_count: int = 0
    phases: Mapping[str, ExpectedPhase] = field(default_factory=dict)
    range_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ExpectedCollective:
    """One collective of one rank in one step; those of no step are only counted, in `Expected`.

    None: not in the trace, or not defined (a broadcast has no transfer and no wait). `transfer_us`,
    `wait_us` and the rates need the traces of all ranks of the group.
    """

    rank: int
    device: int | None
    step: int
    kind: str
    group: str | None
    sequence: int | None
    bytes: int | None
    group_size: int | None
    start_us: float
    duration_us: float
    transfer_us: float | None
    wait_us: float | None
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None


@dataclass(frozen=True)
class Expected:
    """`unlaunched_*`: device events whose launch is not in the trace; they belong to no step.

    `gradient_bytes`: gradients of one step, what its all-reduces (DP: its reduces) must add up to;
    `parameter_bytes` and `buffer_bytes`: what DP broadcasts, `buffer_bytes` also what DDP
    broadcasts.
    """

    zero_us: float
    steps: Mapping[tuple[int | None, int], ExpectedStep]
    collectives: tuple[ExpectedCollective, ...] = ()
    unlaunched_count: int = 0
    unlaunched_us: float = 0.0
    gradient_bytes: int = 0
    parameter_bytes: int = 0
    buffer_bytes: int = 0


@dataclass(frozen=True)
class GeneratedTrace:
    """A trace as `json.load` would give it, and what must be found in it."""

    trace: Trace
    expected: Expected
