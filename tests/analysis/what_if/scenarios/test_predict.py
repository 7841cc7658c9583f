"""Predictions from a base made by hand: values by pocket calculation, each source of costs, each refusal."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.what_if.replay.step_profile import (
    Bucketing,
    Gradients,
    MeasuredBucket,
    OtherCollective,
    StepProfile,
)
from dpscope.analysis.what_if.scenarios.collective_costs import Costs, Links
from dpscope.analysis.what_if.scenarios.predict import predict
from dpscope.analysis.what_if.scenarios.scenario import Base, Lateness, Scenario
from dpscope.profiling.machine.gpu_speed import HALF, HOST_LINK, MEMORY, TF32, gpu_speed
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.links import REACHED_RATE, LinkRate
from tests.helpers.known import known
from tests.helpers.replayed_steps import BASE, BUCKETS, COSTS, PROFILE, profile, works


def prediction(base: Base = BASE, costs: Costs = COSTS, **question: object) -> tuple[float, float, float]:
    """Step, exposed communication and efficiency."""
    found = predict(base, Scenario(**question), costs)  # type: ignore[arg-type]
    assert found.reason is None, found.reason
    return known(found.step_us), known(found.exposed_us), known(found.efficiency)


def reason(base: Base = BASE, costs: Costs = COSTS, **question: object) -> str:
    found = predict(base, Scenario(**question), costs)  # type: ignore[arg-type]
    assert found.step_us is None
    return found.reason or ""


@pytest.mark.parametrize(
    ("scenario", "step_us", "exposed_us"),
    [
        ({}, 230, 20),  # as measured
        ({"overlap": False}, 250, 40),  # one bucket is ready late: 2 MB at 20 us a MB, 200-240, optimizer to 250
        ({"bucket_mb": 25.0}, 250, 40),
        ({"hook": "fp16"}, 220, 10),  # half the bytes
        ({"devices": 4}, 240, 30),  # by the ring, factor 1 at 2, 2 x 3/4 at 4: 30 us each: 150-180, 200-230, 240
        ({"accumulate": 2}, 430, 20),  # another 200 of forward and backward
        # twice the samples: forward and backward 400, 20 exposed, optimizer 10; t_1 scales alike: 410 of 430, as 210 of 210
        ({"batch_size": 8}, 430, 20),
        ({"batch_size": 8, "accumulate": 2}, 430, 20),
        ({"faster": 2.0}, 100 + 20 + 5, 20),  # compute alone
    ],
)
def test_steps_by_pocket_calculation(scenario: dict[str, object], step_us: float, exposed_us: float) -> None:
    assert prediction(BASE, COSTS, **scenario) == pytest.approx((step_us, exposed_us, 1 - exposed_us / step_us))


def test_a_stated_link_replaces_what_was_measured() -> None:
    # 1 MB on 2 ranks at 10 GB/s: factor 1, 100 us; ready 150 and 200: 250, 350, optimizer 360
    slow = Links(intra=parse_link("10GB/s"))
    assert prediction(links=slow)[:2] == pytest.approx((360, 150))
    # 4 nodes of 2 on 10 GB/s: the ring moves 2 x 7/8 MB, 175 us; a hierarchy 20 inside and 2 x 3/4 MB between, 170
    between = Links(inter=parse_link("10GB/s"))
    assert prediction(devices=8, per_node=2, links=between)[0] == pytest.approx(150 + 2 * 170 + 10)


def test_a_link_that_is_not_used_changes_nothing() -> None:
    """The base's collectives took twice what the costs give, 20 for 10, and so do those of 4 devices: 2 x 15."""
    costs = Costs(2, 2, {("all_reduce", 1e6): 10.0})
    assert prediction(costs=costs, devices=4)[0] == pytest.approx(240)
    assert prediction(costs=costs, devices=4, links=Links(inter=parse_link("10GB/s")))[0] == pytest.approx(240)


A100 = "NVIDIA A100-SXM4-40GB"
ON_DEVICE = replace(
    profile(
        replace(works([100.0, 50.0, 50.0, 10.0], [1.0] * 4), bounds=np.array([TF32, HALF, MEMORY, HOST_LINK])),
        after=[2, 3],
        ends=(0, 1),
        first_host_us=0.0,
    ),
    buckets=BUCKETS,
    step_us=230.0,
)


def test_another_gpu_scales_each_kernel_by_what_bounds_it() -> None:
    # A100 to H100: TF32 156 / 495 TFLOP/s, half 312 / 989, memory 1555 / 3350 GB/s; a copy from the host takes as long as before:
    # 31.5, 15.8, 23.2 and 10 us. Buckets are ready at 47.3 and 70.5 us and take 20: 90.5, and the last 10.
    base = replace(BASE, profiles=(ON_DEVICE,), device_name=A100)
    found = predict(base, Scenario(gpu=gpu_speed("H100 SXM")), COSTS)
    assert found.step_us == pytest.approx(100.5, abs=0.2)
    assert known(found.low_us) < 100.5 * 0.89  # published predictors err by 12%
    assert predict(base, Scenario(gpu=gpu_speed(A100)), COSTS).step_us == pytest.approx(230.0)


def test_another_gpu_is_refused_where_the_base_does_not_name_its_own() -> None:
    question = gpu_speed("H100 SXM5")
    assert "computed on a CPU" in reason(gpu=question)
    unnamed = replace(BASE, profiles=(ON_DEVICE,))
    assert "do not name the base's GPU" in reason(unnamed, gpu=question)
    assert "no specification of the base's GTX 970" in reason(replace(unnamed, device_name="GTX 970"), gpu=question)


def test_lateness_grows_with_the_ranks() -> None:
    late = replace(BASE, lateness=Lateness((0.0, 0.0), (-10.0, 10.0) * 4))
    # from 2 to 8 ranks: (1.424 - 0.589) x 10 us later, by Blom's approximation
    still, more = prediction(devices=8)[0], prediction(late, devices=8)[0]
    assert more - still == pytest.approx(8.4, abs=0.3)
    # stated as 10% of a step of 230: 23 us x 1.424
    assert prediction(devices=8, jitter=0.1)[0] - still == pytest.approx(32.8, abs=0.3)


def test_contention_counts_for_what_a_scenario_adds() -> None:
    # 20 us of each collective run next to computing in base and scenario alike: nothing changes; on 4 devices 10 us more of the
    # first bucket's 30 do, at half as much again: 5 us
    loaded = replace(BASE, gamma=0.5)
    assert prediction(loaded)[0] == pytest.approx(230)
    assert prediction(loaded, devices=4)[0] == pytest.approx(240 + 5)


def test_two_in_flight_share_bytes_unless_measured_to_do_otherwise() -> None:
    """Two workers; a MB takes 40 us of latency and 90 of bytes alone; ready at 150 and 200, the optimizer takes 10."""
    workers = replace(BASE, profiles=(replace(PROFILE, servers=2),))
    costs = replace(COSTS, traced={("all_reduce", 1e6): 20.0, ("all_reduce", 2e6): 30.0})  # 10 of latency, 10 a MB
    more = {"latency_factor": 4.0, "transfer_factor": 9.0}
    # assumed: latencies in parallel, bytes share. The first moves from 190, at 240 it has 40 left and the second begins to
    # move: both at half speed until 320, when the second has 50 left, until 370
    assert prediction(workers, costs, **more)[0] == pytest.approx(380)
    # a link that one alone does not fill: 150-280, 200-330
    apart = replace(workers, slowdown=1.0, slowdown_measured=True)
    assert prediction(apart, costs, **more)[0] == pytest.approx(340)
    # measured, it is of whole calls: 80 of 130 left at 200, until 200 + 96; the second's other 50 until 346
    between = replace(workers, slowdown=1.2, slowdown_measured=True)
    assert prediction(between, costs, **more)[0] == pytest.approx(356)


def test_a_stated_link_is_filled_by_one_collective_alone() -> None:
    """Whatever two in flight did on the measured one. 1 MB at 10 GB/s: 50 done at 200, half speed until 300; 50 more, 350."""
    workers = replace(BASE, profiles=(replace(PROFILE, servers=2),), slowdown=1.0, slowdown_measured=True)
    assert prediction(workers, links=Links(intra=parse_link("10GB/s")))[0] == pytest.approx(360)


def test_a_specification_bounds_from_one_side_and_a_reached_rate_does_not() -> None:
    """100 us a MB: 150-250, 250-350, optimizer 360; costs e^0.35 times as long are 42 us longer each, both in the open."""
    certain = replace(BASE, spread=0.0, method_error=0.0)

    def band(link: LinkRate) -> tuple[float, float]:
        found = predict(certain, Scenario(links=Links(intra=link)), COSTS)
        assert found.step_us == pytest.approx(360)
        return known(found.low_us), known(found.high_us)

    assert band(LinkRate(10.0, "fast", "sheet")) == pytest.approx((360, 360 + 200 * math.expm1(0.35)))
    # as reached: 15% either way
    ends = [360 + 200 * math.expm1(by) for by in (-0.15, 0.15)]
    assert band(LinkRate(10.0, "fast", REACHED_RATE)) == pytest.approx(tuple(ends))


def test_what_is_assumed_of_collectives_beside_others_widens_the_band() -> None:
    certain = replace(BASE, spread=0.0, method_error=0.0, profiles=(replace(PROFILE, servers=2),))

    def band(base: Base) -> tuple[float, float]:
        found = predict(base, Scenario(transfer_factor=5.0), replace(COSTS, traced={("all_reduce", 1e6): 20.0}))
        return known(found.low_us), known(found.high_us)

    assert band(certain) == pytest.approx((360, 360))  # as above, by costs as measured
    assert band(replace(certain, slowdown_band=(1.0, 2.0))) == pytest.approx((310, 360))  # or 150-250, 200-300
    # one stream, 20 us each: on the base 20 of computing run next to the first, in a scenario of 50 us a bucket 50 do
    stream = replace(BASE, spread=0.0, method_error=0.0, gamma_band=(0.0, 0.3))
    found = predict(stream, Scenario(transfer_factor=2.5), COSTS)
    assert found.step_us == pytest.approx(260)
    assert (found.low_us, found.high_us) == pytest.approx((260, 260 + 0.3 * (50 - 20)))


def test_bands_hold_the_value_and_grow_with_the_distance() -> None:
    widths = []
    for devices in (2, 4, 8, 16):
        found = predict(BASE, Scenario(devices=devices), COSTS)
        assert known(found.low_us) < known(found.step_us) < known(found.high_us)
        widths.append((known(found.high_us) - known(found.low_us)) / known(found.step_us))
    assert widths == sorted(widths)
    beyond = predict(BASE, Scenario(devices=32), COSTS)
    assert beyond.step_us is None
    assert beyond.low_us is not None
    assert "16x the largest measured count (2): no number" in (beyond.reason or "")
    unknowable = predict(BASE, Scenario(devices=129), COSTS)
    assert (unknowable.step_us, unknowable.low_us, unknowable.high_us) == (None, None, None)
    assert unknowable.reason == "64x the largest measured count (2): no number and no range"


def test_sources_are_named() -> None:
    assert "transfers of the base on 2 devices" in (predict(BASE, Scenario(), COSTS).rests_on or "")
    stated = predict(BASE, Scenario(links=Links(intra=parse_link("10GB/s"))), COSTS)
    assert "specification, so the step is at least this" in (stated.rests_on or "")


def test_refusals_say_why() -> None:
    assert "give --inter" in reason(devices=8, per_node=2)
    assert "give every rank's trace, or --jitter" in reason(replace(BASE, lateness=Lateness()), devices=4)
    assert "all_to_all" in reason(replace(BASE, kinds=frozenset({"all_to_all"})))
    assert "something else changed" in reason(replace(BASE, single_us={4: 300.0}))
    assert "off its measured step" in reason(replace(BASE, profiles=(replace(PROFILE, step_us=200.0),)))
    assert "DDP's rule makes 1 bucket of" in reason(replace(BASE, bucketing=Bucketing(cap_mib=25)))
    assert "give --base-batch-size" in reason(replace(BASE, batch_size=None), batch_size=8)
    assert "differ in rate" in reason(costs=replace(COSTS, alike=False), devices=4)
    assert "ran on one device" in reason(replace(BASE, devices=1), devices=4)
    assert "powersgd is not modelled" in reason(replace(BASE, hook="powersgd"))


def test_a_host_bound_step_tells_nothing_of_links() -> None:
    table = works([10.0] * 4, host_us=[100.0] * 4)
    made: StepProfile = profile(table, after=[2, 3], ends=(0, 1), buckets=BUCKETS, step_us=400.0)
    measured = [MeasuredBucket(1e6, ready, ready, ready + 20, 0.0, 20.0) for ready in (210.0, 310.0)]
    made = replace(made, buckets=tuple(measured), step_us=410.0)  # launches at 100 to 400, the last kernel until 410
    bound = replace(BASE, profiles=(made,), step_us=made.step_us, single_us={})
    assert "the host bounds this step" in reason(bound, links=Links(intra=parse_link("10GB/s")))
    bound = replace(bound, ledger=Ledger(410.0, 40.0, 0.0, 0.0, 0.0, 370.0))
    assert predict(bound, Scenario(), COSTS).bound_by == "idle"


def test_data_parallel_moves_parameters_and_gradients_in_the_open() -> None:
    costs = replace(COSTS, traced={("broadcast", 1e6): 10.0, ("reduce", 1e6): 10.0})
    # 2 MB each way at 10 us a MB: 40; forward, backward, optimizer 210
    assert prediction(costs=costs, strategy="dp")[0] == pytest.approx(250)
    assert "no broadcast was measured" in reason(strategy="dp")


def test_sizes_of_gradients_that_are_not_known_are_asked_for() -> None:
    unknown = replace(PROFILE, buckets=tuple(replace(one, bytes=float("nan")) for one in BUCKETS))
    unknown = replace(unknown, gradients=Gradients(np.ones(2), np.array([2, 3]), "unknown"))
    assert "record_shapes" in reason(replace(BASE, profiles=(unknown,)), devices=4)


def test_more_processes_than_the_cores_of_their_host_are_told() -> None:
    """On two cores, four processes of the base's kind would need two cores more; eight on four hosts have theirs."""
    on_cores = replace(BASE, host_cores=2)
    said_of = {count: str(predict(on_cores, Scenario(devices=count), COSTS).rests_on) for count in (2, 4)}
    assert "a host here has 2 in all" in said_of[4]
    assert "in all" not in said_of[2]
    assert "in all" not in str(predict(BASE, Scenario(devices=4), COSTS).rests_on)
    spread = predict(on_cores, Scenario(devices=8, per_node=2, links=Links(inter=parse_link("10GB/s"))), COSTS)
    assert spread.step_us is not None
    assert "in all" not in str(spread.rests_on)


BROADCAST = OtherCollective("broadcast", 1e5, 0, 30.0, blocks=True)
WITH_BROADCAST = replace(
    BASE,
    profiles=(replace(PROFILE, others=(BROADCAST,), step_us=260.0),),
    step_us=260.0,
    ledger=Ledger(260.0, 210.0, 0.0, 20.0, 30.0, 0.0, other_by_kind_us={"broadcast": 30.0}),
)
INFINITE = Links(intra=parse_link("100000000Gb/s"))


def test_broadcasts_of_buffers_go_over_the_stated_link_too() -> None:
    costs = Costs(2, 2, {("all_reduce", 1e6): 20.0, ("broadcast", 1e5): 30.0})
    assert prediction(base=WITH_BROADCAST, costs=costs, links=INFINITE)[:2] == pytest.approx((210, 0), abs=0.01)
    assert prediction(base=WITH_BROADCAST, costs=costs, transfer_factor=0.0)[:2] == pytest.approx((210, 0), abs=0.01)


def test_what_an_infinite_link_leaves_exposed_is_named() -> None:
    """Where the cost of a broadcast there is unknown, it stays as measured: 30 us, and the answer states it."""
    left = predict(WITH_BROADCAST, Scenario(links=INFINITE), COSTS)
    assert left.exposed_us == pytest.approx(30.0, abs=0.01)
    assert "broadcast as measured: what they cost there is not known" in (left.rests_on or "")
    assert "no rate removes, of what is exposed: 30.0 µs broadcast" in (left.rests_on or "")
    late = replace(PROFILE, buckets=tuple(replace(one, late_us=5.0) for one in BUCKETS), step_us=235.0)
    base = replace(BASE, profiles=(late,), step_us=235.0, ledger=Ledger(235.0, 210.0, 5.0, 20.0, 0.0, 0.0))
    waiting = predict(base, Scenario(links=INFINITE), COSTS)
    assert "5.00 µs waiting for late ranks" in (waiting.rests_on or "")
    assert "no rate removes" not in (predict(BASE, Scenario(), COSTS).rests_on or "")
