"""What communication should cost by a model: pure functions, bytes and GB/s (1e9 B/s) in, microseconds out.

Three bandwidths are never mixed: that of the link's specification, that which a calibration measured, that which a trace
implies. A fair prediction takes a calibration made before the run, and from the run the sizes alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpscope.analysis.costs.bus_bandwidth import bus_factor

CollectiveCost = Callable[[str, int, float], float | None]
"""(kind, ranks, bytes) -> microseconds, None where it does not know that kind at that number of ranks.

Kinds are those of the `collectives` table: all_reduce, broadcast, reduce, reduce_scatter, all_gather.
"""


def ring_all_reduce_us(size_bytes: float, ranks: int, bandwidth_gb_per_s: float, latency_us: float = 0.0) -> float:
    """Ring all-reduce: 2(N-1) alpha + 2(N-1)/N x S/B.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; nccl-tests,
    doc/PERFORMANCE.md. Assumes that every rank sends and receives at B at once and that nothing else uses the links; it
    is a lower bound for B the link's specification, and no model of DataParallel, which runs no all-reduce.

    >>> ring_all_reduce_us(1e9, ranks=2, bandwidth_gb_per_s=10)  # 1 GB over 10 GB/s, factor 2(2-1)/2 = 1: 0.1 s
    100000.0
    """
    return 2 * (ranks - 1) * latency_us + 2 * (ranks - 1) / ranks * size_bytes / bandwidth_gb_per_s / 1e3


def ring_us(
    kind: str, size_bytes: float, ranks: int, bandwidth_gb_per_s: float, latency_us: float = 0.0
) -> float | None:
    """A collective on a ring: its number of hops x alpha + bus factor x S/B; None for a kind without such a model.

    Hops: 2(N-1) for all-reduce, N-1 for the others (a pipelined broadcast or reduce fills in N-1 hops). Bus factors:
    nccl-tests, doc/PERFORMANCE.md; `size_bytes` is the larger of a rank's buffers. Assumptions as of `ring_all_reduce_us`.
    """
    factor = bus_factor(kind, ranks)
    if factor is None:
        return None
    hops = (2 if kind == "all_reduce" else 1) * (ranks - 1)
    return hops * latency_us + factor * size_bytes / bandwidth_gb_per_s / 1e3


def dp_transfer_us(
    parameter_bytes: float, buffer_bytes: float, devices: int, bandwidth_gb_per_s: float, peer_copies: bool
) -> float:
    """Time nn.DataParallel moves parameters, buffers and gradients in one step, latency left out.

    By NCCL: broadcast (S + S_buffers)/B and reduce S/B. By peer copies device 0 serves the others one after another:
    (N-1)(S + S_buffers)/B and (N-1)S/B. Source: torch/nn/parallel/replicate.py and comm.py. None of it overlaps compute.
    Inputs and outputs, scattered and gathered by plain copies, are left out.
    """
    serial = devices - 1 if peer_copies else 1
    return serial * (2 * parameter_bytes + buffer_bytes) / bandwidth_gb_per_s / 1e3


def dp_nccl_us(sent: Sequence[float], reduced: Sequence[float], devices: int, cost: CollectiveCost) -> float | None:
    """nn.DataParallel by NCCL: a broadcast per chunk of parameters and buffers, a reduce per chunk of gradients.

    `sent` and `reduced` are chunks in bytes (`dp_chunks`). None where `cost` does not know broadcast or reduce. Source and
    assumptions: `dp_transfer_us`, with alpha per chunk.
    """
    costs = [cost("broadcast", devices, size) for size in sent] + [cost("reduce", devices, size) for size in reduced]
    known = [one for one in costs if one is not None]
    return sum(known) if len(known) == len(costs) else None


def dp_peer_copies_us(
    sent: Sequence[float], reduced: Sequence[float], devices: int, bandwidth_gb_per_s: float, latency_us: float = 0.0
) -> float:
    """nn.DataParallel by copies: device 0 sends each chunk to each of N-1 devices in turn and receives their gradients so.

    Source and assumptions: `dp_transfer_us`, with `latency_us` per chunk and device; one copy at a time through device 0.
    """
    chunks = [*sent, *reduced]
    return (devices - 1) * sum(latency_us + size / bandwidth_gb_per_s / 1e3 for size in chunks)


_DONE_US = 1e-6  # with less left a transfer has ended, whatever rounding says


@dataclass(frozen=True)
class BucketSchedule:
    """When each bucket's all-reduce runs, and what backward does not hide; microseconds on the clock of the ready times."""

    start_us: tuple[float, ...]
    end_us: tuple[float, ...]
    exposed_us: float


def ddp_schedule(
    ready_us: Sequence[float], cost_us: Sequence[float], servers: int = 1, slowdown: float = 2.0
) -> BucketSchedule:
    """DDP's all-reduces: each starts when its gradients are ready and one of `servers` is free, in order of readiness.

    NCCL has one server, its stream. gloo has two, the workers of its process group, which share the link: `slowdown` is how
    much longer each of two in flight takes than alone (2 shares every byte; latencies that hide each other give less), and each
    further one adds as much. Exposed is what lies after the last bucket is ready: that bucket holds the gradients which backward
    computes last, so backward ends then, and until then the device computes; of all-reduces at once it is their union. Source:
    Li et al., "PyTorch Distributed: experiences on accelerating data parallel training", VLDB 2020, section 3.2. Assumes costs
    as without overlap (no contention with computing), and that no rank waits for another. Buckets in order of readiness.

    >>> ddp_schedule([0.0, 10.0, 20.0], [15.0, 15.0, 5.0]).end_us  # 0-15, 15-30, 30-35; backward ends at 20
    (15.0, 30.0, 35.0)
    >>> ddp_schedule([0.0, 10.0], [20.0, 20.0], servers=2).end_us  # alone to 10, both at half speed to 30, alone to 40
    (30.0, 40.0)
    """
    count = len(ready_us)
    starts, ends = [0.0] * count, [0.0] * count
    left = list(cost_us)
    running: list[int] = []
    now, waiting = 0.0, list(range(count))
    while running or waiting:
        if not running:
            now = max(now, ready_us[waiting[0]])
        while waiting and len(running) < servers and ready_us[waiting[0]] <= now:
            starts[waiting[0]] = now
            running.append(waiting.pop(0))
        stretch = 1 + (slowdown - 1) * (len(running) - 1)
        until = now + stretch * min(left[index] for index in running)
        if waiting and len(running) < servers:
            until = min(until, ready_us[waiting[0]])
        for index in running:
            left[index] -= (until - now) / stretch
        now = until
        ended = [index for index in running if left[index] <= _DONE_US]
        for index in ended:
            ends[index] = now
        running = [index for index in running if index not in ended]
    exposed, covered = 0.0, max(ready_us, default=0.0)
    for start, end in sorted(zip(starts, ends, strict=True)):
        exposed += max(0.0, end - max(start, covered))
        covered = max(covered, end)
    return BucketSchedule(tuple(starts), tuple(ends), exposed)
