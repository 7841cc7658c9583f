"""Numbers that used to contradict each other: the same value, or values that add up, wherever one
is shown.
"""

import re
from pathlib import Path

import pytest

from dpscope.analysis.output.trace_tables import to_tables
from dpscope.analysis.output.traces_screen import ReadJob
from dpscope.analysis.report.build import Report
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.generated_traces.generator import DdpOptions, ddp_trace, write_trace
from tests.helpers.examples import FIVE_REPEATS, reported
from tests.helpers.known import known
from tests.helpers.made_verdicts import said

MADE_OF = ("compute", "wait", "transfer", "other", "idle")


@pytest.fixture(scope="module")
def report() -> Report:
    """Five repeats whose medians differ, so that estimators of the same thing differ, too."""
    return reported(FIVE_REPEATS)


def numbers(table: TextTable, cell: str) -> dict[str, float]:
    """A row by headings; NA is left out."""
    row = next(row for row in table.rows if row[0] == cell)
    return {
        name: float(value)
        for name, value in zip(table.headings[1:], row[1:], strict=True)
        if value != "NA"
    }


@pytest.mark.long
def test_every_row_of_the_first_table_adds_up(report: Report) -> None:
    table = report.first["step"]
    for row in table.rows:
        shown = numbers(table, row[0])
        parts = [shown[name] for name in MADE_OF if name in shown]
        assert sum(parts) == pytest.approx(shown["traced"], abs=0.05 * (len(parts) + 1)), row


def test_no_two_columns_of_a_table_have_one_heading(report: Report) -> None:
    for table in (*report.first.values(), *report.tables.values(), *report.study.values()):
        headings = table.headings
        assert len(set(headings)) == len(headings), table.title


def test_every_shortcut_is_the_measured_value_plus_its_error(report: Report) -> None:
    table = report.first["shortcuts"]
    for row in table.rows:
        values = [float(value) if value != "NA" else None for value in row[1:]]
        for measured, shortcut, error in (
            (values[0], values[1], values[4]),
            (values[5], values[6], values[7]),
        ):
            if measured is not None and shortcut is not None and error is not None:
                assert shortcut == pytest.approx(measured + error, abs=0.021)


def test_a_table_of_shortcuts_shows_the_interval_of_the_subtraction(report: Report) -> None:
    shown = numbers(report.first["shortcuts"], "ddp-d2-b128")
    in_words = known(
        re.search(
            r"added time\) = [-\d.]+ ms \(([-\d.]+) to ([-\d.]+)\)",
            said(report.verdict, "shortcuts"),
        )
    )
    low, high = map(float, in_words.groups())
    assert shown["low"] == pytest.approx(low, abs=0.051)
    assert shown["high"] == pytest.approx(high, abs=0.051)


def test_an_epochs_subtraction_is_one_value_in_the_table_and_in_the_columns(report: Report) -> None:
    table = report.study["study_estimates"]
    rows = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    ddp = next(row for row in rows if row["strategy"] == "ddp")
    column_us = known(report.comparison.rows["ddp-d2-b128"].same_local_batch_epoch_us)
    assert float(ddp["T_N-T_1(b)/N [s]"]) == pytest.approx(column_us / 1e6, rel=0.003)


def test_speedup_samples_per_second_and_efficiency_are_of_the_same_steps(report: Report) -> None:
    """The speedup in words is the ratio of the samples/s in the table, and lies in the interval
    next to it.
    """
    interval = r"([\d.]+)x one device .* \(95% interval ([\d.]+) to ([\d.]+)\)"
    found = known(re.search(interval, said(report.verdict, "which")))
    speedup, low, high = map(float, found.groups())
    table = report.first["step"]
    several, single = numbers(table, "ddp-d2-b128"), numbers(table, "single-d1-b128")
    assert several["samples/s"] / single["samples/s"] == pytest.approx(speedup, abs=0.01)
    assert 2 * several["eff.[%]"] / 100 == pytest.approx(speedup, abs=0.01)
    assert f", {several['eff.[%]']:.0f}% efficient" in said(report.verdict, "which")
    assert low < speedup < high
    assert several["samples/s"] == pytest.approx(256 / several["step"] * 1e3, rel=0.005)


def test_the_verdict_is_of_the_ledger_and_its_intervals(report: Report) -> None:
    """What an action saves is a part of the ledger; values are the centres of their intervals."""
    verdict, ledger = report.verdict, known(report.verdict.ledger)
    assert any(
        known(verdict.saves_at_most_us) == pytest.approx(part) for part in ledger.parts_us.values()
    )
    assert {"compute", "exposed_wait", "exposed_transfer", "idle", "tracer", "slowdown"} <= set(
        ledger.intervals
    )
    for name, bounds in ledger.intervals.items():
        value_us = getattr(ledger, f"{name}_us")
        if bounds.low == 0:  # cut there: no time is shorter
            assert bounds.high - value_us > value_us, name
        else:
            assert (bounds.low + bounds.high) / 2 == pytest.approx(value_us), name
    noisy, of_calibration = verdict.limits
    assert of_calibration.label == "NOISY FIT"
    assert noisy.label == "NOISY"
    assert "dp-host-d2-b128 32.5 to 45.8 ms" in noisy.text
    assert verdict.shown[0] == noisy  # before any conclusion


def test_a_rank_is_as_late_as_the_others_wait_for_it(tmp_path: Path) -> None:
    """Rank 1 waits from 490 to 990, of which 98 + 60 + 20 us are under its kernels, then 40 us:
    362; rank 0 waits for nobody.

    The ledger's mean over both ranks is half of that.
    """
    for rank in range(2):
        write_trace(ddp_trace(rank, 2, DdpOptions(straggler=0)).trace, tmp_path / f"{rank}.json")
    analysis = analyze_traces([tmp_path])
    late = known(ReadJob(analysis).verdict.late)
    assert late.rank == 0
    assert [late.wait_us, late.lateness_us] == pytest.approx([181, 362])
    (waits,) = (
        table for table in to_tables(analysis) if table.title == "Which ranks wait for which"
    )
    assert waits.headings[3:] == ("exposed wait [µs]", "share [%]", "all waiting [µs]")
    assert [row[:2] + row[3:] for row in waits.rows] == [("0", "1", "362.0", "100.0", "540.0")]
