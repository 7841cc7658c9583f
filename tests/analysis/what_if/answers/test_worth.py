"""What is worth most on the base of test_predict.py, by pocket calculation."""

import math

import pytest

from dpscope.analysis.what_if.answers.worth import TWICE_AS_FAST, Worth, worth, worth_sentence
from dpscope.analysis.what_if.scenarios.scenario import Scenario
from tests.helpers.replayed_steps import BASE, COSTS


def test_what_is_worth_most_comes_first() -> None:
    found = worth(BASE, Scenario(), COSTS)
    assert {one.change for one in found} >= {"infinite bandwidth", "zero latency", "no late rank", TWICE_AS_FAST}
    saved = {one.change: one.saved_us for one in found}
    assert saved["infinite bandwidth"] == pytest.approx(20)
    assert saved[TWICE_AS_FAST] == pytest.approx(105)
    assert found[0].change == TWICE_AS_FAST
    assert not next(one for one in found if one.change == "no late rank").certain


def test_a_saving_is_as_unsure_as_the_costs_that_it_saves() -> None:
    """On 4 devices by the ring's formula, 30 us a bucket, 30% either way in logarithms: 10.5 us more or 7.8 less. The method is
    assumed to be 4% off, the base's repeats 1%, and twice the devices 6%."""
    saved = {one.change: one for one in worth(BASE, Scenario(devices=4), COSTS)}
    share = math.hypot(0.04, 0.01, 0.06)
    link = saved["infinite bandwidth"]
    assert link.saved_us == pytest.approx(30)
    assert link.low_us == pytest.approx(30 - math.hypot(30 * share, 30 * -math.expm1(-0.3)))
    assert link.high_us == pytest.approx(30 + math.hypot(30 * share, 30 * math.expm1(0.3)))
    # Ready at 75 and 100, the buckets end at 105 and 135, the optimizer at 140, 12% of which the device may be off. Cheaper ones
    # make both steps shorter: of 30 e^-0.3 = 22.2 us, by 7.8 and by 12.8.
    device = saved[TWICE_AS_FAST]
    assert device.saved_us == pytest.approx(100)
    cheaper = 30 * math.exp(-0.3)
    apart = (135 - (100 + cheaper)) - (30 - cheaper)
    assert device.saved_us - device.low_us == pytest.approx(math.hypot(100 * share, 0.12 * 140, apart))


def test_what_would_not_show_in_its_digits_is_worth_nothing() -> None:
    found = [Worth("fast", 2040.0, 2000.0, 2080.0, True), Worth("slow", 0.0, 0.0, 0.0, False)]
    said = "What is worth most on 1 device, each alone: fast -2.0 ms; worth nothing: slow."
    assert worth_sentence(found, 1) == said
    assert worth_sentence(found[1:], 2) == "What is worth most on 2 devices, each alone: worth nothing: slow."
