"""What removing a part saves, by pocket calculation."""

import math
from dataclasses import replace

import pytest

from dpscope.analysis.traces.ranks.ledger import BUFFER_BROADCASTS, TRANSFER, UNSPLIT, WAITING, Ledger
from dpscope.analysis.what_if.savings import INFINITE_BANDWIDTH, TWICE_AS_FAST, savings
from dpscope.analysis.what_if.scenario import Scenario
from dpscope.analysis.what_if.step_profile import OtherCollective
from tests.helpers.replayed_steps import BASE, COSTS, PROFILE


def test_the_part_whose_removal_saves_most_comes_first_and_other_changes_after_the_parts() -> None:
    """Exposed are 20 us of transfer and none of waiting; a device twice as fast saves 105, but removes no part."""
    found = savings(BASE, Scenario(), COSTS)
    assert [one.change for one in found if one.is_part] == [TRANSFER, WAITING]
    assert [one.is_part for one in found] == [True, True, False, False, False]
    saved = {one.change: one.saved_us for one in found}
    assert saved[TRANSFER] == pytest.approx(20)
    assert saved[INFINITE_BANDWIDTH] == pytest.approx(20)
    assert saved[TWICE_AS_FAST] == pytest.approx(105)
    assert not next(one for one in found if one.change == WAITING).is_significant


def test_waiting_and_broadcasts_are_parts() -> None:
    """Ranks are 15 us late at each bucket: 215, 235. A broadcast of 30 us comes first, so that all else is 30 us later."""
    late = tuple(replace(one, late_us=15.0) for one in PROFILE.buckets)
    broadcast = OtherCollective("broadcast", 1e5, 0, 30.0, blocks=True)
    made = replace(PROFILE, buckets=late, others=(broadcast,), step_us=275.0)
    ledger = Ledger(275.0, 210.0, 15.0, 20.0, 30.0, 0.0, other_by_kind_us={"broadcast": 30.0})
    base = replace(BASE, profiles=(made,), step_us=275.0, ledger=ledger)
    saved = {one.change: one.saved_us for one in savings(base, Scenario(), COSTS) if one.is_part}
    assert saved == pytest.approx({BUFFER_BROADCASTS: 30, TRANSFER: 20, WAITING: 15})
    assert next(iter(saved)) == BUFFER_BROADCASTS


def test_nothing_saves_more_than_its_part_of_the_step() -> None:
    """12 us of waiting in the mean step, 15 in the step that is replayed."""
    late = replace(PROFILE, buckets=tuple(replace(one, late_us=15.0) for one in PROFILE.buckets), step_us=245.0)
    base = replace(BASE, profiles=(late,), step_us=242.0, ledger=Ledger(242.0, 210.0, 12.0, 20.0, 0.0, 0.0))
    saved = {one.change: one.saved_us for one in savings(base, Scenario(), COSTS)}
    assert saved[WAITING] == pytest.approx(12)


def test_communication_that_is_not_split_is_one_part() -> None:
    base = replace(BASE, ledger=Ledger(230.0, 210.0, None, None, 20.0, 0.0))
    assert [one.change for one in savings(base, Scenario(), COSTS) if one.is_part] == [UNSPLIT]


def test_a_saving_is_as_unsure_as_the_costs_that_it_saves() -> None:
    """On 4 devices by the ring's formula, 30 us a bucket, 30% either way in logarithms: 10.5 us more or 7.8 less. The method is
    assumed to be 4% off, the base's repeats 1%, and twice the devices 6%."""
    saved = {one.change: one for one in savings(BASE, Scenario(devices=4), COSTS)}
    share = math.hypot(0.04, 0.01, 0.06)
    link = saved[INFINITE_BANDWIDTH]
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
