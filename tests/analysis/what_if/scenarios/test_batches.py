"""Batches and micro-batches of a scenario, by pocket calculation on steps made by hand."""

from dataclasses import replace

import pytest

from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.what_if.prediction import Prediction
from dpscope.analysis.what_if.replay.step_profile import MeasuredBucket
from dpscope.analysis.what_if.scenarios.collective_costs import Links
from dpscope.analysis.what_if.scenarios.predict import predict
from dpscope.analysis.what_if.scenarios.scenario import Base, Scenario
from dpscope.profiling.machine.link_specifications import parse_link
from tests.helpers.known import known
from tests.helpers.replayed_steps import BASE, COSTS, profile, works

# Forward 50, two layers' backward 50 each, optimizer 60; 20 us of the last bucket are exposed. One device takes 210 and 360.
_READY = (100.0, 150.0)
_HEAVY = profile(works([50.0, 50.0, 50.0, 60.0]), after=[2, 3], ends=(0, 1), step_us=230.0)
_HEAVY = replace(_HEAVY, buckets=tuple(MeasuredBucket(1e6, one, one, one + 20, 0.0, 20.0) for one in _READY))
HEAVY = replace(BASE, profiles=(_HEAVY,), single_us={4: 210.0, 8: 360.0})
TWO = replace(BASE, accumulate=2, batch_size=8, single_us={})  # the base's trace shows both micro-batches


def question(base: Base = BASE, **scenario: object) -> Prediction:
    return predict(base, Scenario(**scenario), COSTS)  # type: ignore[arg-type]


def test_micro_batches_of_a_base_that_has_some_are_run_whole() -> None:
    assert question(TWO).step_us == pytest.approx(230)
    four = question(TWO, accumulate=4)
    assert (four.step_us, four.batch_size) == pytest.approx((430, 16))  # both once more without reducing: 200


@pytest.mark.parametrize("more", [{"accumulate": 1}, {"accumulate": 3}, {"accumulate": 1, "batch_size": 8}])
def test_other_micro_batches_than_whole_steps_of_the_base_are_refused(more: dict[str, int]) -> None:
    found = question(TWO, **more)
    assert found.step_us is None
    assert "2 micro-batches, which its trace does not separate: give --accumulate 2 or a multiple" in (
        found.reason or ""
    )


def test_a_batch_that_cannot_be_cut_evenly_is_refused() -> None:
    assert "7 samples cannot be cut into 2 equal micro-batches" in (question(accumulate=2, batch_size=7).reason or "")


def test_what_no_batch_changes_does_not_grow_with_it() -> None:
    # twice the samples: t_1 less the optimizer goes from 150 to 300; 300 + 20 + 60, of which one device's 360 was measured
    twice = question(HEAVY, batch_size=8)
    assert (twice.step_us, twice.efficiency) == pytest.approx((380, 360 / 380))
    # half: one device's step by the line through both is 135, so 75; 75 + 20 + 60
    half = question(HEAVY, batch_size=2)
    assert (half.step_us, half.efficiency) == pytest.approx((155, 135 / 155))
    # a trace whose times are twice too long has an optimizer of 30: 210 - 30 = 180 become 330, and forward and backward of 75
    # in truth 137.5; but for the difference of the base all is as above
    long = replace(HEAVY, traced=replace(HEAVY.traced, device=0.5))
    grown = (question(long, batch_size=8).step_us or 0.0) - (question(long).step_us or 0.0)
    assert grown == pytest.approx(75 * (330 / 180 - 1))


def test_one_device_at_the_batch_asked_for_is_taken_as_it_was_measured() -> None:
    """Not as the replay would have it: 3 batches need not lie on the optimizer and a line."""
    kinked = replace(HEAVY, single_us={4: 210.0, 6: 330.0, 8: 360.0})
    found = question(kinked, batch_size=6)
    assert found.step_us == pytest.approx(150 * 270 / 150 + 20 + 60)
    assert found.efficiency == pytest.approx(330 / 350)


@pytest.mark.parametrize(
    ("base", "batch", "expected"),
    [
        (HEAVY, 100_000, "a forward pass of 100,000 samples is too far from what one device was measured at (4, 8)"),
        (HEAVY, 1, "too far from what one device was measured at (4, 8): 2 times beyond at most"),
        (BASE, 9, "too far from what the base was measured at (4)"),
        (replace(HEAVY, single_us={4: 210.0, 8: 55.0}), 8, "0.06 ms: what a sample costs is not known"),
    ],
)
def test_a_batch_too_far_from_what_was_measured_is_refused(base: Base, batch: int, expected: str) -> None:
    found = question(base, batch_size=batch)
    assert found.step_us is None
    assert expected in (found.reason or "")


def test_batches_of_one_device_far_from_the_base_s_tell_nothing_of_it() -> None:
    far = replace(BASE, single_us={32: 1000.0, 64: 1100.0})
    assert question(far, batch_size=8).step_us == pytest.approx(430)  # by the samples: 400 + 20 + 10


def test_data_parallel_moves_everything_in_every_micro_batch() -> None:
    costs = replace(COSTS, traced={("broadcast", 1e6): 10.0, ("reduce", 1e6): 10.0})
    # 2 MB each way at 10 us a MB, 40 in each of four; forward and backward 200 each, the optimizer 10 once
    found = predict(BASE, Scenario(strategy="dp", accumulate=4), costs)
    assert (found.step_us, found.exposed_us) == pytest.approx((4 * 240 + 10, 160))
    assert found.efficiency == pytest.approx(810 / 970)
    # a base of two micro-batches moves both times: 210 + 80
    assert predict(TWO, Scenario(strategy="dp"), costs).step_us == pytest.approx(290)
    several = predict(BASE, Scenario(strategy="dp", devices=4, per_node=2), costs)
    assert "it cannot drive 4 devices of several" in (several.reason or "")


def test_one_device_waits_for_nothing() -> None:
    """Though more was exposed in the measured step than in its replay, 30 and 20."""
    found = question(replace(BASE, ledger=Ledger(230.0, 200.0, 0.0, 30.0, 0.0, 0.0)), devices=1)
    assert (found.step_us, found.exposed_us, found.efficiency) == pytest.approx((210, 0, 1))
    assert found.bound_by == "compute"
    assert str(found.rests_on).startswith("one device's step as it was measured; the method's error is")
    assert "one device's measured step, scaled as its replay is" in str(question(devices=1, faster=2.0).rests_on)
    assert "the base's replay without its other devices" in str(
        question(replace(BASE, single_us={}), devices=1).rests_on
    )


def test_what_bounds_a_step_is_the_largest_part_of_its_ledger() -> None:
    """20 of 230 us are exposed: compute. 1 MB at 1 GB/s takes 1000 us, twice, of which 50 run next to compute: transfer."""
    assert question(BASE).bound_by == "compute"
    slow = question(BASE, links=Links(intra=parse_link("1GB/s")))
    assert slow.bound_by == "transfer"
    assert known(slow.ledger).exposed_transfer_us == pytest.approx(2000 - 50)


def test_an_efficiency_that_cannot_be_is_not_printed() -> None:
    """One device's step may be 2% longer than that of two by noise, and not 7%."""
    noisy = replace(BASE, single_us={4: 235.0})
    assert question(noisy).efficiency == pytest.approx(235 / 230)
    half = question(noisy, hook="fp16")  # 10 us a bucket: 220
    assert half.efficiency is None
    assert "no efficiency: one device's step would be 0.235 ms, longer than this one" in (half.rests_on or "")
