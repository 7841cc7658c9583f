"""Predictions of a real run folder compared with its measurements, from calibrations that hold more
or less of what it used.
"""

import json
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import pytest

from dpscope.analysis.output.run_json import run_json
from dpscope.analysis.report.build import make_report
from dpscope.analysis.report.formulas import formula_table
from dpscope.analysis.runs.run_data import RunData
from dpscope.profiling.records.calibration import Calibration, Collective
from tests.helpers.examples import loaded, reported
from tests.helpers.known import known
from tests.helpers.run_cells import calibration, with_ranks

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
def test_a_prediction_has_one_error_in_every_table(run: RunData) -> None:
    """The sizes of a step add up to its transfers, measured and predicted; where there is one size,
    both errors are one.
    """
    report = make_report(run, calibration=made(run, REDUCE))
    for name, row in report.comparison.rows.items():
        own = [
            one
            for one in report.comparison.predictions
            if one.cell == name and one.measured_us is not None
        ]
        if not own:
            continue
        assert sum(one.per_step * known(one.measured_us) for one in own) == pytest.approx(
            known(row.transfer_us)
        )
        predicted_us = sum(one.per_step * known(one.expected_us) for one in own)
        assert predicted_us == pytest.approx(known(row.predicted_transfer_us))
        (matched,) = own
        assert matched.relative_error == pytest.approx(row.predicted_transfer_error)
        of_formula = [
            row[-1]
            for row in formula_table(run, report.comparison).rows
            if row[:2] == (name, "all_reduce, 1 a step")
        ]
        assert of_formula == [f"{100 * known(row.predicted_transfer_error):.1f}"]


@pytest.mark.long
def test_a_calibration_of_both_predicts_exposed_communication_too(run: RunData) -> None:
    report = make_report(run, calibration=made(run, BOTH))
    values = report.comparison.table.set_index("cell").loc["ddp-d2-b8"]
    assert values["predicted_exposed_us"] > 0
    assert "calibration_incomplete" not in {finding.code for finding in report.findings}
    table = report.tables["collectives"]
    predicted = next(
        index for index, heading in enumerate(table.headings) if heading.startswith("predicted")
    )
    assert all(row[predicted] != "NA" for row in table.rows)


@pytest.mark.long
@pytest.mark.parametrize("later_s", [-1.0, 1.0])
def test_a_calibration_made_later_is_no_forecast(run: RunData, later_s: float) -> None:
    report = make_report(run, calibration=made(run, BOTH, later_s))
    notes = report.tables["predictions"].notes
    assert any("not forecasts" in note for note in notes) is (later_s > 0)


AS_ON = "exposed is predicted for torch's engine ProcessGroupNCCL, whose all-reduces overlap"
FOR = "exposed is predicted for torch's engine ProcessGroupNCCL, which the cells used"


@pytest.mark.long
@pytest.mark.parametrize(
    ("ran", "calibrated", "count", "message"),
    [
        ("ProcessGroupNCCL2", "ProcessGroupNCCL", 1, AS_ON),
        ("ProcessGroupNCCL2", "ProcessGroupNCCL2", 0, AS_ON),
        ("ProcessGroupNCCL2", None, 0, AS_ON),  # an older calibration does not record it
        ("ProcessGroupNCCL", None, 0, FOR),
        (None, "ProcessGroupNCCL", 0, None),  # gloo
    ],
)
def test_a_prediction_says_which_engine_it_assumes_and_which_was_calibrated(
    run: RunData, ran: str | None, calibrated: str | None, count: int, message: str | None
) -> None:
    cells = {name: with_ranks(data, nccl_engine=ran) for name, data in run.cells.items()}
    source = msgspec.structs.replace(made(run, BOTH), nccl_engine=calibrated)
    report = make_report(replace(run, cells=cells), calibration=source)
    found = [one for one in report.findings if one.code == "settings_differ"]
    assert len(found) == count
    for one in found:
        assert one.message.startswith(
            "ddp-d2-b8: ran on ProcessGroupNCCL2, the calibration on ProcessGroupNCCL"
        )
    notes = [
        note
        for note in report.tables["predictions"].notes
        if note.startswith("exposed is predicted")
    ]
    assert (
        notes == [] if message is None else [note.startswith(message) for note in notes] == [True]
    )
