"""Reasons with their numbers, from a row's measured row; findings about predictions that are
off.
"""

from dataclasses import replace

import msgspec

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import CollectivePrediction
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.findings.predictions import noisy_calibration, off_notes, prediction_findings
from dpscope.analysis.report.prediction_tables import collective_table, identity_table
from tests.helpers.known import known
from tests.helpers.made_rows import made_row, with_values
from tests.helpers.run_cells import calibration

ROW = made_row(
    cell="ddp-d2-b8", strategy="ddp", devices=2, step_us=1500.0, compute_us=1000.0, communication_us=700.0,
    hidden_us=280.0, exposed_us=420.0, wait_us=90.0, exposed_wait_us=70.0, transfer_us=600.0, same_local_batch_us=500.0,
    same_local_batch_low_us=490.0, same_local_batch_high_us=510.0, same_local_batch_error_exposed_us=80.0,
    slowdown_us=60.0, slowdown_low_us=40.0, slowdown_high_us=90.0, added_idle_us=30.0, added_idle_low_us=-5.0,
    added_idle_high_us=60.0, added_tracer_us=-10.0, prediction_source="calibration", predicted_transfer_us=300.0,
    predicted_transfer_error=-0.5, bytes_per_step=4e6, collectives_per_step=2.0,
)  # fmt: skip


def comparison(row: CellRow, *predictions: CollectivePrediction) -> Comparison:
    return Comparison({row.cell: row}, predictions=predictions)


def bucket(
    size_bytes: float, measured_us: float | None, predicted_us: float | None
) -> CollectivePrediction:
    kind, reason = (
        ("all_reduce", "")
        if predicted_us is not None
        else ("broadcast", "the calibration holds no broadcast")
    )
    return CollectivePrediction(
        "ddp-d2-b8", kind, size_bytes, 2, 1.0, measured_us, predicted_us, reason
    )


def test_the_parts_of_the_added_time_add_up() -> None:
    identity = identity_table(comparison(ROW))
    assert identity.rows[0] == (
        "ddp-d2-b8",
        "500.0 ±10.0",
        "420.0 ±NA",
        "60.0 ±30.0",
        "30.0 ±35.0",
        "-10.0 ±NA",
    )


def test_a_prediction_that_is_off_names_what_the_run_shows() -> None:
    (finding,) = prediction_findings(comparison(ROW))
    assert (finding.code, finding.severity) == ("prediction_off", "warning")
    assert "calibration: transfers 300 µs a step, measured 600 µs (-50%); cont" in finding.message
    overlapped = (
        "40% of communication ran during compute, and in traced steps compute takes 60.0 µs"
    )
    assert f"contention: {overlapped}" in finding.message
    assert "--overlap off" in finding.next_step
    assert "--" not in finding.advised(in_a_script=True).next_step
    nothing = with_values(
        ROW, predicted_exposed_us=0.0, predicted_exposed_error=-1.0, exposed_us=420.0
    )
    (finding,) = prediction_findings(comparison(nothing))
    assert "exposed" not in finding.message  # transfers come first
    right = with_values(nothing, predicted_transfer_error=-0.1)
    (finding,) = prediction_findings(comparison(right))
    assert "exposed communication 0 µs a step, measured 420 µs (-100%); " in finding.message
    (shared,) = prediction_findings(comparison(ROW), shared_cores=True)
    assert f"cores shared with computing: {overlapped}" in shared.message
    assert "contention" not in shared.message
    assert (
        list(prediction_findings(comparison(with_values(ROW, predicted_transfer_error=-0.25))))
        == []
    )


def test_what_is_off_by_the_waiting_that_no_model_includes_is_no_warning() -> None:
    """2.79 ms are exposed, 2.06 of them waiting: 0.65 predicted is 11% less than the 0.73 that are
    left, and 0.5 is 32% less. All times are in one unit.
    """
    row = with_values(
        ROW, communication_us=2850.0, exposed_us=2790.0, exposed_wait_us=2060.0, hidden_us=60.0, transfer_us=755.0,
        predicted_transfer_us=650.0, predicted_transfer_error=-0.14, predicted_exposed_us=650.0,
        predicted_exposed_error=-0.77,
    )  # fmt: skip
    (finding,) = prediction_findings(comparison(row))
    assert finding.severity == "info"
    assert (
        "calibration: exposed communication 0.65 ms a step, measured 2.8 ms (-77%); waiting: 2.1 ms of the exposed time"
        in finding.message
    )
    assert "µs" not in finding.message
    (less,) = prediction_findings(comparison(with_values(row, predicted_exposed_us=500.0)))
    assert less.severity == "warning"


def test_a_prediction_within_the_interval_of_what_was_measured_is_not_off() -> None:
    """300 of 600 us predicted: within 290 to 910, below 310 to 890; so is a step's one
    all-reduce.
    """
    one = bucket(4e6, 600.0, 300.0)
    within = with_values(ROW, transfer_low_us=290.0, transfer_high_us=910.0)
    assert list(prediction_findings(comparison(within, one))) == []
    below = with_values(ROW, transfer_low_us=310.0, transfer_high_us=890.0)
    (finding,) = prediction_findings(comparison(below, one))
    assert finding.code == "prediction_off"
    above = with_values(
        within, transfer_us=300.0, predicted_transfer_us=920.0, predicted_transfer_error=2.07
    )
    (finding,) = prediction_findings(comparison(above, one))
    assert finding.code == "prediction_off"


def calibrated(error: float | None) -> Costs:
    """All-reduces on two ranks, whose fit has this error on sizes that are left out of it."""
    made = calibration({"all_reduce": (50.0, 10.0)})
    fits = [
        msgspec.structs.replace(fit, prediction_relative_error=error, statistic="slowest")
        for fit in made.fits
    ]
    return Costs(calibration=msgspec.structs.replace(made, fits=tuple(fits)))


def test_a_noisy_calibration_is_a_finding_and_a_reason() -> None:
    row = with_values(ROW, hidden_us=0.0, exposed_us=700.0)
    noisy, quiet = (
        replace(comparison(row, bucket(4e6, 600.0, 300.0)), collective_costs=calibrated(error))
        for error in (0.51, 0.5)
    )
    finding, off = prediction_findings(noisy)
    assert (finding.code, finding.severity) == ("calibration_noisy", "warning")
    assert finding.message.endswith("fit is off by up to 51% (all_reduce, 2 devices)")
    assert off.message.endswith("(-50%); the calibration is noisy")
    (note,) = off_notes(noisy)
    times = "transfers 300 µs a step, measured 600 µs (-50%)"
    assert note == f"{ROW.cell}: {times}; the calibration is noisy"
    (off,) = prediction_findings(quiet)
    assert off.message.endswith("(-50%); nothing in this run explains it")


def test_of_the_fits_of_two_ranks_the_worse_one_makes_a_calibration_noisy() -> None:
    """Transfers, the ring and the figure rest on the fastest rank's fit, schedules on the
    slowest's.
    """
    slowest = known(calibrated(0.4).calibration)
    fastest = known(calibrated(0.7).calibration).fits[0]
    fits = (*slowest.fits, msgspec.structs.replace(fastest, statistic="shortest"))
    costs = Costs(calibration=msgspec.structs.replace(slowest, fits=fits))
    measured = comparison(ROW, bucket(4e6, 600.0, 600.0))
    finding = known(noisy_calibration(replace(measured, collective_costs=costs)))
    assert finding.message.endswith("fit is off by up to 70% (all_reduce, 2 devices)")


def test_a_single_collective_that_is_off_is_reported_although_the_sum_agrees() -> None:
    """500 us of a step's 600 as predicted; 60 of 100 predicted; a bucket of 10 us is no notable
    part.
    """
    row = with_values(
        ROW, predicted_transfer_us=560.0, predicted_transfer_error=-0.07, transfer_us=610.0
    )
    rows = (bucket(4e6, 500.0, 500.0), bucket(1e6, 100.0, 60.0), bucket(1e3, 10.0, 1.0))
    (finding,) = prediction_findings(comparison(row, *rows))
    assert "1.00 MB all_reduce -40%; contention" in finding.message
    assert list(prediction_findings(comparison(row, rows[0], rows[2]))) == []


def test_what_the_calibration_lacks_is_a_finding_and_na_in_the_table() -> None:
    row = with_values(ROW, predicted_transfer_error=-0.1)
    found = comparison(row, bucket(4e6, 500.0, 450.0), bucket(38_400, None, None))
    (finding,) = prediction_findings(found)
    assert finding.code == "calibration_incomplete"
    assert finding.message.endswith("is not predicted: the calibration holds no broadcast")
    assert "--collectives all_reduce,broadcast --devices 2" in finding.next_step
    table = known(collective_table(found))
    assert [row[4:] for row in table.rows] == [("500.0", "450.0", "-10.0"), ("NA", "NA", "NA")]
    assert any("predicted NA: the calibration holds no broadcast" in note for note in table.notes)
    assert list(prediction_findings(comparison(row, bucket(4e6, 500.0, 450.0)))) == []
