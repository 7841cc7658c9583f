"""What a collective should cost by a model: pure functions, bytes and GB/s (1e9 B/s) in, microseconds out."""


def ring_all_reduce_us(size_bytes: float, ranks: int, bandwidth_gbps: float, latency_us: float = 0.0) -> float:
    """Ring all-reduce: 2(N-1) alpha + 2(N-1)/N x S/B.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; nccl-tests,
    doc/PERFORMANCE.md. Assumes that every rank sends and receives at B at once and that nothing else uses the links; it
    is a lower bound for B the link's specification, and no model of DataParallel, which runs no all-reduce.

    >>> ring_all_reduce_us(1e9, ranks=2, bandwidth_gbps=10)  # 1 GB over 10 GB/s, factor 2(2-1)/2 = 1: 0.1 s
    100000.0
    """
    return 2 * (ranks - 1) * latency_us + 2 * (ranks - 1) / ranks * size_bytes / bandwidth_gbps / 1e3


def dp_transfer_us(
    parameter_bytes: float, buffer_bytes: float, devices: int, bandwidth_gbps: float, peer_copies: bool
) -> float:
    """Time nn.DataParallel moves parameters, buffers and gradients in one step, latency left out.

    By NCCL: broadcast (S + S_buffers)/B and reduce S/B. By peer copies device 0 serves the others one after another:
    (N-1)(S + S_buffers)/B and (N-1)S/B. Source: torch/nn/parallel/replicate.py and comm.py. None of it overlaps compute.
    """
    serial = devices - 1 if peer_copies else 1
    return serial * (2 * parameter_bytes + buffer_bytes) / bandwidth_gbps / 1e3
