"""Replays of steps made by hand under other costs, buckets, lateness and hosts; DDP's rule for
buckets.
"""

from dataclasses import replace

import numpy as np
import pytest

from dpscope.analysis.what_if.job_profile import job_profile
from dpscope.analysis.what_if.replay import Conditions, Prepared, Replay, Scale
from dpscope.analysis.what_if.step_profile import (
    Bucketing,
    OtherCollective,
    Works,
    bucket_ends,
    not_reproduced,
)
from tests.helpers.paths import DATA
from tests.helpers.replayed_steps import SIMPLE, profile, under, works


def test_communication_hides_behind_backward_but_for_the_last_bucket() -> None:
    # ready 150, 200; 20 us each: 150-170, 200-220; the optimizer 220-230
    prediction = Replay(Prepared(SIMPLE), under((0, 1), [20.0, 20.0]))
    assert (prediction.step_us, prediction.exposed_us) == (230, 20)
    # 80 us each: 150-230, 230-310
    slow = Replay(Prepared(SIMPLE), under((0, 1), [80.0, 80.0]))
    assert (slow.step_us, slow.exposed_us) == (320, 110)


BROADCAST = OtherCollective("broadcast", 1e3, after=0, cost_us=30.0, blocks=True)
TWO = under((0, 1), [20.0, 20.0])


@pytest.mark.parametrize(
    ("prepared", "conditions", "step_us", "exposed_us"),
    [
        # one bucket: ready at 200, until 240, optimizer 10
        (Prepared(SIMPLE), under((1,), [40.0]), 250, 40),
        # the last rank
        (Prepared(SIMPLE), TWO._replace(late_us=(0.0, 30.0)), 200 + 30 + 20 + 10, 50),
        # micro-batches repeat forward and backward
        (Prepared(SIMPLE), TWO._replace(passes=3), 200 + 200 + 230, 20),
        # a faster device: ready 75, 100
        (Prepared(SIMPLE, Scale(busy=0.5)), TWO, 100 + 20 + 5, 20),
        # the optimizer takes as long
        (Prepared(SIMPLE, Scale(by_samples=2.0)), TWO, 400 + 20 + 10, 20),
        # before forward
        (Prepared(replace(SIMPLE, others=(BROADCAST,))), TWO._replace(other_us=(30.0,)), 260, 50),
    ],
    ids=["one bucket", "late rank", "micro-batches", "faster device", "larger batch", "broadcast"],
)
def test_a_step_under_other_conditions(
    prepared: Prepared, conditions: Conditions, step_us: float, exposed_us: float
) -> None:
    prediction = Replay(prepared, conditions)
    assert (prediction.step_us, prediction.exposed_us) == (step_us, exposed_us)


def test_compute_next_to_a_collective_is_slower_by_gamma() -> None:
    # ready 150; 40 us next to the second backward of 50, of which 40 take half as much again: 200
    # -> 220
    prediction = Replay(Prepared(SIMPLE), under((0, 1), [40.0, 20.0], gamma=0.5))
    assert prediction.step_us == pytest.approx(250)


def test_a_host_that_launches_too_slowly_bounds_the_step() -> None:
    # launches at 100, 200, 300 and 400, whatever the device does; 20 us of the last bucket are in
    # the host's shadow
    table = works([10.0, 10.0, 10.0, 10.0], host_us=[100.0, 100.0, 100.0, 100.0])
    slow_host = profile(table, after=[2, 3], ends=(0, 1))
    prediction = Replay(Prepared(slow_host), under((0, 1), [20.0, 20.0]))
    assert (prediction.step_us, prediction.exposed_us) == (410, 0)
    assert Replay(
        Prepared(slow_host, Scale(busy=0.1)), under((0, 1), [20.0, 20.0])
    ).step_us == pytest.approx(401)
    # half the host's time: launches 50 apart, and the 20 us still hide; micro-batches are launched
    # one after another
    assert Replay(
        Prepared(slow_host, Scale(host=0.5)), under((0, 1), [20.0, 20.0])
    ).step_us == pytest.approx(210)
    assert Replay(
        Prepared(slow_host), under((0, 1), [20.0, 20.0], passes=2)
    ).step_us == pytest.approx(310 + 410)


def test_a_host_that_waited_for_a_kernel_launches_later_when_it_ends_later() -> None:
    """The host waits for the end of the second kernel, at 200, and launches the third 30 us later:
    230 to 330; the fourth at 240, 330 to 430."""
    columns = {"host_waits": [0.0, 1.0, 0.0, 0.0], "needs": [0.0] * 4}
    table = replace(works([100.0] * 4, **columns), launched_us=np.array([0.0, 10.0, 30.0, 40.0]))
    held = profile(table, after=[4], ends=(0,))
    assert Replay(Prepared(held), under((0,), [0.0])).step_us == 430
    # with kernels of 50 us: until 100, from 130
    assert Replay(Prepared(held, Scale(busy=0.5)), under((0,), [0.0])).step_us == 230


def test_joined_works_give_what_single_ones_do() -> None:
    """A thousand random works, replayed one by one: the definition, written out."""
    generator = np.random.default_rng(3)
    count = 1000
    table = Works(
        busy_us=generator.exponential(10.0, count),
        gap_us=generator.uniform(0, 2, count),
        launched_us=np.cumsum(generator.exponential(12.0, count)),
        host_waits=generator.random(count) < 0.02,
        needs=np.zeros(count),
        by_samples=np.ones(count, dtype=bool),
    )
    host = device = 0.0
    for index in range(count):
        device = (
            max(device + table.gap_us[index], host + table.launched_us[index])
            + table.busy_us[index]
        )
        host = device if table.host_waits[index] else host
    one = profile(table, after=[count], ends=(0,))
    assert Replay(Prepared(one), under((0,), [0.0])).step_us == pytest.approx(device)
    assert Replay(Prepared(one), under((0,), [0.0], passes=2)).step_us == pytest.approx(2 * device)


def test_exposed_communication_of_a_replayed_step() -> None:
    """Ready at 150 and 200, each launched 3 us later, 40 us each, the last rank 10 us late.

    The first waits from 153 to 163 and moves until 203; the second moves from 213 to 253: exposed
    from 200, 3 us idle, 10 waiting but for none of the first's transfer until 203, then until 213;
    the optimizer takes 10 us.
    """
    conditions = under((0, 1), [40.0, 40.0], late_us=(10.0, 10.0))
    prediction = Replay(Prepared(replace(SIMPLE, start_gap_us=3.0)), conditions)
    assert prediction.step_us == 263
    assert prediction.exposed_us == pytest.approx(53)
    # Without a first bucket on the link, the 3 us before the launch are neither compute nor
    # communication
    one = Replay(Prepared(replace(SIMPLE, start_gap_us=3.0)), under((1,), [40.0], late_us=(10.0,)))
    assert one.exposed_us == pytest.approx(50)


MIB = 1024 * 1024


def test_a_bucket_closes_once_it_holds_its_limit() -> None:
    sizes = [0.5 * MIB, 0.5 * MIB, 24 * MIB, 2 * MIB, 1 * MIB]
    assert bucket_ends(sizes, Bucketing()) == [1, 3, 4]  # 1 MiB, then 26 >= 25, then the rest
    # a stated cap is the first limit too
    assert bucket_ends(sizes, Bucketing(cap_mib=2)) == [2, 3, 4]
    assert bucket_ends(sizes, Bucketing(overlap=False)) == [4]
    assert bucket_ends([], Bucketing()) == []


def test_a_real_job_s_buckets_reach_their_limits_but_not_larger_ones() -> None:
    # 8,196,000 >= 1 MiB; 31,502,336, 26,255,360 and 26,550,272 >= 26,214,400; the last need not
    step = job_profile([DATA / "a100x2_ddp_resnet50_rank0.json.gz"]).profiles[0]
    assert [round(one.bytes) for one in step.buckets] == [
        8_196_000,
        31_502_336,
        26_255_360,
        26_550_272,
        9_724_160,
    ]
    assert not_reproduced(step, Bucketing()) is None
    assert "8.20 MB" in (not_reproduced(step, Bucketing(cap_mib=25)) or "")
    assert not_reproduced(step, Bucketing(overlap=False)) is not None
