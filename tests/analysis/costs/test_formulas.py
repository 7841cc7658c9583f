"""Models of communication against pocket calculations."""

import pytest

from dpscope.analysis.costs.formulas import dp_transfer_us, moved_as, ring_us


def test_ring_of_every_kind() -> None:
    # 1 MB on 4 ranks at 10 GB/s: 100 us for one pass; alpha 2 us
    # 2(N-1), 2(N-1)/N
    assert ring_us("all_reduce", 1e6, 4, 10.0, latency_us=2.0) == pytest.approx(6 * 2 + 150)
    assert ring_us("all_gather", 1e6, 4, 10.0, latency_us=2.0) == pytest.approx(3 * 2 + 75)
    assert ring_us("reduce_scatter", 1e6, 4, 10.0) == pytest.approx(75)
    assert ring_us("broadcast", 1e6, 4, 10.0, latency_us=2.0) == pytest.approx(3 * 2 + 100)
    assert ring_us("barrier", 1e6, 4, 10.0) is None
    assert ring_us("all_reduce", 1e6, 1, 10.0) is None  # no other rank


def test_dp_by_copies_serves_one_device_after_another() -> None:
    # 20 MB of parameters and 1 MB of buffers to each of 3 devices at 10 GB/s, and 20 MB back: 3 x
    # 4,100 us; by NCCL once
    assert dp_transfer_us(20e6, 1e6, 4, 10.0, peer_copies=True) == pytest.approx(12_300)
    assert dp_transfer_us(20e6, 1e6, 4, 10.0, peer_copies=False) == pytest.approx(4_100)


def test_gloo_reduces_and_scatters_by_an_all_reduce() -> None:
    assert moved_as("reduce_scatter", "gloo") == "all_reduce"
    assert moved_as("reduce_scatter", "nccl") == "reduce_scatter"
    assert moved_as("all_gather", "gloo") == "all_gather"
