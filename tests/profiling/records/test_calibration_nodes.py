"""A calibration over several nodes distinguishes two devices on one host from two devices on two hosts."""

import pytest

from dpscope.analysis.costs.calibration_fit import find_fit, fit_calibration
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.report.calibration import calibration_tables
from dpscope.profiling.records.calibration import Calibration, CalibrationPoint


def points(devices: int, us_per_kb: float, nodes: int | None) -> list[CalibrationPoint]:
    return [
        CalibrationPoint("all_reduce", devices, kb * 1000, kb * 250, "float32", (us_per_kb * kb,) * 5, nodes=nodes)
        for kb in (100, 200, 400)
    ]


def calibrated(*timed: CalibrationPoint) -> Calibration:
    made = Calibration(
        schema_version=1, dpscope_version="0", created_at="2026-01-01T00:00:00+00:00", source="measured", settings=None,
        backend="gloo", environment=None, device_names=("cpu", "cpu"), points=timed,
    )  # fmt: skip
    return fit_calibration(made)


BOTH = calibrated(*points(2, 1.0, None), *points(2, 40.0, 2))  # 1 GB/s within, 0.025 GB/s between


def test_cells_are_predicted_from_times_on_the_same_number_of_hosts() -> None:
    assert BOTH.spans(2) == {1, 2}
    sources = CostSources(calibration=BOTH)
    assert sources.cost("all_reduce", 2, 300_000) == pytest.approx(300)
    assert sources.on_nodes(2).cost("all_reduce", 2, 300_000) == pytest.approx(12_000)
    assert sources.on_nodes(3).calibrated(2) is None
    one, two = (find_fit(BOTH.on_nodes(nodes), "all_reduce", 2) for nodes in (1, 2))
    assert one is not None
    assert two is not None
    assert [fit.pieces[0].bandwidth_gb_per_s for fit in (one, two)] == pytest.approx([1.0, 0.025])


def test_a_calibration_without_nodes_is_unchanged() -> None:
    plain = calibrated(*points(2, 1.0, None))
    assert plain.on_nodes(1) is plain
    assert CostSources(calibration=plain).on_nodes(2).calibrated(2) is None


def test_tables_name_the_layout() -> None:
    titles = [table.title for table in calibration_tables(BOTH)]
    assert titles[:2] == ["all_reduce on 2 devices", "all_reduce on 2x1 devices"]
    (fits,) = [table for table in calibration_tables(BOTH) if table.title.startswith("Fit")]
    assert [row[1] for row in fits.rows] == ["2", "2x1"]
