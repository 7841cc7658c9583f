"""Rates of links as stated, by NVML or calibrated; costs over several nodes; ratios of contention.
By hand.
"""

import msgspec
import pytest

from dpscope.analysis.costs.calibration_fit import fit_calibration
from dpscope.analysis.costs.contention import contention_of, contention_ratios
from dpscope.analysis.costs.cost import Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.costs.data_sheet import RingRate, ring_rate
from dpscope.analysis.stats.missing import Missing
from dpscope.profiling.machine.interconnect import interconnect
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.calibration import Contention
from dpscope.profiling.records.links import Interconnect
from tests.helpers.known import known
from tests.helpers.nvml_records import ReplayedNvml
from tests.helpers.paths import DATA
from tests.helpers.run_cells import calibration, timed


def recorded(machine: str) -> Interconnect:
    """The links of a machine whose GPUs torch all sees, in NVML's order."""
    nvml = ReplayedNvml(DATA / "nvml" / f"{machine}.json")
    return interconnect(nvml, [device.uuid or "" for device in interconnect(nvml).devices])


def all_reduce_rate(costs: Costs, devices: int, nodes: int = 1) -> RingRate | None:
    return ring_rate(costs, "all_reduce", Place(devices, devices // nodes))


def rates(costs: Costs, counts: tuple[int, ...], nodes: int = 1) -> dict[int, float | None]:
    found = {count: all_reduce_rate(costs, count, nodes) for count in counts}
    return {
        count: None if rate is None else round(rate.gb_per_s, 3) for count, rate in found.items()
    }


def exact_us(costs: Costs, devices: int, nodes: int, size_bytes: float) -> float | None:
    """What a measured all-reduce is compared with; None where that is not known."""
    try:
        return costs.cost(
            "all_reduce", size_bytes, Place(devices, devices // nodes), exact=True
        ).total_us
    except Missing:
        return None


def test_the_slowest_pair_of_each_device_count_bounds_its_ring() -> None:
    # 4 A100 PCIe, bridged in pairs: two by 12 NVLinks of 25 GB/s, more by PCIe 4.0 x16, 16 x 128 /
    # 130 / 8 x 16
    bridged = Costs(interconnect=recorded("a100_pcie_x4_bridged"))
    assert rates(bridged, (2, 4)) == {2: 300.0, 4: 31.508}
    # DGX-1V: GPU 0 has 2 links to GPU 3 and 1 to GPUs 1 and 2; all 8 have 6 links of 25 GB/s
    assert rates(Costs(interconnect=recorded("v100_sxm2_x8")), (8, 16)) == {8: 150.0, 16: None}


def test_what_is_stated_counts_before_nvml_and_both_before_a_calibration() -> None:
    measured = calibration({"all_reduce": (0.0, 10.0)})
    links = recorded("h100_sxm5_x2")
    found = [
        all_reduce_rate(Costs(parse_link("100Gb/s"), measured, links), 2),
        all_reduce_rate(Costs(None, measured, links), 2),
        all_reduce_rate(Costs(None, measured), 2),
        all_reduce_rate(Costs(), 2),
    ]
    assert [rate and (rate.gb_per_s, rate.source) for rate in found] == [
        (12.5, "specification"), (450.0, "specification"), (10.0, "calibration"), None,
    ]  # fmt: skip
    descriptions = [rate.description for rate in found if rate is not None]
    assert "stated with --link" in descriptions[0]
    assert descriptions[1].startswith("NVLink 4 x18, 450 GB/s one way: NVML names the link")
    assert (
        descriptions[2]
        == "10 GB/s, the bus bandwidth by the calibration's fit at 268.4 MB (no link is known)"
    )


def test_the_calibrated_rate_gives_back_the_time_that_was_calibrated() -> None:
    """4 ranks, 100 us + S / 10 GB/s, largest size 1e6 B: 200 us, 5 GB/s, bus bandwidth 5 x 2 x 3/4
    = 7.5 GB/s.
    """
    costs = Costs(
        calibration=calibration({"all_reduce": (100.0, 10.0)}, devices=4, largest=1_000_000)
    )
    rate = known(all_reduce_rate(costs, 4))
    assert rate.gb_per_s == pytest.approx(7.5)
    assert "7.5 GB/s, the bus bandwidth by the calibration's fit at 1.00 MB" in rate.description
    assert all_reduce_rate(costs, 2) is None  # 2 ranks were not calibrated
    assert all_reduce_rate(Costs(calibration=calibration({"broadcast": (1.0, 1.0)})), 2) is None


def test_the_calibrated_rate_is_of_the_fastest_rank_as_the_transfers_that_judge_it() -> None:
    """2 ranks, bus factor 1: the fastest take S / 2 GB/s, the slowest twice as long."""
    points = []
    for point in timed(2, 0.0, 2.0, (1000, 100_000, 1_000_000)):
        slowest_us = tuple(2 * time_us for time_us in point.times_us)
        points.append(
            msgspec.structs.replace(point, times_us=slowest_us, shortest_us=point.times_us)
        )
    unfitted = msgspec.structs.replace(calibration({}), points=tuple(points))
    measured = fit_calibration(unfitted)
    rate = known(all_reduce_rate(Costs(calibration=measured), 2))
    assert rate.gb_per_s == pytest.approx(2.0, rel=1e-3)
    assert rate.description.startswith(
        "2 GB/s, the fastest rank's bus bandwidth by the calibration's fit at 1.00 MB, 2 as measured"
    )


def test_a_calibration_of_one_node_predicts_no_cell_over_two() -> None:
    """1 x 4 GPUs are not 2 x 2: neither what one host's links are specified for nor what was timed
    on it holds.
    """
    measured = calibration({"all_reduce": (0.0, 10.0)}, devices=4)
    costs, two = Costs(None, measured, recorded("a100_sxm4_x4")), Place(4, 2)
    assert (costs.basis(Place(4, 4)), costs.basis(two)) == ("calibration", None)
    assert exact_us(costs, 4, 1, 1e6) == pytest.approx(100.0)
    assert exact_us(costs, 4, 2, 1e6) is None
    assert (rates(costs, (4,)), rates(costs, (4,), nodes=2)) == ({4: 300.0}, {4: None})
    assert costs.no_basis(two).startswith("no calibration timed 4 devices over 2 nodes")
    # What is stated holds for the cells it is stated for: 100 Gb/s are 12.5 GB/s.
    assert rates(Costs(parse_link("100Gb/s"), measured), (4,), nodes=2) == {4: 12.5}


# medians 100, 160, 250 and 10, 13 us
TIMED = Contention(
    collective="all_reduce", devices=2, size_bytes=1 << 20,
    alone_us=(90.0, 100.0, 110.0), two_in_flight_us=(150.0, 160.0, 400.0), beside_compute_us=(240.0, 250.0, 260.0),
    compute_alone_us=(10.0, 10.0, 10.0), compute_beside_us=(12.0, 13.0, 14.0),
)  # fmt: skip


def test_ratios_of_medians_with_their_spread_of_each_device_count() -> None:
    ratios = contention_ratios(TIMED)
    values = (ratios.two_in_flight.value, ratios.beside_compute.value, ratios.compute.value)
    assert values == pytest.approx((1.6, 2.5, 1.3))
    assert ratios.two_in_flight.low < 1.6 < ratios.two_in_flight.high <= 400 / 90
    assert (ratios.compute.low, ratios.compute.high, ratios.compute.count) == (1.2, 1.4, 3)
    assert ratios.summary.startswith("two in flight take 1.60x (")
    measured = msgspec.structs.replace(calibration({}), contention=(TIMED,))
    assert contention_of(measured, 2) == ratios
    assert (
        contention_of(measured, 4)
        is contention_of(calibration({}), 2)
        is contention_of(None, 2)
        is None
    )
