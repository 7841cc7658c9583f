"""Predictions of a real run folder compared with its measurements, from calibrations that hold more
or less of what it used.
"""

from datetime import datetime, timedelta

import msgspec
import pytest

from dpscope.analysis.report.build import make_report
from dpscope.analysis.runs.run_data import RunData
from dpscope.profiling.records.calibration import Calibration, Collective
from tests.helpers.examples import loaded
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
@pytest.mark.parametrize("later_s", [-1.0, 1.0])
def test_a_calibration_made_later_is_no_forecast(run: RunData, later_s: float) -> None:
    report = make_report(run, calibration=made(run, BOTH, later_s))
    notes = report.tables["predictions"].notes
    assert any("not forecasts" in note for note in notes) is (later_s > 0)
