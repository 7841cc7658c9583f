"""Models of communication against pocket calculations."""

import pytest

from dpscope.analysis.costs.formulas import dp_nccl_us, dp_peer_copies_us, ring_us


def test_ring_of_every_kind() -> None:
    # 1 MB on 4 ranks at 10 GB/s: 100 us for one pass; alpha 2 us
    assert ring_us("all_reduce", 1e6, 4, 10.0, latency_us=2.0) == pytest.approx(6 * 2 + 150)  # 2(N-1), 2(N-1)/N
    assert ring_us("all_gather", 1e6, 4, 10.0, latency_us=2.0) == pytest.approx(3 * 2 + 75)
    assert ring_us("reduce_scatter", 1e6, 4, 10.0) == pytest.approx(75)
    assert ring_us("broadcast", 1e6, 4, 10.0, latency_us=2.0) == pytest.approx(3 * 2 + 100)
    assert ring_us("barrier", 1e6, 4, 10.0) is None
    assert ring_us("all_reduce", 1e6, 1, 10.0) is None  # no other rank


def test_dp_by_nccl_pays_per_chunk_and_needs_both_collectives() -> None:
    """12 + 3 MiB of parameters and 1 MiB of buffers sent, 6 + 9 MiB of gradients reduced on 4 devices.

    A broadcast takes 5 us + S/10 GB/s, a reduce 7 us + S/10.
    """

    def cost(kind: str, ranks: int, size_bytes: float) -> float | None:
        assert ranks == 4
        return {"broadcast": 5.0, "reduce": 7.0}[kind] + size_bytes / 1e4

    mib = 1 << 20
    found = dp_nccl_us([12 * mib, 3 * mib, mib], [6 * mib, 9 * mib], 4, cost)
    assert found == pytest.approx(3 * 5 + 2 * 7 + (12 + 3 + 1 + 6 + 9) * mib / 1e4)
    assert dp_nccl_us([1e6], [1e6], 2, lambda kind, ranks, size: None if kind == "reduce" else 1.0) is None


def test_dp_by_copies_serves_one_device_after_another() -> None:
    # 12 + 8 + 1 MB and 20 MB to each of 3 devices at 10 GB/s: 3 x 4,100 us; 4 chunks to each, 2 us: 3 x 4 x 2
    assert dp_peer_copies_us([12e6, 8e6, 1e6], [20e6], 4, 10.0, latency_us=2.0) == pytest.approx(12_300 + 24)
