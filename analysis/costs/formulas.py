"""Models of communication cost: pure functions, bytes and GB/s (1e9 B/s) in, microseconds out.

Three bandwidths are never mixed: the link's specification, a calibration's measurement, and what a
trace implies. A fair prediction uses a calibration made before the run, and only sizes from the
run.
"""


def moved_as(kind: str, backend: str | None) -> str:
    """The collective that moves the data: gloo implements reduce-scatter as an all-reduce.

    Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, `_reduce_scatter_base`.
    """
    return "all_reduce" if kind == "reduce_scatter" and backend == "gloo" else kind


def bus_factor(kind: str | None, group_size: int) -> float | None:
    """busbw / algbw of a collective on N ranks; None for a collective without such a factor, or at
    N = 1.

    Source: nccl-tests, doc/PERFORMANCE.md: 2(N-1)/N for all-reduce, (N-1)/N for all-gather,
    reduce-scatter and all-to-all, 1 for broadcast, reduce and send/recv.
    """
    if group_size < 2:
        return None
    if kind == "all_reduce":
        return 2 * (group_size - 1) / group_size
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (group_size - 1) / group_size
    if kind in ("broadcast", "reduce", "send", "recv", "send_recv"):
        return 1.0
    return None


def ring_all_reduce_us(
    size_bytes: float, ranks: int, bandwidth_gb_per_s: float, latency_us: float = 0.0
) -> float:
    """Ring all-reduce: 2(N-1) alpha + 2(N-1)/N x S/B.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", 2009; nccl-tests, doc/PERFORMANCE.md. Assumes that every rank sends and receives
    at B at the same time and that nothing else uses the links. With the link's specification as B
    it is a lower bound. It does not model DataParallel, which runs no all-reduce.

    >>> ring_all_reduce_us(1e9, ranks=2, bandwidth_gb_per_s=10)  # 1 GB over 10 GB/s, factor 2(2-1)/2 = 1: 0.1 s
    100000.0
    """
    return ring_us("all_reduce", size_bytes, ranks, bandwidth_gb_per_s, latency_us) or 0.0


def ring_us(
    kind: str, size_bytes: float, ranks: int, bandwidth_gb_per_s: float, latency_us: float = 0.0
) -> float | None:
    """A collective on a ring: its number of hops x alpha + bus factor x S/B; None for a kind
    without such a model.

    `size_bytes` is the larger of a rank's buffers. Assumptions as of `ring_all_reduce_us`.
    """
    factor = bus_factor(kind, ranks)
    if factor is None:
        return None
    return ring_hops(kind, ranks) * latency_us + factor * size_bytes / bandwidth_gb_per_s / 1e3


def ring_hops(kind: str, ranks: int) -> int:
    """2(N-1) for all-reduce, N-1 for the others (a pipelined broadcast or reduce fills in N-1
    hops).
    """
    return (2 if kind == "all_reduce" else 1) * (ranks - 1)


def bus_gb_per_s(kind: str, size_bytes: float, ranks: int, time_us: float) -> float | None:
    """Bus bandwidth, 1e9 B/s: the rate at which the ring formula takes this time; None for a kind
    without one, or no time.
    """
    factor = bus_factor(kind, ranks)
    return None if factor is None or time_us <= 0 else factor * size_bytes / time_us / 1e3


def dp_transfer_us(
    parameter_bytes: float,
    buffer_bytes: float,
    devices: int,
    bandwidth_gb_per_s: float,
    peer_copies: bool,
) -> float:
    """Time in which nn.DataParallel moves parameters, buffers and gradients in one step, without
    latency.

    By NCCL: broadcast (S + S_buffers)/B and reduce S/B. By peer copies device 0 serves the others
    one after another: (N-1)(S + S_buffers)/B and (N-1)S/B. Source: torch/nn/parallel/replicate.py
    and comm.py. None of it overlaps compute. The scatter of inputs and the gather of outputs, which
    are plain copies, are not included.
    """
    serial = devices - 1 if peer_copies else 1
    return serial * (2 * parameter_bytes + buffer_bytes) / bandwidth_gb_per_s / 1e3
