"""What a right analysis finds in the traces of `ddp`: literals, worked out by hand from `ddp_schedule`.

Plain trace, rank 0, first step, as an example of the working (microseconds): compute = 194 + 100 + 8 + 100 + 100 + 60
+ 20 + 60 = 642; communication = 12 + 6 (broadcasts) + 60 + 96 + 40 (buckets) = 214; hidden = 60 (bucket 0 in the
second backward kernel) + 56 + 20 (bucket 1 in the third and fourth) = 136; exposed = 18 + 20 + 40 = 78; the window
runs from 6 to 810, so idle = 804 - 642 - 78 = 84; host copies in it = 30 + 2 + 6 = 38 (the memset runs under bucket 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.generated_traces import ddp_schedule as schedule
from tests.generated_traces.builder import ZERO_US
from tests.generated_traces.ddp_schedule import Collective, DdpOptions, Role
from tests.generated_traces.model import Expected, ExpectedCollective, ExpectedStep

GRADIENT_BYTES = 19520000
BUFFER_BYTES = 38560
Triple = tuple[float, float, float]

COMPUTE_US: Triple = (642, 648, 654)
STEP_US: dict[Role, Triple] = {
    "even": (804, 840, 846),
    "late": (1304, 1340, 1346),
    "waiting": (1304, 1340, 1346),
}
WINDOWS_US: dict[Role, tuple[tuple[float, float], ...]] = {
    "even": ((6.0, 810.0), (810.0, 1650.0), (1650.0, 2496.0)),
    "late": ((6.0, 1310.0), (1310.0, 2650.0), (2650.0, 3996.0)),
    "waiting": ((6.0, 1310.0), (1310.0, 2650.0), (2650.0, 3996.0)),
}
# Communication, hidden, exposed. An even rank adds its early start of the last bucket to the first and the third.
COMMUNICATION_US: dict[Role, Triple] = {
    "even": (214, 136, 78),
    "late": (214, 136, 78),
    "waiting": (754, 178, 576),
}
IDLE_US: dict[Role, Triple] = {"even": (84, 114, 114), "late": (584, 614, 614), "waiting": (86, 116, 116)}
EVEN_WAITS_US = (0, 3, 1, 2)  # of the last bucket, by rank
WAITING_US = {"bucket0": 500, "bucket1": 40, "bucket2": 0}

BUFFERS_US = 18  # exposed
EXTRA_GROUPS_US = 30  # all-gather 20 and all-to-all 10, hidden; the reduce-scatter runs under bucket 0
HOST_COPY_US: Triple = (32, 32, 32)  # inputs 30, targets 2
DEVICE_COPY_US: Triple = (6, 6, 6)  # of the last bucket: 736 to 742
# With lag: own inputs 30 (first step only), targets 2, and of the next step's inputs 738 to 750, before the optimizer runs;
# of the last bucket's copy the 2 before that. The last step has no next.
LAG_HOST_COPY_US: Triple = (44, 14, 2)
LAG_DEVICE_COPY_US: Triple = (2, 2, 6)
MEMSET_US = 4  # in the idle time only where no bucket runs over it
CLIPPED_US: Triple = (0, 30, 30)  # with lag: the inputs copied during the step before

# Without communication, idle is what the kernels that are left show.
IDLE_WITHOUT_COMMUNICATION_US: dict[Role, Triple] = {
    "even": (162, 192, 192),
    "late": (662, 692, 692),
    "waiting": (662, 692, 692),
}

OPTIMIZER_US: Triple = (60, 66, 72)
HOST_TO_DEVICE_US = 32.0
FORWARD_US = 302.0
BACKWARD_US = 290.0  # 280, memset 4, copy 6


@dataclass(frozen=True)
class _Facts:
    """A collective: its bytes, and if it synchronises its transfer, algbw, and busbw in jobs of 2 and 4 ranks."""

    bytes: int
    transfer_us: float | None = None
    algbw_gb_per_s: float | None = None
    busbw_gb_per_s: tuple[float, float] | None = None


FACTS = {
    "buffers": _Facts(38400),
    "counters": _Facts(160),
    "gather": _Facts(200000, 20, 10, (5, 5)),
    "exchange": _Facts(40000, 10, 4, (2, 3)),
    "bucket0": _Facts(6000000, 60, 100, (100, 150)),
    "scatter": _Facts(400000, 16, 25, (12.5, 12.5)),
    "bucket1": _Facts(11520000, 96, 120, (120, 180)),
    "bucket2": _Facts(2000000, 40, 50, (50, 75)),
}
_DTYPES = {"Float": "float32", "Long": "int64"}


def ddp_expected(
    rank: int, world_size: int, options: DdpOptions, steps: Sequence[int], first_sequence: dict[str, int]
) -> Expected:
    """The expectations of one variant, looked up."""
    role: Role = "even"
    if options.straggler is not None:
        role = "late" if options.straggler == rank else "waiting"
    device = rank + 2 if options.kernel_names == "rccl" else rank
    table: dict[tuple[int | None, int], ExpectedStep] = {}
    for index, step in enumerate(steps):
        table[device, step] = _step(rank, device, index, step, role, options)
    lister = _CollectiveList(rank, world_size, device, role, options, dict(first_sequence))
    unlaunched = (2, 80.0) if options.communication else (1, 60.0)
    return Expected(
        ZERO_US,
        table,
        collectives=tuple(lister.all(steps)) if options.communication else (),
        unlaunched_count=unlaunched[0] if options.unlaunched else 0,
        unlaunched_us=unlaunched[1] if options.unlaunched else 0.0,
        complete=options.communication,
        gradient_bytes=GRADIENT_BYTES,
        buffer_bytes=BUFFER_BYTES if options.buffers else 0,
    )


def _step(rank: int, device: int, index: int, step: int, role: Role, options: DdpOptions) -> ExpectedStep:
    early = EVEN_WAITS_US[rank] if role == "even" else 0
    buffers = 0 if options.buffers else BUFFERS_US
    extra = EXTRA_GROUPS_US if options.extra_groups else 0
    total, hidden, exposed = COMMUNICATION_US[role]
    host_copy = (LAG_HOST_COPY_US if options.lag else HOST_COPY_US)[index]
    device_copy = (LAG_DEVICE_COPY_US if options.lag else DEVICE_COPY_US)[index]
    clipped = CLIPPED_US[index] if options.lag else 0
    ranges = {"forward": FORWARD_US, "backward": BACKWARD_US, "optimizer": OPTIMIZER_US[index]}
    if not clipped:
        ranges["host_to_device"] = HOST_TO_DEVICE_US
    is_whole = options.communication
    idle = IDLE_US[role][index] - early + buffers
    return ExpectedStep(
        device,
        step,
        window_us=WINDOWS_US[role][index],
        step_us=STEP_US[role][index],
        compute_us=COMPUTE_US[index],
        communication_us=total + early - buffers + extra if is_whole else None,
        hidden_us=hidden + extra if is_whole else None,
        exposed_us=exposed + early - buffers if is_whole else None,
        host_copy_us=host_copy,
        device_copy_us=device_copy if is_whole else device_copy + MEMSET_US,
        idle_us=idle if is_whole else IDLE_WITHOUT_COMMUNICATION_US[role][index],
        clipped_us=clipped,
        partial_window=index == 0,
        collective_count=len(requested(options)) if is_whole else 0,
        range_us=ranges if options.named_ranges else {},
    )


def requested(options: DdpOptions) -> list[Collective]:
    """The collectives of one step, in the order of their calls."""
    left_out = [] if options.buffers else ["buffers", "counters"]
    left_out += [] if options.extra_groups else ["gather", "exchange", "scatter"]
    return [collective for collective in schedule.COLLECTIVES if collective.key not in left_out]


@dataclass
class _CollectiveList:
    """The expected rows of one rank; sequence numbers count on over the steps, in each group."""

    rank: int
    world_size: int
    device: int
    role: Role
    options: DdpOptions
    sequence: dict[str, int]

    def all(self, steps: Sequence[int]) -> list[ExpectedCollective]:
        is_late = self.options.straggler is not None
        origins = schedule.LATE_ORIGINS_US if is_late else schedule.ORIGINS_US
        return [
            self._row(collective, step, origins[index])
            for index, step in enumerate(steps)
            for collective in requested(self.options)
        ]

    def _row(self, collective: Collective, step: int, origin: float) -> ExpectedCollective:
        metadata = self.options.metadata
        facts = FACTS[collective.key]
        has_group = metadata not in ("ops", "none")
        has_size = metadata != "none"
        has_group_size = has_group or not self.options.extra_groups  # the only group is in distributedInfo
        sequence = self.sequence[collective.group]
        self.sequence[collective.group] += 1
        group_size = self.world_size if collective.group == "world" else 2
        group = "0" if collective.group == "world" else str(1 + self.rank // 2)
        start, duration = schedule.TIMES[self.role][collective.key]
        wait = self._wait(collective.key)
        early = wait if self.role == "even" and wait else 0
        busbw = facts.busbw_gb_per_s[0 if self.world_size == 2 else 1] if facts.busbw_gb_per_s else None
        return ExpectedCollective(
            self.rank,
            self.device,
            step,
            collective.kind,
            group=group if has_group else None,
            sequence=sequence if has_group and metadata != "no_sequence" else None,
            bytes=facts.bytes if has_size else None,
            dtype=_DTYPES[collective.dtype] if has_size else None,
            group_size=group_size if has_group_size else None,
            start_us=origin + start - early,
            duration_us=duration + early,
            transfer_us=facts.transfer_us,
            wait_us=wait,
            algbw_gb_per_s=facts.algbw_gb_per_s if has_size else None,
            busbw_gb_per_s=busbw if has_size and has_group_size else None,
        )

    def _wait(self, key: str) -> float | None:
        if FACTS[key].transfer_us is None:
            return None
        if self.role == "waiting":
            return WAITING_US.get(key, 0)
        return EVEN_WAITS_US[self.rank] if (self.role, key) == ("even", "bucket2") else 0
