"""The shortcuts: their errors, and the largest reason from the ledger. Numbers by hand."""

import math
from typing import Any

import pytest

from dpscope.analysis.costs.data_sheet import RingRate
from dpscope.analysis.findings.shortcuts import shortcuts_fact
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
    algbw_gb_per_s=44.7e6 / 41e3 / 1e3, hidden_us=0.0, traced_step_us=552e3, reasons={"ring_us": "no link is known"},
    ring_rates=(RATE,), same_local_batch_low_us=230e3, same_local_batch_high_us=255e3, slowdown_us=180e3,
    slowdown_low_us=160e3, slowdown_high_us=200e3,
)  # fmt: skip
ONE_AT_A_TIME: dict[str, Any] = {"algbw_gb_per_s": 44.7e6 / 79.6e3 / 1e3}


def lines(ledger: Ledger = LEDGER, concurrent: int = 1, **values: Any) -> tuple[str, ...]:
    """What is stated of t_N(b) - t_1(b), and of the ring formula."""
    collectives = traced_table("collectives", [{"concurrent": concurrent}])
    data = cell_data(Cell("ddp", 2, 8), [], NO_TABLES.steps, collectives)
    return shortcuts_fact(with_values(ROW, ledger=ledger, **values), data).lines


def test_how_far_off_and_why() -> None:
    """242.9 / 32.5 = 7.5; 210.4 ms more, 180 of them slower compute. 38.1 ms more, 38.6 of them
    transferred at once.
    """
    assert lines() == (
        "t_N(b) - t_1(b) (added time) = 243 ms (230 to 255): 7.5x the 32.5 measured: compute runs slower on "
        "shared cores (180 ms)",
        "ring formula = 41.5 ms at 1.08 GB/s (the calibration's fit); all transfers (hidden too) took 79.6: up to 2 "
        "all-reduces were in flight at once",
    )


SLOWER = Ledger(38e3, 30e3, 1.5e3, 1.5e3, 1e3, 4e3, slowdown_us=8.2e3)  # 4 ms exposed


def why(idle_us: float | None, tracer_us: float, ledger: Ledger = SLOWER, **bounds: Any) -> str:
    """The reason for an error that is the sum of the terms, within 0.1 ms; intervals exclude 0
    unless given.
    """
    significant: dict[str, Any] = {
        "added_idle_low_us": 1.0,
        "added_idle_high_us": 99e3,
        "added_tracer_low_us": math.copysign(1.0, tracer_us),
        "added_tracer_high_us": math.copysign(1.0, tracer_us),
    }
    error_us = (ledger.slowdown_us or 0.0) + (idle_us or 0.0) + tracer_us
    estimate_us = (ledger.exposed_us or 0.0) + error_us
    found, _ = lines(
        ledger,
        slowdown_us=ledger.slowdown_us,
        same_local_batch_us=estimate_us,
        same_local_batch_low_us=estimate_us - 100,
        same_local_batch_high_us=estimate_us + 100,
        added_idle_us=idle_us,
        added_tracer_us=tracer_us,
        **(significant | bounds),
    )
    return found.partition(" measured: ")[2]


@pytest.mark.parametrize(
    ("idle_us", "tracer_us", "reason"),
    [
        (0.0, -2.7e3, "compute runs slower on shared cores (8.2 ms)"),  # of 5.5 ms
        (17e3, 0.0, "devices are idle longer (17.0 ms)"),  # of 25.2 ms
        (0.0, 17e3, "traced steps do not show it (17.0 ms)"),
        (0.0, -25e3, "tracing adds time (25.0 ms)"),  # of -16.8 ms
        (0.0, -2.8e3, "no clear cause (compute +8.2, idle 0, unexplained -2.8)"),  # of 5.4 ms
        (8e3, 8e3, "no clear cause (compute +8.2, idle +8.0, unexplained +8.0)"),
        (None, 0.0, "the cause is unknown"),
    ],
)
def test_a_term_is_the_reason_where_the_others_are_at_most_half_of_the_error(
    idle_us: float | None, tracer_us: float, reason: str
) -> None:
    assert why(idle_us, tracer_us) == reason


def test_a_term_that_others_cancel_is_no_reason() -> None:
    """8.7 ms exposed, 12.0 estimated: 3.3 ms are no 41.6 ms of slower compute."""
    slower = Ledger(130e3, 100e3, 7.6e3, 1.1e3, 0.0, 21.3e3, slowdown_us=41.6e3)
    shown = why(8.5e3, -46.8e3, slower)
    assert shown == "no clear cause (compute +41.6, idle +8.5, unexplained -46.8)"


@pytest.mark.parametrize(("low_us", "high_us"), [(-1.0, 17e3), (None, None)])
def test_a_term_is_no_reason_unless_its_interval_excludes_0(
    low_us: float | None, high_us: float | None
) -> None:
    """8.2 of 5.5 ms, which is the reason where its interval excludes 0."""
    shown = why(0.0, -2.7e3, slowdown_low_us=low_us, slowdown_high_us=high_us)
    assert shown == "no clear cause (compute +8.2, idle 0, unexplained -2.7)"


def test_without_an_interval_nothing_is_checked() -> None:
    """Neither that the estimate is off nor that it agrees."""
    for estimate_us, shown in ((243e3, "243"), (32.6e3, "32.6")):
        found, _ = lines(
            same_local_batch_us=estimate_us,
            same_local_batch_low_us=None,
            same_local_batch_high_us=None,
        )
        assert found == (
            f"t_N(b) - t_1(b) (added time) = {shown} ms, 32.5 measured: cannot be checked without an interval "
            "(too few repeats or steps)"
        )


def test_a_formula_above_the_transfers_is_the_calibrations_error_or_the_links() -> None:
    """41.5 ms by the formula, 20 by the traces."""
    faster: dict[str, Any] = {"transfer_us": 20e3, "algbw_gb_per_s": None}
    of_calibration, of_link = (
        lines(**faster, ring_source=source)[1] for source in ("calibration", "specification")
    )
    assert of_calibration.endswith("the calibration was slower than the run; calibrate again")
    assert of_link.endswith("the link is faster than that")


def test_transfers_of_other_collectives_are_not_compared_with_the_formula() -> None:
    """The reason is the one that the report gives for the error."""
    others = "the measured transfers include those of all_to_all"
    found = lines(ring_error_us=None, reasons={"ring_error_us": others})[1]
    assert found == (
        f"ring formula = 41.5 ms at 1.08 GB/s (the calibration's fit); it cannot be compared: {others}"
    )


def test_an_error_that_the_estimates_interval_covers_gets_no_reason() -> None:
    found, _ = lines(
        same_local_batch_us=40e3, same_local_batch_low_us=30e3, same_local_batch_high_us=50e3
    )
    assert found.endswith("= 40.0 ms (30.0 to 50.0): too noisy")
    # by chance
    close, _ = lines(
        same_local_batch_us=33e3, same_local_batch_low_us=-10e3, same_local_batch_high_us=76e3
    )
    assert close.endswith("= 33.0 ms (-10.0 to 76.0): too noisy")


def test_latency_is_the_reason_if_the_calibration_has_it() -> None:
    """One all-reduce at a time, 79.6 ms; 41.5 by the formula. 60.6 - 41.5 is half of 38.1 ms; 60.5
    - 41.5 is less.
    """

    def ring(with_latency_us: float | None) -> str:
        return lines(**ONE_AT_A_TIME, predicted_transfer_us=with_latency_us)[1]

    assert ring(60.6e3).endswith("took 79.6: it leaves out latency (60.6 with it)")
    for unexplained in (60.5e3, None):
        assert ring(unexplained).endswith("all transfers (hidden too) took 79.6")


def test_compute_at_the_same_time_is_no_reason_for_what_another_explains() -> None:
    """All of the 79.6 ms lie under compute: only what neither a specification's nor the formula's
    gaps explain is compute's.
    """
    hidden: dict[str, Any] = ONE_AT_A_TIME | {"hidden_us": 79.6e3}
    assert "compute ran" not in lines(**hidden, predicted_transfer_us=60.6e3)[1]
    assert "compute ran" not in lines(**hidden, ring_source="specification")[1]
    assert lines(**hidden, predicted_transfer_us=60.5e3)[1].endswith(
        "took 79.6: compute ran at the same time"
    )


@pytest.mark.parametrize(
    ("off_us", "said"),
    [
        (600.0, " agrees: all transfers (hidden too) took 41.0 ms"),
        (10e3, "; all transfers (hidden too) took 41.0 (0 to 168): too noisy"),
    ],
)
def test_the_formula_is_judged_by_the_interval_of_the_transfers(off_us: float, said: str) -> None:
    """41.5 ms by the formula; 41 by two repeats that are `off_us` off: 12.7 times that by Student's
    t: 7.6 ms, or more than half of 41.
    """
    transfers: dict[str, Any] = {
        "transfer_us": 41e3,
        "transfer_low_us": max(0.0, 41e3 - 12.706 * off_us),
        "transfer_high_us": 41e3 + 12.706 * off_us,
    }
    assert lines(**transfers)[1].endswith(said)


def test_a_fitted_rate_is_said_to_be_one() -> None:
    fitted = RingRate(0.31, "calibration", "by the fit")
    assert "at 0.31 GB/s (the calibration's fit);" in lines(ring_rates=(fitted,))[1]


def test_the_basis_names_the_interval_that_judges() -> None:
    data = cell_data(Cell("ddp", 2, 8), [], NO_TABLES.steps)
    without = with_values(ROW, ledger=LEDGER)
    known = with_values(without, exposed_low_us=30e3, exposed_high_us=35e3)
    assert "means of the traced steps, no interval" in shortcuts_fact(without, data).basis
    assert "intervals from how the repeats differ" in shortcuts_fact(known, data).basis
