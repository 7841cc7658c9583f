"""Models of communication cost: pure functions, bytes and GB/s (1e9 B/s) in, microseconds out.

Three bandwidths are never mixed: the link's specification, a calibration's measurement, and what a trace implies. A fair
prediction uses a calibration made before the run, and only sizes from the run.
"""

import math
from collections.abc import Callable, Sequence

CollectiveCost = Callable[[str, int, float], float | None]
"""(kind as in the `collectives` table, ranks, bytes) -> microseconds, None if that kind is unknown on this many ranks."""


def moved_as(kind: str, backend: str | None) -> str:
    """The collective that moves the data: gloo implements reduce-scatter as an all-reduce.

    Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, `_reduce_scatter_base`.
    """
    return "all_reduce" if kind == "reduce_scatter" and backend == "gloo" else kind


def bus_factor(kind: str | None, group_size: int) -> float | None:
    """busbw / algbw of a collective on N ranks; None for a collective without such a factor, or at N = 1.

    Source: nccl-tests, doc/PERFORMANCE.md: 2(N-1)/N for all-reduce, (N-1)/N for all-gather, reduce-scatter and
    all-to-all, 1 for broadcast, reduce and send/recv.
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


def ring_all_reduce_us(size_bytes: float, ranks: int, bandwidth_gb_per_s: float, latency_us: float = 0.0) -> float:
    """Ring all-reduce: 2(N-1) alpha + 2(N-1)/N x S/B.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; nccl-tests,
    doc/PERFORMANCE.md. Assumes that every rank sends and receives at B at the same time and that nothing else uses
    the links. With the link's specification as B it is a lower bound. It does not model DataParallel, which runs no all-reduce.

    >>> ring_all_reduce_us(1e9, ranks=2, bandwidth_gb_per_s=10)  # 1 GB over 10 GB/s, factor 2(2-1)/2 = 1: 0.1 s
    100000.0
    """
    return ring_us("all_reduce", size_bytes, ranks, bandwidth_gb_per_s, latency_us) or 0.0


def ring_us(
    kind: str, size_bytes: float, ranks: int, bandwidth_gb_per_s: float, latency_us: float = 0.0
) -> float | None:
    """A collective on a ring: its number of hops x alpha + bus factor x S/B; None for a kind without such a model.

    `size_bytes` is the larger of a rank's buffers. Assumptions as of `ring_all_reduce_us`.
    """
    factor = bus_factor(kind, ranks)
    if factor is None:
        return None
    return ring_hops(kind, ranks) * latency_us + factor * size_bytes / bandwidth_gb_per_s / 1e3


def ring_hops(kind: str, ranks: int) -> int:
    """2(N-1) for all-reduce, N-1 for the others (a pipelined broadcast or reduce fills in N-1 hops)."""
    return (2 if kind == "all_reduce" else 1) * (ranks - 1)


def bus_gb_per_s(kind: str, size_bytes: float, ranks: int, time_us: float) -> float | None:
    """Bus bandwidth, 1e9 B/s: the rate at which the ring formula takes this time; None for a kind without one, or no time."""
    factor = bus_factor(kind, ranks)
    return None if factor is None or time_us <= 0 else factor * size_bytes / time_us / 1e3


def algorithm_us(
    algorithm: str,
    kind: str,
    size_bytes: float,
    ranks: int,
    bandwidth_gb_per_s: float,
    latency_us: float = 0.0,
    nodes: int = 1,
) -> float | None:
    """The time of a collective by the algorithm that NCCL chose; None for an algorithm or a kind without a formula.

    - ring: `ring_us`;
    - tree: 2 log2(N) alpha + 2(N-1)/N x S/B for all-reduce. Two trees that each carry half of the data use both directions of
      every link, so the bandwidth bound is the ring's: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth
      broadcast, reduction and scan", 2009; NVIDIA, "Massively scale your deep learning training with NCCL 2.4", 2019;
    - nvls: 2 alpha + S/B for all-reduce, which the switch adds up: every rank sends and receives its data once. Klenk et al.,
      "An in-network architecture for accelerating shared-memory multiprocessor collectives", 2020;
    - nvls_tree: nvls within the n nodes and a double tree between them, (2 + 2 log2(n)) alpha + max(1, 2(n-1)/n) x S/B for
      all-reduce: the two formulas above, each at its level, the slower one being the bound. NCCL's model counts the same hops
      between nodes, ``intraLat + 2 * log2i(nNodes) * interLat``, where ``intraLat`` is one time for the switch's reduction and
      broadcast, and the same bandwidth at 2 and at many nodes: the lesser of the rate within a node and, beyond 2 nodes, half
      of that between them (``ncclTopoTuneModel`` in src/graph/tuning.cc, NCCL commit b6475625f);
    - collnet_chain and collnet_direct: the network's switches add up, so that a node sends and receives its data once, S/B for
      all-reduce (Graham et al., "Scalable hierarchical aggregation protocol (SHArP)", 2016). Hops as in that function:
      ``2 * (nRanks/nNodes-1) * intraLat + interLat`` for the chain through the g ranks of a node and the network, 2(g-1) + 1;
      ``2 * min(1, nRanks/nNodes-1) * intraLat + interLat`` for ranks that reach it directly, at most 3.
    - pat: log2(N) alpha + (N-1)/N x S/B for all-gather and reduce-scatter: NCCL 2.23's release notes.

    `latency_us` is that of one hop. B is the slowest link's rate, the same at both levels.
    """
    factor = bus_factor(kind, ranks)
    if algorithm == "ring" or factor is None:
        return ring_us(kind, size_bytes, ranks, bandwidth_gb_per_s, latency_us)
    inside = -(-ranks // nodes)
    between = bus_factor("all_reduce", nodes) or 0.0
    hops, share = {
        ("tree", "all_reduce"): (2 * math.log2(ranks), factor),
        ("nvls", "all_reduce"): (2.0, 1.0),
        ("nvls", "all_gather"): (1.0, factor),
        ("nvls", "reduce_scatter"): (1.0, factor),
        ("nvls_tree", "all_reduce"): (2 + 2 * math.log2(nodes), max(1.0, between)),
        ("collnet_chain", "all_reduce"): (2 * (inside - 1) + 1, 1.0),
        ("collnet_direct", "all_reduce"): (2 * min(1, inside - 1) + 1, 1.0),
        ("pat", "all_gather"): (math.log2(ranks), factor),
        ("pat", "reduce_scatter"): (math.log2(ranks), factor),
    }.get((algorithm, kind), (None, 0.0))
    return None if hops is None else hops * latency_us + share * size_bytes / bandwidth_gb_per_s / 1e3


def dp_transfer_us(
    parameter_bytes: float, buffer_bytes: float, devices: int, bandwidth_gb_per_s: float, peer_copies: bool
) -> float:
    """Time in which nn.DataParallel moves parameters, buffers and gradients in one step, without latency.

    By NCCL: broadcast (S + S_buffers)/B and reduce S/B. By peer copies device 0 serves the others one after another:
    (N-1)(S + S_buffers)/B and (N-1)S/B. Source: torch/nn/parallel/replicate.py and comm.py. None of it overlaps compute.
    The scatter of inputs and the gather of outputs, which are plain copies, are not included.
    """
    serial = devices - 1 if peer_copies else 1
    return serial * (2 * parameter_bytes + buffer_bytes) / bandwidth_gb_per_s / 1e3


def dp_nccl_us(sent: Sequence[float], reduced: Sequence[float], devices: int, cost: CollectiveCost) -> float | None:
    """nn.DataParallel by NCCL: a broadcast per chunk of parameters and buffers, a reduce per chunk of gradients.

    `sent` and `reduced` are chunks in bytes (`dp_chunks`). None if `cost` does not have broadcast or reduce. Source and
    assumptions: `dp_transfer_us`, with alpha per chunk.
    """
    costs = [cost("broadcast", devices, size) for size in sent] + [cost("reduce", devices, size) for size in reduced]
    known = [one for one in costs if one is not None]
    return sum(known) if len(known) == len(costs) else None


def dp_peer_copies_us(
    sent: Sequence[float], reduced: Sequence[float], devices: int, bandwidth_gb_per_s: float, latency_us: float = 0.0
) -> float:
    """nn.DataParallel by copies: device 0 sends each chunk to each of N-1 devices in turn and receives their gradients in turn.

    Source and assumptions: `dp_transfer_us`, with `latency_us` per chunk and device; one copy at a time through device 0.
    """
    return (devices - 1) * sum(latency_us + size / bandwidth_gb_per_s / 1e3 for size in (*sent, *reduced))
