"""Inverse questions on the base of test_predict.py, answered by pocket calculation too."""

import pytest

from dpscope.analysis.what_if.answers.questions import Worth, solve, worth, worth_sentence
from dpscope.analysis.what_if.scenarios.scenario import Scenario
from tests.helpers.replayed_steps import BASE, COSTS


def test_the_bandwidth_that_a_step_needs() -> None:
    # 240 ms = 200 + 30 + 10 of the last bucket, so 1 MB in 30 us, and the first, ready at 150, is done by 180: 33.3 GB/s
    found = solve(BASE, Scenario(), COSTS, "intra", ("step-ms", 0.240))
    assert found.value == pytest.approx(33.3, rel=0.01)
    assert found.low is not None
    assert found.low < 33.3


def test_what_no_bandwidth_reaches_is_said() -> None:
    found = solve(BASE, Scenario(), COSTS, "intra", ("step-ms", 0.200))
    assert found.value is None
    assert "cannot be reached at any bandwidth" in found.sentence


def test_how_fast_a_device_must_be() -> None:
    # (230 - 20) / f + 20 = 125 at f = 2
    assert solve(BASE, Scenario(), COSTS, "faster", ("step-ms", 0.125)).value == pytest.approx(2.0, rel=0.01)


def test_how_many_devices_pay() -> None:
    # the last bucket takes 20 x 2(N-1)/N: an efficiency of 86% allows 34.2 us, which is N = 6 (33.3), not 7 (34.3)
    found = solve(BASE, Scenario(), COSTS, "devices", ("efficiency", 0.86))
    assert found.value == 6
    assert "not on 7" in found.sentence


def test_buckets_are_a_flat_region() -> None:
    found = solve(BASE, Scenario(), COSTS, "bucket-mb")
    assert found.low == 0.5
    assert found.high is not None
    assert found.high < 1.0  # from 0.954 MiB on both gradients share a bucket, which ends 20 us later
    assert "8.7% longer" in found.sentence  # 250 against 230


def test_what_is_worth_most_comes_first() -> None:
    found = worth(BASE, Scenario(), COSTS)
    assert {one.change for one in found} >= {"infinite bandwidth", "zero latency", "no jitter", "twice the GPU"}
    saved = {one.change: one.saved_us for one in found}
    assert saved["infinite bandwidth"] == pytest.approx(20)
    assert saved["twice the GPU"] == pytest.approx(105)
    assert found[0].change == "twice the GPU"
    assert not next(one for one in found if one.change == "no jitter").certain


def test_a_link_that_no_device_uses_is_not_solved_for() -> None:
    one_node = solve(BASE, Scenario(), COSTS, "inter", ("step-ms", 0.240))
    assert (one_node.value, "all 2 devices are on one node" in one_node.sentence) == (None, True)
    each_its_own = solve(BASE, Scenario(devices=4, per_node=1), COSTS, "intra", ("step-ms", 0.240))
    assert (each_its_own.value, "no link within a node" in each_its_own.sentence) == (None, True)


def test_what_would_not_show_in_its_digits_is_worth_nothing() -> None:
    found = [Worth("fast", 2040.0, 2000.0, 2080.0, True), Worth("slow", 0.0, 0.0, 0.0, False)]
    said = "What is worth most on 1 device, each alone: fast -2.0 ms; worth nothing: slow."
    assert worth_sentence(found, 1) == said
    assert worth_sentence(found[1:], 2) == "What is worth most on 2 devices, each alone: worth nothing: slow."
