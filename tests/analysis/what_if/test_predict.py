"""Predictions from a base made by hand: values by pocket calculation, each source of costs, each
refusal.
"""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from dpscope.analysis.costs.cost import Links, Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.what_if.lateness import Lateness
from dpscope.analysis.what_if.predict import predict
from dpscope.analysis.what_if.scenario import Base, Contention, Prediction, Scenario
from dpscope.analysis.what_if.step_profile import (
    Bucketing,
    Gradients,
    MeasuredBucket,
    OtherCollective,
    StepProfile,
)
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.links import REACHED_RATE, Interconnect, LinkRate, PairLink
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.known import known
from tests.helpers.replayed_steps import BASE, BUCKETS, CAP, COSTS, PROFILE, profile, works
from tests.helpers.run_cells import calibration


def prediction(
    base: Base = BASE, costs: Costs = COSTS, **question: object
) -> tuple[float, float, float]:
    """Step, exposed communication and efficiency."""
    found = predict(base, Scenario(**question), costs)  # type: ignore[arg-type]
    assert found.reason is None, found.reason
    return known(found.step_us), known(found.exposed_us), known(found.efficiency)


def reason(base: Base = BASE, costs: Costs = COSTS, **question: object) -> str:
    found = predict(base, Scenario(**question), costs)  # type: ignore[arg-type]
    assert found.step_us is None
    return found.reason or ""


BROADCAST = OtherCollective("broadcast", 1e5, 0, 30.0, blocks=True)
WITH_BROADCAST = replace(
    BASE,
    profiles=(replace(PROFILE, others=(BROADCAST,), step_us=260.0),),
    step_us=260.0,
    exposed_us=50.0,
)
BOTH_COSTS = Costs(
    place=Place(2, 2), transfers={("all_reduce", 1e6): 20.0, ("broadcast", 1e5): 30.0}
)
HALF_COSTS = Costs(place=Place(2, 2), transfers={("all_reduce", 1e6): 10.0})
QUARTER_COSTS = Costs(place=Place(2, 2), transfers={("all_reduce", 1e6): 5.0})
INFINITE, TEN = Links(intra=parse_link("100000000Gb/s")), parse_link("10GB/s")

# Forward 50, two layers' backward 50 each, optimizer 60; 20 us of the last bucket are exposed. One
# device takes 210 and 360.
_HEAVY = profile(works([50.0, 50.0, 50.0, 60.0]), after=[2, 3], ends=(0, 1), step_us=230.0)
_HEAVY = replace(
    _HEAVY,
    buckets=tuple(MeasuredBucket(1e6, one, one, one + 20, 0.0, 20.0) for one in (100.0, 150.0)),
)
HEAVY = replace(BASE, profiles=(_HEAVY,), single_us={4: 210.0, 8: 360.0})
# the base's trace shows both micro-batches
TWO = replace(BASE, accumulate=2, batch_size=8, single_us={})

ONE_BUCKET = (MeasuredBucket(2e6, 200.0, 200.0, 220.0, 0.0, 20.0),)
WORKERS = replace(BASE, profiles=(replace(PROFILE, servers=2),))
HALF = Contention(0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("base", "costs", "scenario", "step_us", "exposed_us"),
    [
        (BASE, COSTS, {}, 230, 20),  # as measured
        # one bucket is ready late: 2 MB at 20 us a MB, 200-240, optimizer to 250
        (BASE, COSTS, {"overlap": False}, 250, 40),
        (BASE, COSTS, {"bucket_mb": 25.0}, 250, 40),
        (BASE, COSTS, {"hook": "fp16"}, 220, 10),  # half the bytes
        # by the ring, factor 1 at 2, 2 x 3/4 at 4: 30 us each: 150-180, 200-230, 240
        (BASE, COSTS, {"devices": 4}, 240, 30),
        (BASE, COSTS, {"accumulate": 2}, 430, 20),  # another 200 of forward and backward
        # twice the samples: forward and backward 400, 20 exposed, optimizer 10
        (BASE, COSTS, {"batch_size": 8}, 430, 20),
        (BASE, COSTS, {"batch_size": 8, "accumulate": 2}, 430, 20),
        # batches of one device far from the base's show nothing of it: by the samples
        (replace(BASE, single_us={32: 1000.0, 64: 1100.0}), COSTS, {"batch_size": 8}, 430, None),
        # A stated link replaces what was measured. 1 MB on 2 ranks at 10 GB/s: factor 1, 100 us:
        # 150-250, 250-350, 360.
        (BASE, COSTS, {"links": Links(intra=TEN)}, 360, 150),
        # 4 nodes of 2: the ring moves 2 x 7/8 MB, 175 us; a hierarchy 20 inside and 2 x 3/4 MB
        # between, 170
        (
            BASE,
            COSTS,
            {"devices": 8, "per_node": 2, "links": Links(inter=TEN)},
            150 + 2 * 170 + 10,
            None,
        ),
        # The base's collectives took twice what the costs give, and so do those of 4 devices, 2 x
        # 15, an unused link or not.
        (BASE, HALF_COSTS, {"devices": 4}, 240, 30),
        (BASE, HALF_COSTS, {"devices": 4, "links": Links(inter=TEN)}, 240, 30),
        # However many times it is: 4 x 7.5.
        (BASE, QUARTER_COSTS, {"devices": 4}, 240, 30),
        # Contention: 20 us of each collective run next to computing in base and scenario alike; on
        # 4 devices 10 us more of the first bucket's 30 do, at half as much again: 5 us
        (replace(BASE, contention=HALF), COSTS, {}, 230, None),
        (replace(BASE, contention=HALF), COSTS, {"devices": 4}, 240 + 5, None),
        # Two workers share a link: 50 of the first's 100 us done at 200, half speed until 300; the
        # second's other 50 until 350
        (WORKERS, COSTS, {"links": Links(intra=TEN)}, 360, None),
        # Broadcasts of buffers go over the stated link, too.
        (WITH_BROADCAST, BOTH_COSTS, {"links": INFINITE}, 210, 0),
        # Micro-batches of a base that has some are run whole: both once more without reducing, 200.
        (TWO, COSTS, {}, 230, None),
        (TWO, COSTS, {"accumulate": 4}, 430, None),
    ],
)
def test_steps_by_pocket_calculation(
    base: Base, costs: Costs, scenario: dict[str, object], step_us: float, exposed_us: float | None
) -> None:
    found = predict(base, Scenario(**scenario), costs)  # type: ignore[arg-type]
    assert found.step_us == pytest.approx(step_us, abs=0.01)
    if exposed_us is not None:
        assert found.exposed_us == pytest.approx(exposed_us, abs=0.01)
    if base is BASE and exposed_us is not None and found.batch_size in base.single_us:
        assert found.efficiency == pytest.approx(1 - exposed_us / step_us)
    assert scenario != {"accumulate": 4} or found.batch_size == 16


def test_a_specification_bounds_from_one_side_and_a_reached_rate_does_not() -> None:
    """100 us a MB: 150-250, 250-350, optimizer 360; costs e^0.35 times as long are 42 us longer
    each, both in the open.
    """
    certain = replace(BASE, spread=0.0, method_error=0.0)

    def band(link: LinkRate) -> tuple[float, float]:
        found = predict(certain, Scenario(links=Links(intra=link)), COSTS)
        assert found.step_us == pytest.approx(360)
        return known(found.low_us), known(found.high_us)

    assert band(LinkRate(10.0, "fast", "sheet")) == pytest.approx(
        (360, 360 + 200 * math.expm1(0.35))
    )
    # as reached: 15% either way
    ends = [360 + 200 * math.expm1(by) for by in (-0.15, 0.15)]
    assert band(LinkRate(10.0, "fast", REACHED_RATE)) == pytest.approx(tuple(ends))


def test_costs_that_the_run_contradicts_are_said_to_and_widen_the_band() -> None:
    """On 4 devices 7.5 us a bucket by the costs and 30 as carried: the band reaches from the one to
    as many times more than the other, 150-270, 270-390, the optimizer to 400.
    """
    certain = replace(BASE, spread=0.0, method_error=0.0)
    found = predict(certain, Scenario(devices=4), QUARTER_COSTS)
    assert "all-reduces took 4 times their known cost" in str(found.rests_on)
    assert known(found.low_us) < 150 + 50 + 7.5 + 10
    assert known(found.high_us) > 400
    agreeing = predict(certain, Scenario(devices=4), COSTS)
    assert "their known cost" not in str(agreeing.rests_on)
    assert known(agreeing.high_us) < 300
    contrary = Costs(place=Place(2, 2), transfers={("all_reduce", 1e6): 2.0})
    refused = reason(costs=contrary, devices=4)
    assert refused.startswith("the band would be ")
    narrower = "the limit is 3: a calibration on 4 devices would narrow it"
    assert f"times either way; {narrower}; the run's own all-reduces took 10" in refused
    slow = Links(intra=LinkRate(0.5, "slow", "sheet"))
    stated = reason(costs=contrary, devices=4, links=slow)
    assert 'limit is 3: measure what slow reaches, and give --link "reached RATE"; ' in stated


def test_a_cap_that_cuts_the_gradients_as_before_changes_nothing_but_what_is_said() -> None:
    cap_mib = known(BASE.bucketing.cap_mib)
    alike = predict(BASE, Scenario(bucket_mb=1.01 * cap_mib), COSTS)
    stay = "all gradients (2.00 MB) stay in 2 buckets"
    assert replace(alike, rests_on=()) == replace(question(), rests_on=())
    assert alike.rests_on[-1] == stay
    apart = predict(BASE, Scenario(bucket_mb=100 * cap_mib), COSTS)
    assert stay not in apart.rests_on
    one = replace(BASE, profiles=(replace(PROFILE, bucket_ends=(1,), buckets=ONE_BUCKET),))
    one = replace(one, bucketing=Bucketing(cap_mib=100.0))
    assert replace(question(one, overlap=False), rests_on=()) == replace(question(one), rests_on=())


def test_a_scenario_without_any_effect_has_the_base_s_exposed_time() -> None:
    """Of 230 us two profiles compute for 210 and 170, which leaves 40 in their mean; each alone
    would leave 20 and 60."""
    quicker = profile(works([60.0, 50.0, 50.0, 10.0]), after=[2, 3], ends=(0, 1), step_us=190.0)
    sooner = [replace(one, ready_us=one.ready_us - 40, end_us=one.end_us - 40) for one in BUCKETS]
    sooner = [replace(one, start_us=one.start_us - 40) for one in sooner]
    profiles = (PROFILE, replace(quicker, buckets=tuple(sooner)))
    base = replace(BASE, profiles=profiles, exposed_us=38.0)
    assert question(base).exposed_us == pytest.approx(38)


@pytest.mark.parametrize("per_node", [1, 2, 3])
@pytest.mark.parametrize("base", [BASE, WITH_BROADCAST])
def test_more_nodes_shorten_no_step(base: Base, per_node: int) -> None:
    """Over a link without latency, whose rate bounds nothing; on one node the base's transfers take
    30 us on four devices."""
    on_one_node = predict(base, Scenario(devices=4), BOTH_COSTS)
    free = Links(inter=parse_link("100000000Gb/s"))
    spread = predict(base, Scenario(devices=4, per_node=per_node, links=free), BOTH_COSTS)
    assert spread.nodes > on_one_node.nodes == 1
    assert spread.step_us == on_one_node.step_us
    assert "no shorter than on one node, whose costs are transfers" in str(spread.rests_on)
    slow = Links(inter=parse_link("1GB/s"))
    slower = predict(base, Scenario(devices=4, per_node=per_node, links=slow), BOTH_COSTS)
    assert known(slower.step_us) > known(on_one_node.step_us)
    assert "no shorter" not in str(slower.rests_on)
    uneven = "layout: 1 node of 3 devices and one of 1" in str(slower.rests_on)
    assert uneven is (per_node == 3)


def test_half_of_the_bytes_on_the_same_devices_take_at_most_as_long() -> None:
    """However unlike their costs the base's collectives were: 10 to 20 us of each bucket."""
    certain = replace(BASE, spread=0.0, method_error=0.0)
    tenth = Costs(place=Place(2, 2), transfers={("all_reduce", 1e6): 2.0})
    found = predict(certain, Scenario(hook="fp16"), tenth)
    assert found.step_us == pytest.approx(220)
    assert known(found.low_us) == pytest.approx(220)
    assert known(found.high_us) == pytest.approx(230, rel=0.001)


def test_a_step_that_tracing_slowed_predicts_nothing() -> None:
    slowed = replace(BASE, slowed=2.04)
    expected = "tracing made a step 2.0x as long, so its parts are not reliable: trace"
    assert reason(slowed, devices=4).startswith(expected)
    assert slowed.left_us is None


def test_exposed_communication_is_what_computing_leaves() -> None:
    """210 of 230 us; half the bytes leave 10 of 220."""
    traced = replace(BASE, exposed_us=90.0)
    assert traced.left_us == pytest.approx(20)
    for scenario, left_us in (({}, 20), ({"hook": "fp16"}, 10), ({"devices": 4}, 30)):
        found = predict(traced, Scenario(**scenario), COSTS)
        assert found.exposed_us == pytest.approx(left_us)
    # another forward and backward computes for 200
    twice = predict(traced, Scenario(accumulate=2), COSTS)
    assert twice.exposed_us == pytest.approx(20)


def test_a_noisy_fit_is_named_wherever_it_is_used() -> None:
    """20 us of 1 MB at 50 GB/s."""
    lines = calibration({"all_reduce": (0.0, 50.0)})
    (fit,) = lines.fits
    noisy = msgspec.structs.replace(fit, prediction_relative_error=0.6)
    costs = Costs(calibration=msgspec.structs.replace(lines, fits=(noisy,)), place=Place(2, 2))
    expected = "NOISY FIT: the calibration's fit is off by up to 60% (all_reduce, 2 devices)"
    assert expected in str(predict(BASE, Scenario(bucket_mb=25.0), costs).rests_on)
    assert "NOISY" not in str(predict(BASE, Scenario(), costs).rests_on)
    quiet = Costs(calibration=lines, place=Place(2, 2))
    assert "NOISY" not in str(predict(BASE, Scenario(bucket_mb=25.0), quiet).rests_on)


def test_the_base_s_repeats_are_no_part_of_the_band_of_a_change() -> None:
    """Half the bytes leave 220 of 230 us, known up to the method's 3% however noisy the base."""
    for spread in (0.01, 0.5):
        noisy = replace(BASE, spread=spread, method_error=0.03)
        found = question(noisy, batch_size=4, hook="fp16", overlap=True)
        assert known(found.change_us) == pytest.approx(-10)
        assert known(found.change_high_us) == pytest.approx(220 * math.exp(0.03) - 230, abs=0.2)
    assert known(found.low_us) < 220 * math.exp(-0.49)


def test_the_base_itself_is_never_refused_for_its_band() -> None:
    """It was measured, however far its repeats lie apart."""
    unsure = replace(BASE, spread=math.log(4))
    assert question(unsure).step_us == pytest.approx(230)
    assert "the band would be" in str(question(unsure, devices=4).reason)


def test_bands_hold_the_value_and_grow_with_the_distance() -> None:
    widths = []
    for devices in (2, 4, 8, 16):
        found = predict(BASE, Scenario(devices=devices), COSTS)
        assert "transfers of the base on 2 devices" in str(found.rests_on)
        assert known(found.low_us) < known(found.step_us) < known(found.high_us)
        widths.append((known(found.high_us) - known(found.low_us)) / known(found.step_us))
    assert widths == sorted(widths)
    beyond = predict(BASE, Scenario(devices=32), COSTS)
    assert (beyond.step_us, beyond.low_us, beyond.high_us) == (None, None, None)
    assert (
        beyond.reason
        == "16x the largest measured count (2); the limit is 8x: measure 4 devices first"
    )


def test_refusals_say_why() -> None:
    assert "give --link" in reason(devices=8, per_node=2)
    assert "give every rank's trace" in reason(replace(BASE, lateness=Lateness()), devices=4)
    assert "all_to_all" in reason(replace(BASE, kinds=frozenset({"all_to_all"})))
    assert "something else changed" in reason(replace(BASE, single_us={4: 300.0}))
    assert "off its measured step" in reason(
        replace(BASE, profiles=(replace(PROFILE, step_us=200.0),))
    )
    assert "DDP's rule makes 1 bucket of" in reason(replace(BASE, bucketing=Bucketing(cap_mib=25)))
    assert "give --base-batch-size" in reason(replace(BASE, batch_size=None), batch_size=8)
    rates = (LinkRate(one, "a link", "sheet") for one in (25.0, 50.0))
    unlike = Interconnect(
        pairs=tuple(PairLink(0, other, rate=rate) for other, rate in enumerate(rates, start=1))
    )
    assert "differ in rate" in reason(costs=replace(COSTS, interconnect=unlike), devices=4)
    assert "ran on one device" in reason(replace(BASE, devices=1), devices=4)
    separate = (
        "2 micro-batches, which its trace does not separate: give --accumulate 2 or a multiple"
    )
    for scenario in ({"accumulate": 1}, {"accumulate": 3}, {"accumulate": 1, "batch_size": 8}):
        assert separate in reason(TWO, COSTS, **scenario)
    assert "7 samples cannot be cut into 2 equal micro-batches" in reason(
        accumulate=2, batch_size=7
    )
    huge = "a forward pass of 100,000 samples is too far from what one device was measured"
    assert huge in reason(HEAVY, batch_size=100_000)
    beyond = "too far from what one device was measured at (4, 8): 2 times beyond at most"
    assert beyond in reason(HEAVY, batch_size=1)
    assert "too far from what the base was measured at (4)" in reason(batch_size=9)
    cheaper = replace(HEAVY, single_us={4: 210.0, 8: 55.0})
    assert "0.06 ms: what a sample costs is not known" in reason(cheaper, batch_size=8)
    assert "powersgd is not modelled" in reason(replace(BASE, hook="powersgd"))
    unknown = replace(PROFILE, buckets=tuple(replace(one, bytes=float("nan")) for one in BUCKETS))
    unknown = replace(unknown, gradients=Gradients(np.ones(2), np.array([2, 3]), "interpolated"))
    assert "record_shapes" in reason(replace(BASE, profiles=(unknown,)), devices=4)


def test_whatever_is_changed_on_the_gpu_of_a_host_bound_step_is_limited_alike() -> None:
    table = works([10.0] * 4, host_us=[100.0] * 4)
    measured = tuple(
        MeasuredBucket(1e6, ready, ready, ready + 20, 0.0, 20.0) for ready in (210.0, 310.0)
    )
    # launches at 100 to 400, the last kernel until 410
    made: StepProfile = profile(table, after=[2, 3], ends=(0, 1), buckets=measured, step_us=410.0)
    bound = replace(BASE, profiles=(made,), step_us=made.step_us, single_us={})
    expected = "the CPU bounds this step: the GPU waits for launches in 90% of it"
    faster = Links(intra=LinkRate(100.0, "fast", REACHED_RATE))
    changes: tuple[dict[str, object], ...] = (
        {"bucket_mb": 50.0},
        {"hook": "fp16"},
        {"batch_size": 8},
        {"links": faster},
    )
    for scenario in changes:
        found = predict(bound, Scenario(**scenario), COSTS)  # type: ignore[arg-type]
        assert found.step_us == pytest.approx(410)
        assert str(found.limit).startswith(expected)


def test_more_processes_than_the_cores_of_their_host_are_told() -> None:
    """On two cores, four processes of the base's kind would need two cores more; eight on four
    hosts have theirs.
    """
    on_cores = replace(BASE, host_cores=2)
    limits = {count: predict(on_cores, Scenario(devices=count), COSTS).limit for count in (2, 4)}
    assert "this host, which has 2 cores" in str(limits[4])
    assert limits[2] is None
    assert predict(BASE, Scenario(devices=4), COSTS).limit is None
    spread = predict(
        on_cores, Scenario(devices=8, per_node=2, links=Links(inter=parse_link("10GB/s"))), COSTS
    )
    assert spread.step_us is not None
    assert spread.limit is None


def test_an_efficiency_needs_a_measured_step_of_one_device_at_the_batch() -> None:
    """Neither the replay without its other devices nor another batch is a baseline."""
    assert question().efficiency == pytest.approx(210 / 230)
    measured = question(HEAVY, batch_size=8)
    assert measured.efficiency == pytest.approx(360 / known(measured.step_us))
    three = replace(HEAVY, single_us={4: 210.0, 16: 660.0})
    for found in (
        question(replace(BASE, single_us={})),
        question(replace(BASE, single_us={32: 1000.0})),
        question(three, batch_size=8),
        question(accumulate=2),
    ):
        assert found.efficiency is None
        assert "no efficiency: no step of one device was measured" in str(found.rests_on)


def test_a_batch_that_one_device_was_not_measured_at_is_said_to_rest_on_a_line() -> None:
    three = replace(HEAVY, single_us={4: 210.0, 8: 360.0, 16: 660.0})
    basis = "compute at 6 samples, at which one device was not measured, by a line through 4 and 8"
    assert basis in str(predict(three, Scenario(batch_size=6), COSTS).rests_on)
    measured = predict(three, Scenario(batch_size=8), COSTS).rests_on
    assert "compute at 8 samples by one device's measured step" in str(measured)
    alone = predict(replace(HEAVY, single_us={4: 210.0}), Scenario(batch_size=8), COSTS).rests_on
    assert "compute at 8 samples by their number" in str(alone)


def test_a_smaller_batch_costs_at_least_its_share_of_the_smallest_measured_one() -> None:
    """Of 150 at 4 samples and 350 at 8 a line gives 50 at 2, less than half of 150: of 60 that no
    batch changes, 15 of 90 are left and not -10.
    """
    steep = replace(HEAVY, single_us={4: 150.0, 8: 350.0})
    found = predict(steep, Scenario(batch_size=2), COSTS)
    # a sixth of 50, 50 and 50: buckets ready at 16.7 and 25, of 20 each; the optimizer takes 60
    assert found.step_us == pytest.approx(50 / 3 + 20 + 20 + 60)
    assert known(found.high_us) > math.exp(0.10) * known(found.step_us)
    assert "a line through 4 and 8, but no less than in proportion" in str(found.rests_on)


def test_a_scenario_that_cannot_be_is_refused_when_it_is_made() -> None:
    with pytest.raises(DpscopeError, match="devices -3 is less than 1"):
        Scenario(devices=-3)
    with pytest.raises(DpscopeError, match="hook int8: choose from none, fp16, bf16, powersgd"):
        Scenario(hook="int8")


def question(base: Base = BASE, **scenario: object) -> Prediction:
    return predict(base, Scenario(**scenario), COSTS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "stated",
    [
        {"devices": 2},
        {"devices": 2, "per_node": 2},
        {"batch_size": 4},
        {"accumulate": 1, "batch_size": 4},
        {"bucket_mb": CAP.cap_mib},
        {"overlap": True},
        {"hook": "none"},
    ],
)
def test_what_is_stated_as_the_base_has_it_changes_nothing(stated: dict[str, object]) -> None:
    """Neither the step nor its band, to which unknown contention would add."""
    base = replace(BASE, contention=Contention())
    assert question(base, **stated) == question(base)
    assert question(base, overlap=False) != question(base)


def test_a_rank_that_is_no_longer_late_saves_what_the_others_wait_for_it() -> None:
    """Ranks 0 and 1 are ready at 150 and 200, rank 2 30 us later: 180-200, 230-250, the optimizer
    10. Without: 230.
    """
    late = tuple(replace(one, late_us=30.0, end_us=one.end_us + 30) for one in BUCKETS)
    waiting = [replace(PROFILE, rank=rank, buckets=late, step_us=260.0) for rank in (0, 1)]
    every = (
        *waiting,
        replace(PROFILE, rank=2, buckets=tuple(replace(one, late_us=0.0) for one in BUCKETS)),
    )
    base = replace(BASE, profiles=tuple(waiting), every=every, step_us=260.0, exposed_us=None)
    assert prediction(base, on_time=2)[:2] == pytest.approx((230, 20))
    # 50 us of ranks 0 and 1 and 20 of rank 2 are exposed: 40 in the mean, which 20 do not continue
    of_all = replace(base, exposed_us=40.0)
    assert prediction(of_all, on_time=2)[:2] == pytest.approx((230, 20))
    assert prediction(base, on_time=1)[0] == pytest.approx(260)
    needed = "no rank 7 was traced; ranks with traces: 0, 1, 2"
    assert needed in reason(base, on_time=7)


def test_a_refusal_has_the_most_that_a_rank_on_time_can_save() -> None:
    """Each of two ranks waits 30 ms for rank 2: 20 ms in the mean of three."""
    every = tuple(replace(PROFILE, rank=rank) for rank in range(3))
    base = replace(
        BASE, every=every, kinds=frozenset({"all_to_all"}), wait_by_rank_us={2: 20_000.0}
    )
    assert reason(base, on_time=2).endswith(
        "rank 2 on time saves at most 30.0 ms in each other rank"
    )
    assert "saves" not in reason(base, on_time=1)
    assert "saves" not in reason(base)
