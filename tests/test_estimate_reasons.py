"""Reasons with their numbers, from a row's measured values; findings about predictions that are off."""

import pandas as pd

from dpscope.analysis.columns import NAMES
from dpscope.analysis.comparison import Comparison
from dpscope.analysis.estimate_reasons import error_table, identity_table, reasons
from dpscope.analysis.prediction_findings import likely_reasons, prediction_findings

VALUES: dict[str, object] = dict.fromkeys(NAMES) | {
    "cell": "ddp-d2-b8",
    "strategy": "ddp",
    "devices": 2,
    "step_us": 1500.0,
    "compute_us": 1000.0,
    "communication_us": 700.0,
    "overlapped_us": 280.0,
    "exposed_us": 420.0,
    "wait_us": 70.0,
    "same_local_batch_us": 500.0,
    "same_local_batch_low_us": 490.0,
    "same_local_batch_high_us": 510.0,
    "same_local_batch_error_exposed_us": 80.0,
    "added_exposed_us": 420.0,
    "added_compute_us": 60.0,
    "added_compute_low_us": 40.0,
    "added_compute_high_us": 90.0,
    "added_idle_us": 30.0,
    "added_idle_low_us": -5.0,
    "added_idle_high_us": 60.0,
    "added_tracer_us": -10.0,
    "prediction_source": "calibration",
    "predicted_transfer_us": 300.0,
    "predicted_transfer_error": -0.5,
    "bytes_per_step": 4e6,
    "collectives_per_step": 2.0,
}


def comparison(values: dict[str, object]) -> Comparison:
    return Comparison(table=pd.DataFrame([values], columns=list(NAMES)), reasons={}, gaps=())


def test_reasons_are_measured_and_ordered_by_size() -> None:
    found = {reason.code: reason for reason in reasons(VALUES)}
    assert list(found) == [
        "overlap",
        "wait",
        "compute",
    ]  # idle's interval holds 0; no tracer interval, no baseline at G
    assert found["overlap"].amount_us == 280
    assert "(40%)" in found["overlap"].text
    assert found["compute"].text == "compute takes 60.0 us longer a step than alone (95% interval 40.0 us to 90.0 us)"


def test_loader_batch_and_imbalance() -> None:
    values = VALUES | {
        "added_data_wait_us": 45.0,
        "ideal_split_local_batch_us": 100.0,
        "same_total_local_batch_us": -800.0,
        "compute_spread": 0.3,
    }
    found = {reason.code: reason.amount_us for reason in reasons(values)}
    assert found["loader"] == 45
    assert found["ideal_split_local_batch"] == 100
    assert found["same_total_local_batch"] == -800
    assert found["imbalance"] == 300
    assert {reason.code for reason in reasons(values | {"first_device_excess_us": 200.0})} >= {"imbalance"}


def test_the_error_table_adds_up() -> None:
    table = error_table(comparison(VALUES))
    assert table is not None
    ((cell, formula, *parts),) = table.rows
    assert (cell, formula) == ("ddp-d2-b8", "t_N(b) - t_1(b)")
    assert [float(part) for part in parts] == [80, 0, 60, 30, -10]
    identity = identity_table(comparison(VALUES))
    assert identity is not None
    assert identity.rows[0] == ("ddp-d2-b8", "500.0 ±10.0", "420.0 ±NA", "60.0 ±25.0", "30.0 ±32.5", "-10.0 ±NA")


def test_a_prediction_that_is_off_names_what_the_run_shows() -> None:
    (finding,) = prediction_findings(comparison(VALUES))
    assert (finding.code, finding.severity) == ("prediction_off", "warning")
    assert "transfers 300.0 us a step, measured 600.0 us (-50%)" in finding.message
    assert "contention: 40% of communication ran under compute, and compute takes 60.0 us longer" in finding.message
    assert "small messages" not in finding.message
    assert list(prediction_findings(comparison(VALUES | {"predicted_transfer_error": -0.25}))) == []


def test_reasons_for_a_prediction_follow_the_evidence() -> None:
    off = VALUES | {"overlapped_us": 0.0, "prediction_source": "specification", "bytes_per_step": 2000.0}
    small, specification = likely_reasons(off, ["transfer"])
    assert small.startswith("small messages: 1.00 kB")
    assert specification.startswith("no calibration")
    (waiting, *_) = likely_reasons(off, ["exposed"])
    assert waiting.startswith("waiting: 70.0 us")
    assert any(one.startswith("queueing: 50.0 us") for one in likely_reasons(off | {"queue_us": 50.0}, ["transfer"]))
    (fast,) = likely_reasons(VALUES | {"predicted_transfer_error": 0.5}, ["transfer"])
    assert "calibration was made under other conditions" in fast
