"""When collectives run, by hand: one stream, two workers that share a link, latencies that nothing
shares.
"""

import pytest

from dpscope.analysis.costs.collective_streams import ddp_schedule, run_collectives


def test_buckets_wait_for_gradients_and_for_each_other() -> None:
    # ready 0, 10, 20; 15 us each: 0-15, 15-30, 30-45; backward ends at 20, from 20 to 45 nothing
    # hides them
    schedule = ddp_schedule([0.0, 10.0, 20.0], [15.0, 15.0, 15.0])
    assert schedule.start_us == (0, 15, 30)
    assert schedule.end_us == (15, 30, 45)
    assert schedule.exposed_us == 25
    # fast links: 0-2, 10-12, 20-22: the last bucket alone shows
    fast = ddp_schedule([0.0, 10.0, 20.0], [2.0, 2.0, 2.0])
    assert (fast.start_us, fast.exposed_us) == ((0, 10, 20), 2)
    # without overlap everything is exposed
    schedule = ddp_schedule([100.0], [40.0])
    assert (schedule.end_us, schedule.exposed_us) == ((140,), 40)
    assert ddp_schedule([], []).exposed_us == 0


def test_two_servers_share_the_link() -> None:
    """Ready 0, 10, 12, 20 us each alone. Until 10 the first alone: 10 left. Both at half speed
    until it ends at 30, the second then has 10 left; the third joins at 30, both at half speed
    until 50; the third's last 10 alone until 60."""
    schedule = ddp_schedule([0.0, 10.0, 12.0], [20.0, 20.0, 20.0], servers=2)
    assert schedule.start_us == (0, 10, 30)
    assert schedule.end_us == pytest.approx((30, 50, 60))
    # their union after the last is ready, not 18 + 38 + 30
    assert schedule.exposed_us == pytest.approx(60 - 12)
    # one server needs as long for the same bytes
    assert ddp_schedule([0.0, 10.0, 12.0], [20.0, 20.0, 20.0]).end_us[-1] == 60


def test_latencies_run_beside_each_other_and_bytes_share_the_link() -> None:
    """Ready 0 and 2; latency 10, 20 us of bytes each. The first moves from 10, the second from 12;
    until 12 the first has moved 2, then both at half speed: the first's 18 until 48, the second has
    2 left, alone until 50."""
    starts, ends = run_collectives([0.0, 2.0], [10.0, 10.0], [20.0, 20.0], servers=2)
    assert starts == [0, 2]
    assert ends == pytest.approx([48, 50])
    # one server: 0-30, 30-60
    assert run_collectives([0.0, 2.0], [10.0, 10.0], [20.0, 20.0])[1] == [30, 60]


def test_computing_slows_what_runs_beside_it() -> None:
    """Twice as long until compute ends at 20. 0-12 are 6 us of work; 12-20 the next 4 of 6, and 2
    after; then 5 alone.
    """
    schedule = ddp_schedule([0.0, 10.0, 20.0], [6.0, 6.0, 5.0], beside_compute=2.0)
    assert schedule.start_us == pytest.approx((0, 12, 22))
    assert schedule.end_us == pytest.approx((12, 22, 27))
    assert schedule.exposed_us == pytest.approx(7)
    schedule = ddp_schedule([0.0, 10.0], [6.0, 6.0], servers=2, slowdown=1.5, beside_compute=2.0)
    # compute ends at 10: until then 5 of 6 are done; then both at 1/1.5: 1 more takes 1.5, the
    # other has 5 left, alone
    assert schedule.end_us == pytest.approx((11.5, 16.5))
    # no compute is left next to the last
    assert ddp_schedule([5.0], [4.0], beside_compute=9.0).end_us == (9.0,)
