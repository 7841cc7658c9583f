"""The schedule of collectives on NCCL's stream, or on gloo's workers, which share the link; pure
functions, microseconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_DONE_US = 1e-6  # a transfer with less left has ended: rounding errors


@dataclass(frozen=True)
class BucketSchedule:
    """Start and end of each bucket's all-reduce on the clock of the ready times, and the exposed
    time; microseconds.
    """

    start_us: tuple[float, ...]
    end_us: tuple[float, ...]
    exposed_us: float


def run_collectives(
    ready_us: Sequence[float],
    latency_us: Sequence[float],
    transfer_us: Sequence[float],
    servers: int = 1,
    slowdown: float = 2.0,
    turn_us: float = 0.0,
) -> tuple[list[float], list[float]]:
    """Start and end of collectives that run in this order, each once it is ready and a server is
    free.

    Each first waits for its latency, which is not shared, then moves its bytes over a link that all
    in flight share: with two in flight each transfer takes `slowdown` times as long as alone (2:
    they share every byte), and each further one adds as much. A single stream needs `turn_us`
    between two collectives.

    >>> run_collectives([0.0, 0.0], [5.0, 5.0], [10.0, 10.0], servers=2)  # latencies in parallel, then half speed each
    ([0.0, 0.0], [25.0, 25.0])
    """
    if servers == 1:
        return _run_in_turn(ready_us, latency_us, transfer_us, turn_us)
    count = len(ready_us)
    starts, ends = [0.0] * count, [0.0] * count
    waits, left = list(latency_us), list(transfer_us)
    running: list[int] = []
    now = -math.inf
    following = 0
    while running or following < count:
        if not running:
            now = max(now, ready_us[following])
        while following < count and len(running) < servers and ready_us[following] <= now:
            starts[following] = now
            running.append(following)
            following += 1
        moving = sum(waits[index] <= _DONE_US for index in running)
        stretch = 1 + (slowdown - 1) * max(0, moving - 1)
        until = now + min(
            waits[index] if waits[index] > _DONE_US else stretch * left[index] for index in running
        )
        if following < count and len(running) < servers:
            until = min(until, max(now, ready_us[following]))
        for index in running:
            if waits[index] > _DONE_US:
                waits[index] -= until - now
            else:
                left[index] -= (until - now) / stretch
        now = until
        done = [index for index in running if max(waits[index], left[index]) <= _DONE_US]
        for index in done:
            ends[index] = now
            running.remove(index)
    return starts, ends


def _run_in_turn(
    ready_us: Sequence[float],
    latency_us: Sequence[float],
    transfer_us: Sequence[float],
    turn_us: float,
) -> tuple[list[float], list[float]]:
    """The same of one server."""
    starts, ends = [], []
    free_us = -math.inf
    for ready, latency, transfer in zip(ready_us, latency_us, transfer_us, strict=True):
        starts.append(max(ready, free_us))
        ends.append(starts[-1] + latency + transfer)
        free_us = ends[-1] + turn_us
    return starts, ends


def ddp_schedule(
    ready_us: Sequence[float],
    cost_us: Sequence[float],
    servers: int = 1,
    slowdown: float = 2.0,
    beside_compute: float = 1.0,
) -> BucketSchedule:
    """DDP's all-reduces: each starts when its gradients are ready and one of `servers` is free, in
    order of readiness.

    NCCL has one server, its stream. gloo has two, the workers of its process group, which share the
    link: `slowdown` is as in `run_collectives`. Exposed is what lies after the last bucket is
    ready: that bucket holds the gradients which backward computes last, so backward ends then, and
    until then the device computes; of all-reduces at once it is their union. Source: Li et al.,
    "PyTorch Distributed: experiences on accelerating data parallel training", VLDB 2020, section
    3.2. `beside_compute` is how many times as long an all-reduce takes while the device computes; 1
    assumes no contention. Assumed: no rank waits for another. Buckets in order of readiness.

    >>> ddp_schedule([0.0, 10.0, 20.0], [15.0, 15.0, 5.0]).end_us  # 0-15, 15-30, 30-35; backward ends at 20
    (15.0, 30.0, 35.0)
    >>> ddp_schedule([0.0, 10.0], [20.0, 20.0], servers=2).end_us  # alone to 10, both at half speed to 30, alone to 40
    (30.0, 40.0)
    >>> ddp_schedule([0.0, 10.0], [6.0, 6.0], beside_compute=2.0).end_us  # 5 of 6 done at 10, when compute ends; 11; 17
    (11.0, 17.0)
    """
    last = max(ready_us, default=0.0)

    def rate(time_us: float) -> float:
        """Of the clock on which all-reduces take as long as alone: it runs slower while the device
        computes.
        """
        return beside_compute if time_us < last else 1.0

    ready = [last + (at_us - last) / rate(at_us) for at_us in ready_us]
    times_us = run_collectives(ready, [0.0] * len(ready), cost_us, servers, slowdown)
    starts, ends = (
        [last + (real_us - last) * rate(real_us) for real_us in times] for times in times_us
    )
    exposed, covered = 0.0, last
    for start, end in sorted(zip(starts, ends, strict=True)):
        exposed += max(0.0, end - max(start, covered))
        covered = max(covered, end)
    return BucketSchedule(tuple(starts), tuple(ends), exposed)
