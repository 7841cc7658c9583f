"""nccl-tests' factor from a collective's own bandwidth to its bus bandwidth."""


def moved_as(kind: str, backend: str | None) -> str:
    """The collective that moves the data: gloo carries out a reduce-scatter as an all-reduce.

    Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, `_reduce_scatter_base`.
    """
    return "all_reduce" if kind == "reduce_scatter" and backend == "gloo" else kind


def bus_factor(kind: str | None, group_size: int) -> float | None:
    """busbw / algbw of a collective on N ranks; None for one that has no such factor, or at N = 1.

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
