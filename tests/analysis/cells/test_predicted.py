"""Predictions of a real run folder compared with its measurements, from calibrations that hold more
or less of what it used.
"""

import json
from datetime import datetime, timedelta

import msgspec
import pytest

from dpscope.analysis.output.run_json import run_json
from dpscope.analysis.report.build import make_report
from dpscope.analysis.runs.run_data import RunData
from dpscope.profiling.records.calibration import Calibration, Collective
from tests.helpers.examples import loaded, reported
from tests.helpers.run_cells import calibration

REDUCE: dict[Collective, tuple[float, float]] = {"all_reduce": (100.0, 1.0)}
BOTH: dict[Collective, tuple[float, float]] = {**REDUCE, "broadcast": (100.0, 1.0)}


@pytest.fixture(scope="module")
def run() -> RunData:
    return loaded()


def made(
    run: RunData, lines: dict[Collective, tuple[float, float]], later_s: float = -60.0
) -> Calibration:
    moment = datetime.fromisoformat(run.manifest.created_at) + timedelta(seconds=later_s)
    return msgspec.structs.replace(calibration(lines), created_at=moment.isoformat())


@pytest.mark.long
def test_a_calibration_of_all_reduces_predicts_them_and_names_what_it_lacks(run: RunData) -> None:
    report = make_report(run, calibration=made(run, REDUCE))
    assert not {"predictions", "collectives"} & set(reported().tables)  # without any source
    assert {"predictions", "collectives"} <= set(report.tables)
    rows = json.loads(run_json(report))["predictions"]
    reduced, rooted = (
        [row for row in rows if row["kind"] == kind] for kind in ("all_reduce", "broadcast")
    )
    assert reduced
    for row in reduced:  # 100 us + S / 1 GB/s
        assert row["predicted_us"] == pytest.approx(100 + row["size_bytes"] / 1e3)
        assert row["relative_error"] == pytest.approx(row["predicted_us"] / row["measured_us"] - 1)
    assert {(row["measured_us"], row["predicted_us"], row["relative_error"]) for row in rooted} == {
        (None, None, None)
    }
    assert {row["reason"] for row in rooted} == {"the calibration holds no broadcast on 2 ranks"}
    assert "calibration_incomplete" in {finding.code for finding in report.findings}


@pytest.mark.long
@pytest.mark.parametrize("later_s", [-1.0, 1.0])
def test_a_calibration_made_later_is_no_forecast(run: RunData, later_s: float) -> None:
    report = make_report(run, calibration=made(run, BOTH, later_s))
    notes = report.tables["predictions"].notes
    assert any("not forecasts" in note for note in notes) is (later_s > 0)
