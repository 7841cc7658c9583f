"""How much collectives and computing slow each other: ratios of medians, with intervals and counts."""

import msgspec
import pytest

from dpscope.analysis.costs.calibrated import contention_of, contention_ratios
from dpscope.profiling.records.calibration import Contention
from tests.helpers.run_cells import calibration

# medians 100, 160, 250 and 10, 13 us
TIMED = Contention(
    collective="all_reduce", devices=2, size_bytes=1 << 20,
    alone_us=(90.0, 100.0, 110.0), two_in_flight_us=(150.0, 160.0, 400.0), beside_compute_us=(240.0, 250.0, 260.0),
    compute_alone_us=(10.0, 10.0, 10.0), compute_beside_us=(12.0, 13.0, 14.0),
)  # fmt: skip


def test_ratios_of_medians_with_their_spread() -> None:
    ratios = contention_ratios(TIMED)
    assert ratios.two_in_flight.value == pytest.approx(1.6)
    assert ratios.beside_compute.value == pytest.approx(2.5)
    assert ratios.compute.value == pytest.approx(1.3)
    assert ratios.two_in_flight.low < 1.6 < ratios.two_in_flight.high <= 400 / 90
    assert (ratios.compute.low, ratios.compute.high, ratios.compute.count) == (1.2, 1.4, 3)
    assert ratios.summary.startswith("two in flight take 1.60x (")


def test_each_device_count_has_its_own() -> None:
    measured = msgspec.structs.replace(calibration({}), contention=(TIMED,))
    assert contention_of(measured, 2) == contention_ratios(TIMED)
    assert contention_of(measured, 4) is None
    assert contention_of(calibration({}), 2) is None
    assert contention_of(None, 2) is None
