"""Models of communication against pocket calculations."""

import pytest

from dpscope.analysis.costs.formulas import (
    ddp_schedule,
    dp_nccl_us,
    dp_peer_copies_us,
    ring_us,
)


def test_ring_of_every_kind() -> None:
    # 1 MB on 4 ranks at 10 GB/s: 100 us for one pass; alpha 2 us
    assert ring_us("all_reduce", 1e6, 4, 10.0, latency_us=2.0) == pytest.approx(6 * 2 + 150)  # 2(N-1), 2(N-1)/N
    assert ring_us("all_gather", 1e6, 4, 10.0, latency_us=2.0) == pytest.approx(3 * 2 + 75)
    assert ring_us("reduce_scatter", 1e6, 4, 10.0) == pytest.approx(75)
    assert ring_us("broadcast", 1e6, 4, 10.0, latency_us=2.0) == pytest.approx(3 * 2 + 100)
    assert ring_us("barrier", 1e6, 4, 10.0) is None
    assert ring_us("all_reduce", 1e6, 1, 10.0) is None  # nobody to talk to


def test_dp_by_nccl_pays_per_chunk() -> None:
    """12 + 3 MiB of parameters and 1 MiB of buffers sent, 6 + 9 MiB of gradients reduced on 4 devices.

    A broadcast takes 5 us + S/10 GB/s, a reduce 7 us + S/10.
    """

    def cost(kind: str, ranks: int, size_bytes: float) -> float | None:
        assert ranks == 4
        return {"broadcast": 5.0, "reduce": 7.0}[kind] + size_bytes / 1e4

    mib = 1 << 20
    found = dp_nccl_us([12 * mib, 3 * mib, mib], [6 * mib, 9 * mib], 4, cost)
    assert found == pytest.approx(3 * 5 + 2 * 7 + (12 + 3 + 1 + 6 + 9) * mib / 1e4)


def test_dp_needs_both_collectives_calibrated() -> None:
    assert dp_nccl_us([1e6], [1e6], 2, lambda kind, ranks, size: None if kind == "reduce" else 1.0) is None


def test_dp_by_copies_serves_one_device_after_another() -> None:
    # 12 + 8 + 1 MB and 20 MB to each of 3 devices at 10 GB/s: 3 x 4,100 us; 4 chunks to each, 2 us: 3 x 4 x 2
    assert dp_peer_copies_us([12e6, 8e6, 1e6], [20e6], 4, 10.0, latency_us=2.0) == pytest.approx(12_300 + 24)


def test_buckets_wait_for_gradients_and_for_each_other() -> None:
    # ready 0, 10, 20; 15 us each: 0-15, 15-30, 30-45; backward ends at 20, from 20 to 45 nothing hides them
    schedule = ddp_schedule([0.0, 10.0, 20.0], [15.0, 15.0, 15.0])
    assert schedule.start_us == (0, 15, 30)
    assert schedule.end_us == (15, 30, 45)
    assert schedule.exposed_us == 25
    # fast links: 0-2, 10-12, 20-22: the last bucket alone shows
    fast = ddp_schedule([0.0, 10.0, 20.0], [2.0, 2.0, 2.0])
    assert (fast.start_us, fast.exposed_us) == ((0, 10, 20), 2)


def test_without_overlap_everything_is_exposed() -> None:
    schedule = ddp_schedule([100.0], [40.0])
    assert (schedule.end_us, schedule.exposed_us) == ((140,), 40)
    assert ddp_schedule([], []).exposed_us == 0


def test_two_servers_share_the_link() -> None:
    """Ready 0, 10, 12, 20 us each alone. Until 10 the first alone: 10 left. Both at half speed until it ends at 30, the second
    then has 10 left; the third joins at 30, both at half speed until 50; the third's last 10 alone until 60."""
    schedule = ddp_schedule([0.0, 10.0, 12.0], [20.0, 20.0, 20.0], servers=2)
    assert schedule.start_us == (0, 10, 30)
    assert schedule.end_us == pytest.approx((30, 50, 60))
    assert schedule.exposed_us == pytest.approx(60 - 12)  # their union after the last is ready, not 18 + 38 + 30
    # one server needs as long for the same bytes
    assert ddp_schedule([0.0, 10.0, 12.0], [20.0, 20.0, 20.0]).end_us[-1] == 60


def test_servers_that_do_not_slow_each_other_run_side_by_side() -> None:
    schedule = ddp_schedule([0.0, 10.0, 12.0], [20.0, 20.0, 20.0], servers=2, slowdown=1.0)
    assert schedule.end_us == pytest.approx((20, 30, 40))  # the third waits for a worker until 20
    # half as much again: until 10 alone, 10 left; 15 us beside the second, which has 20 - 15 / 1.5 = 10 left at 25
    assert ddp_schedule([0.0, 10.0], [20.0, 20.0], 2, 1.5).end_us == pytest.approx((25, 35))
