"""What a calibration over several nodes gives for a base that was measured on one, and vice versa.
Expected by hand.
"""

from dataclasses import replace as replace_dataclass

import pytest
from msgspec.structs import replace

from dpscope.analysis.costs.between_nodes import best_way
from dpscope.analysis.costs.collective_forecast import forecasts
from dpscope.analysis.costs.contention import contention_of
from dpscope.analysis.costs.cost import Cost, Links, Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.costs.node_rates import rate_between
from dpscope.analysis.stats.missing import Missing
from dpscope.profiling.records.calibration import Calibration, Contention
from dpscope.profiling.records.links import LinkRate
from tests.helpers.known import known
from tests.helpers.run_cells import fitted, timed

SIZE = 1_000_000
AS_MEASURED = Links()
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


WITHIN = timed(2, 10.0, 10.0, SIZES)
# 2x2: bus bandwidth 1e7 B / 10,100 us x 2 x 3/4 = 1.485 GB/s
ACROSS = timed(4, 100.0, 1.0, SIZES, nodes=2)
BOTH = fitted(WITHIN, ACROSS)


def costs(every: Calibration | None = BOTH, devices: int = 2, per_node: int = 2) -> Costs:
    return Costs(calibration=every, place=Place(devices, per_node))


def cost(question: Costs, devices: int, per_node: int, links: Links = AS_MEASURED) -> Cost:
    return question.cost("all_reduce", SIZE, Place(devices, per_node), links)


def why_not(question: Costs, devices: int, per_node: int, links: Links = AS_MEASURED) -> str:
    with pytest.raises(Missing) as unknown:
        cost(question, devices, per_node, links)
    return str(unknown.value)


def test_a_layout_that_was_calibrated_is_taken_as_it_is() -> None:
    found = cost(costs(), 4, 2)
    assert found.total_us == pytest.approx(100 + 1000, rel=0.01)
    assert found.words == "calibrated on 2x2 devices"


def test_a_cost_held_to_what_was_measured_keeps_its_share_of_latency() -> None:
    modelled = replace_dataclass(
        cost(costs(), 4, 2), latency_us=10.0, transfer_us=30.0, low_us=20.0, high_us=80.0
    )
    measured = modelled.between(80.0, 80.0)
    assert (measured.latency_us, measured.transfer_us) == (20.0, 60.0)
    assert (measured.low_us, measured.high_us) == (80.0, 80.0)
    inside = modelled.between(30.0, 60.0)
    assert (inside.total_us, inside.low_us, inside.high_us) == (40.0, 30.0, 60.0)


def test_latency_at_a_calibrated_count_has_the_share_of_the_reports_fit() -> None:
    """10 us + 1 MB / 10 GB/s on two devices and 300 us + 1.5 MB / 10 GB/s on four, where no a + b
    log2(n) has both latencies.
    """
    several = fitted(WITHIN, timed(4, 300.0, 10.0 / 1.5, SIZES))
    for devices, latency_us, transfer_us in ((2, 10.0, 100.0), (4, 300.0, 150.0)):
        found = cost(costs(several, devices, devices), devices, devices)
        assert (found.latency_us, found.transfer_us) == pytest.approx(
            (latency_us, transfer_us), rel=0.01
        )


def test_more_nodes_with_as_many_devices_are_carried() -> None:
    """Latency by 1 + 0.3 log2(nodes), assumed with one count, transfer by 2 x 7/8 over 2 x 3/4."""
    found = cost(costs(), 8, 2)
    assert found.total_us == pytest.approx(100 * 1.6 / 1.3 + 1000 * 1.75 / 1.5, rel=0.001)
    assert found.words == "calibrated on 2x2 devices, extrapolated to 4x2 by a law"
    both = fitted(WITHIN, ACROSS, timed(8, 200.0, 0.8, SIZES, nodes=4))
    assert cost(costs(both), 8, 2).words == "calibrated on 4x2 devices"
    assert (
        cost(costs(both), 16, 2).words
        == "calibrated on 2x2, 4x2 devices, extrapolated to 8x2 by a law"
    )


def test_other_numbers_of_devices_on_a_node_rest_on_the_rate_between_nodes() -> None:
    """Within four devices from two, 10 x 1.6 / 1.3 + 1.5 x 100; between two nodes 2 hops of 100/6
    and S / rate.
    """
    rate = known(rate_between(BOTH))
    assert str(rate.place) == "2x2"
    assert rate.gb_per_s == pytest.approx(1e7 / 10_100 / 1e3 * 1.5)
    found = cost(costs(), 8, 4)
    assert found.total_us == pytest.approx(
        16 / 1.3 + 150 + 2 * 100 / 6 + 1e6 / (rate.gb_per_s * 1e3), rel=0.02
    )
    assert found.words == "the rate between nodes calibrated on 2x2, hierarchy"


def test_contention_is_that_of_as_many_nodes() -> None:
    def under_load(nodes: int | None, slower: float) -> Contention:
        alone = (100.0,) * 5
        return Contention(
            "all_reduce",
            2,
            SIZE,
            alone,
            alone,
            alone,
            alone,
            tuple(slower * one for one in alone),
            nodes,
        )

    both = fitted(WITHIN, timed(2, 0.0, 0.5, SIZES, nodes=2))
    loaded = Calibration(
        **{name: getattr(both, name) for name in both.__struct_fields__ if name != "contention"},
        contention=(under_load(None, 1.5), under_load(2, 3.0)),
    )
    found = [contention_of(loaded.on_nodes(nodes), 2) for nodes in (1, 2)]
    assert [one and one.compute.value for one in found] == [pytest.approx(1.5), pytest.approx(3.0)]


FAST, SLOW = LinkRate(10.0, "fast", "sheet"), LinkRate(0.01, "slow", "sheet")


@pytest.mark.parametrize("inside", [8, 4, 3, 1])
def test_a_ring_and_a_tree_are_candidates_on_every_layout(inside: int) -> None:
    """8 devices at 10 GB/s: few bytes take a tree's 6 hops, many a ring's 14 and 2 x 7/8 of them."""
    few = known(best_way("all_reduce", 1.0, 8, inside, 10.0, 1e4, None))
    many = known(best_way("all_reduce", 1e9, 8, inside, 10.0, 1e4, None))
    assert (few.name, few.latency_us) == ("tree", 60.0)
    assert (many.name, many.latency_us) == ("ring", 140.0)
    assert (few.transfer_us, many.transfer_us) == pytest.approx((2e-4, 175_000))


def test_a_stated_link_within_a_node_counts_over_several_nodes() -> None:
    """2x2 by a hierarchy: two hops of 100/6 and 1 MB at 10 GB/s between, 10 us and 1 MB at 10 GB/s
    within; a ring takes 7 us more, a tree of four hops 24.

    With a slow link within: two hops between, 1 MB at 10 GB/s, two hops of 5 within, 1 MB at 0.01
    GB/s."""
    fast = cost(costs(), 4, 2, Links(inter=FAST))
    assert fast.total_us == pytest.approx(100 / 3 + 100 + 110, rel=0.005)
    slow = cost(costs(), 4, 2, Links(SLOW, FAST))
    assert slow.total_us == pytest.approx(100 / 3 + 10 + 100_000 + 100, rel=0.001)
    assert "; within a node slow: specification" in slow.words
    # what was timed over several nodes holds the old links: the rate between them and the stated
    # one, 33 + 110 + 673
    alone = cost(costs(), 4, 2, Links(intra=FAST))
    assert alone.total_us == pytest.approx(100 / 3 + 110 + 1e6 / 1485, rel=0.02)
    assert "the rate between nodes calibrated on 2x2, hierarchy; within a node fast" in alone.words
    assert "give --link" in why_not(costs(fitted(WITHIN)), 4, 2, Links(intra=FAST))


def test_a_carried_cost_is_that_of_calibrate_predict() -> None:
    """The time, its band, and the refusal where the band is too wide."""
    every = fitted(WITHIN, ACROSS, timed(8, 200.0, 0.8, SIZES, nodes=4))
    for nodes in (8, 16):
        (forecast,) = [
            one for one in forecasts(every, [(2 * nodes, None)]) if one.size_bytes == SIZE
        ]
        found = cost(costs(every), 2 * nodes, 2)
        assert (found.total_us, found.low_us, found.high_us) == (
            forecast.time_us,
            forecast.low_us,
            forecast.high_us,
        )
        assert found.words == forecast.source
    (forecast,) = [one for one in forecasts(every, [(4096, None)]) if one.size_bytes == SIZE]
    reason = why_not(costs(every), 4096, 2)
    assert forecast.source == f"not known: {reason}"
    assert reason.startswith(
        "all_reduce calibrated on 2x2, 4x2 devices: 512 times beyond the measured counts: "
    )


def test_a_size_between_calibrated_ones_costs_what_the_columns_of_the_report_have() -> None:
    """By the fit, which 5 calls at 100 kB that took 1.2 times as long hardly bend; its band is the
    fit's error of prediction.
    """
    slow = [
        replace(one, times_us=(1.2 * 20.0,) * 5) if one.size_bytes == 100_000 else one
        for one in WITHIN
    ]
    sizes = (*SIZES, 30_000_000)
    within = [*slow, *timed(2, 10.0, 10.0, sizes[4:])]
    question = costs(fitted(within))
    in_whatif = question.cost("all_reduce", 300_000, Place(2, 2))
    in_a_column = question.cost("all_reduce", 300_000, Place(2, 2), exact=True)
    assert in_whatif == in_a_column
    assert in_whatif.total_us == pytest.approx(10 + 30, rel=0.02)
    fit = known(question.fit("all_reduce", Place(2, 2)))
    error = known(fit.prediction_relative_error)
    assert in_whatif.high_us / in_whatif.total_us == pytest.approx(1 / (1 - error))
