"""The collectives of the traces of `ddp`: their bytes, waits and rates, worked out by hand from `ddp_schedule`."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.generated_traces import ddp_schedule as schedule
from tests.generated_traces.ddp_schedule import Collective, DdpOptions, Role
from tests.generated_traces.model import ExpectedCollective

EVEN_WAITS_US = (0, 3, 1, 2)  # of the last bucket, by rank
WAITING_US = {"bucket0": 500, "bucket1": 40, "bucket2": 0}


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


def expected_collectives(
    rank: int, world_size: int, options: DdpOptions, steps: Sequence[int], first_sequence: dict[str, int]
) -> tuple[ExpectedCollective, ...]:
    """The rows of one rank; sequence numbers count on over the steps, in each group."""
    origins = schedule.ORIGINS_US if options.straggler is None else schedule.LATE_ORIGINS_US
    sequence = dict(first_sequence)
    rows = []
    for index, step in enumerate(steps):
        for collective in requested(options):
            number = sequence[collective.group]
            sequence[collective.group] += 1
            rows.append(_row(rank, world_size, options, collective, step, origins[index], number))
    return tuple(rows)


def requested(options: DdpOptions) -> list[Collective]:
    """The collectives of one step, in the order of their calls."""
    left_out = [] if options.buffers else ["buffers", "counters"]
    left_out += [] if options.extra_groups else ["gather", "exchange", "scatter"]
    return [collective for collective in schedule.COLLECTIVES if collective.key not in left_out]


def _row(
    rank: int, world_size: int, options: DdpOptions, collective: Collective, step: int, origin: float, number: int
) -> ExpectedCollective:
    facts, role = FACTS[collective.key], options.role(rank)
    has_group = options.metadata not in ("ops", "none")
    has_size = options.metadata != "none"
    has_group_size = has_group or not options.extra_groups  # the only group is in distributedInfo
    group_size = world_size if collective.group == "world" else 2
    group = "0" if collective.group == "world" else str(1 + rank // 2)
    start, duration = schedule.TIMES[role][collective.key]
    wait = _wait(collective.key, role, rank)
    early = wait if role == "even" and wait else 0
    busbw = facts.busbw_gb_per_s[0 if world_size == 2 else 1] if facts.busbw_gb_per_s else None
    return ExpectedCollective(
        rank,
        rank + 2 if options.kernel_names == "rccl" else rank,
        step,
        collective.kind,
        group=group if has_group else None,
        sequence=number if has_group and options.metadata != "no_sequence" else None,
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


def _wait(key: str, role: Role, rank: int) -> float | None:
    if FACTS[key].transfer_us is None:
        return None
    if role == "waiting":
        return WAITING_US.get(key, 0)
    return EVEN_WAITS_US[rank] if (role, key) == ("even", "bucket2") else 0
