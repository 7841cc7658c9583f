"""The shortcuts: their errors, and the largest reason from the ledger. Numbers by hand."""

from typing import Any

from dpscope.analysis.costs.data_sheet import RingRate
from dpscope.analysis.findings.answers import shortcuts_text
from dpscope.analysis.traces.ranks.job import NO_TABLES
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.profiling.records.run import Cell
from tests.helpers.made_rows import made_row, with_values
from tests.helpers.run_cells import cell_data, traced_table

RATE = RingRate(1.08, "calibration", "calibrated")
# Two all-reduces of 44.7 MB in all, which transfer 79.6 ms one by one, in 41 ms together: 44.7 MB /
# 41 ms = 1.09 GB/s.
LEDGER = Ledger(552e3, 400e3, 20e3, 8.3e3, 4.2e3, 119.5e3, slowdown_us=180e3)  # 32.5 ms exposed
ROW = made_row(
    cell="ddp-d2-b8", strategy="ddp", devices=2, same_local_batch_us=242.9e3, added_idle_us=10e3, added_tracer_us=20.4e3,
    ring_us=41.5e3, ring_error_us=-38.1e3, ring_source="calibration", transfer_us=79.6e3, bytes_per_step=44.7e6,
    algbw_gb_per_s=44.7e6 / 41e3 / 1e3, hidden_us=0.0, reasons={"ring_us": "no link is known"}, ring_rates=(RATE,),
)  # fmt: skip


def text(ledger: Ledger = LEDGER, concurrent: int = 1, **values: Any) -> str:
    collectives = traced_table("collectives", [{"concurrent": concurrent}])
    data = cell_data(Cell("ddp", 2, 8), [], NO_TABLES.steps, collectives)
    return shortcuts_text(with_values(ROW, ledger=ledger, **values), data)


def test_how_far_off_and_why() -> None:
    """242.9 / 32.5 = 7.5; 210.4 ms more, 180 of them slower compute. 38.1 ms more, 38.6 of them
    transferred at once.
    """
    assert text() == (
        "T_2 - T_1 gives 242.9 ms, 7.5 times the 32.5 ms measured as exposed: most of the difference is compute that runs "
        "slower on shared cores (180.0 ms). The ring formula gives 41.5 ms at the calibration's 1.08 "
        "GB/s; the transfers took 79.6 ms because two all-reduces were in flight at once."
    )


def test_rings_of_several_kinds_name_the_rate_of_each() -> None:
    """FSDP's all-gathers and reduce-scatters were calibrated apart; a link has one rate for
    both.
    """
    rates = (
        RingRate(0.246, "calibration", "", "all_gather"),
        RingRate(0.179, "calibration", "", "reduce_scatter"),
    )
    assert "gives 41.5 ms at the calibration's 0.246 and 0.179 GB/s;" in text(ring_rates=rates)
    link = RingRate(25.0, "specification", "NVLink")
    assert "gives 41.5 ms at the 25 GB/s of the link;" in text(
        ring_rates=(link, link), ring_source="specification"
    )


def test_a_negative_estimate_is_no_time() -> None:
    faster = Ledger(552e3, 400e3, 20e3, 8.3e3, 4.2e3, 119.5e3, slowdown_us=-60e3)
    found = text(faster, same_local_batch_us=-5e3, added_idle_us=2e3)
    assert found.startswith(
        "T_2 - T_1 gives -5.00 ms, a negative time, against the 32.5 ms measured as exposed: most of the difference "
        "is compute that is shorter than on one device (60.0 ms; time that traced steps do not show offsets 20.4 ms of it)."
    )


def test_a_reason_larger_than_the_error_names_what_offsets_it() -> None:
    """4 ms exposed: 7.15 - 4 = 3.15 = 8.21 slower compute - 5.06 that only tracing adds; 8.5 - 4 =
    8.21 - 3.71 less idle.
    """
    slower = Ledger(38e3, 30e3, 1.5e3, 1.5e3, 1e3, 4e3, slowdown_us=8.21e3)
    found = text(slower, same_local_batch_us=7.15e3, added_idle_us=0.0, added_tracer_us=-5.06e3)
    assert "(8.21 ms; time that only tracing adds offsets 5.06 ms of it). The ring" in found
    idle = text(slower, same_local_batch_us=8.5e3, added_idle_us=-3.71e3, added_tracer_us=0.0)
    assert "(8.21 ms; less idle time than on one device offsets 3.71 ms of it). The ring" in idle
    near = text(slower, same_local_batch_us=11.6e3, added_idle_us=-0.61e3, added_tracer_us=0.0)
    assert "shared cores (8.21 ms). The ring" in near


def test_what_is_close_needs_no_reason() -> None:
    assert text(same_local_batch_us=33e3, ring_us=80e3).startswith(
        "T_2 - T_1 gives 33.0 ms, close to the 32.5 ms measured as exposed. The ring formula gives 80.0 ms at the "
        "calibration's 1.08 GB/s, close to the 79.6 ms that the transfers took."
    )


def test_an_error_that_the_estimates_interval_covers_gets_no_reason() -> None:
    found = text(
        same_local_batch_us=40e3, same_local_batch_low_us=30e3, same_local_batch_high_us=50e3
    )
    assert found.startswith(
        "T_2 - T_1 gives 40.0 ms (95% interval 30.0 to 50.0 ms). Measured as exposed: 32.5 ms, which lies within that interval, "
        "so this run cannot tell the two apart. The ring"
    )
    # by chance
    close = text(
        same_local_batch_us=33e3, same_local_batch_low_us=-10e3, same_local_batch_high_us=76e3
    )
    assert close.startswith(
        "T_2 - T_1 gives 33.0 ms (95% interval -10.0 to 76.0 ms), close to the 32.5 ms measured"
    )


def test_latency_is_the_reason_if_the_calibration_has_it() -> None:
    """One all-reduce at a time, 79.6 ms; 41.5 by the formula. 60.6 - 41.5 is half of 38.1 ms; 60.5
    - 41.5 is less.
    """
    alone_gb_per_s = 44.7e6 / 79.6e3 / 1e3
    reason = ": the formula leaves out latency, with which the calibration gives 60.6 ms."
    assert text(algbw_gb_per_s=alone_gb_per_s, predicted_transfer_us=60.6e3).endswith(
        f"the transfers took 79.6 ms{reason}"
    )
    assert text(algbw_gb_per_s=alone_gb_per_s, predicted_transfer_us=60.5e3).endswith(
        "79.6 ms. With latency the calibration gives 60.5 ms; the traces do not show what takes the rest."
    )
    unknown = text(algbw_gb_per_s=alone_gb_per_s, predicted_transfer_us=None)
    assert unknown.endswith("the transfers took 79.6 ms.")


def test_compute_at_the_same_time_is_no_reason_for_what_another_explains() -> None:
    """All of the 79.6 ms lie under compute: only what neither a specification's nor the formula's
    gaps explain is compute's.
    """
    hidden: dict[str, Any] = {"algbw_gb_per_s": 44.7e6 / 79.6e3 / 1e3, "hidden_us": 79.6e3}
    assert "compute ran" not in text(**hidden, predicted_transfer_us=60.6e3)
    assert "compute ran" not in text(**hidden, ring_source="specification")
    assert text(**hidden, predicted_transfer_us=60.5e3).endswith(
        "the transfers took 79.6 ms because compute ran at the same time."
    )


def test_what_is_missing_has_its_reason() -> None:
    assert text(ring_us=None).endswith("The ring formula gives no value: no link is known.")
