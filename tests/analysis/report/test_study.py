"""The tables of studies, from the example runs: values by hand, sums, and reasons for what is
missing.
"""

from dataclasses import replace

import msgspec
import pytest

from dpscope.analysis.report.build import make_report
from dpscope.analysis.report.study import traced_table
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import TextTable, csv_with_notes, render
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.run import Cell, PublishedQuantity, PublishedValue
from tests.helpers.examples import loaded, reported
from tests.helpers.known import known
from tests.helpers.run_cells import (
    SIZES,
    all_reduces,
    calibration,
    cell_data,
    run_of,
    timed_cell,
    windows,
)


def rows(table: TextTable) -> dict[str, dict[str, str]]:
    """By strategy, each row by heading."""
    return {row[0]: dict(zip(table.headings, row, strict=True)) for row in table.rows}


@pytest.mark.long
def test_an_epoch_is_steps_per_epoch_times_a_step_and_its_parts_add_up() -> None:
    report = reported()
    ddp = report.comparison.rows["ddp-d2-b8"]
    steps = known(ddp.steps_per_epoch)
    assert steps > 1
    epochs, parts, estimates = (
        rows(report.study[name])["ddp"]
        for name in ("study_epochs", "study_parts", "study_estimates")
    )
    for shown, heading, column in (
        (epochs, "epoch [s]", "step_us"),
        (parts, "traced epoch [s]", "traced_step_us"),
        (parts, "compute [s]", "compute_us"),
        (parts, "transfer [s]", "exposed_transfer_us"),
        (estimates, "all measured [s]", "communication_us"),
        (estimates, "exposed measured [s]", "exposed_us"),
    ):
        expected_s = known(ddp.number(column)) * steps / 1e6
        assert float(shown[heading]) == pytest.approx(expected_s, abs=6e-6), heading
    speedup, efficiency = epochs["speedup at same b"], epochs["epoch efficiency at same b [%]"]
    assert float(efficiency) == pytest.approx(100 * float(speedup) / 2, abs=0.5)
    table = report.study["study_parts"]
    places = [place for place in range(3, len(table.headings)) if place not in table.half_widths]
    for row in table.rows:
        values = [row[place] for place in places]
        traced, *of_it = (0.0 if value == "NA" else float(value) for value in values)
        assert sum(of_it) == pytest.approx(traced, abs=3e-5)  # each is rounded


def published(
    quantity: PublishedQuantity, value: float, unit: str = "s", **other: object
) -> PublishedValue:
    """A value of the example run's DDP cell; `other` overrides."""
    values = {
        "source": "a report", "hardware": "4x L4", "model": "tiny_models:tiny", "data": "synthetic", "strategy": "ddp",
        "devices": 2, "batch_size": 8, "fixed": "per_device", "quantity": quantity, "value": value, "unit": unit,
        "method": "by its clock", **other,
    }  # fmt: skip
    return msgspec.convert(values, PublishedValue)


def with_published(run: RunData, *values: PublishedValue) -> RunData:
    reporting = msgspec.structs.replace(run.manifest.config.reporting, published="others.csv")
    config = msgspec.structs.replace(run.manifest.config, reporting=reporting)
    return replace(
        run, recorded=msgspec.structs.replace(run.manifest, config=config, published=values)
    )


@pytest.mark.long
def test_published_values_are_shown_next_to_those_of_the_same_cell() -> None:
    report = make_report(
        with_published(
            loaded(),
            published("epoch_seconds", 56.3),
            published("speedup", 1.8, unit="1"),
            published("utilisation", 1.25, unit="%"),
            # of nn.DataParallel, which dp-host is not
            published("epoch_seconds", 17.41, strategy="dp"),
            published("epoch_seconds", 17.41, batch_size=16),
        )
    )
    table = report.study["study_published"]
    assert [(row[0], row[1], *row[3:]) for row in table.rows] == [
        ("ddp-d2-b8", "epoch", "56.3 s", "by its clock", "a report (4x L4)"),
        ("ddp-d2-b8", "speedup, same b", "1.8", "by its clock", "a report (4x L4)"),
        ("ddp-d2-b8", "utilisation", "1.25%", "by its clock", "a report (4x L4)"),
    ]
    ddp = rows(report.study["study_epochs"])["ddp"]
    assert float(table.rows[0][2].removesuffix(" s")) == pytest.approx(
        float(ddp["epoch [s]"]), abs=6e-6
    )
    assert float(table.rows[1][2]) == pytest.approx(float(ddp["speedup at same b"]), abs=6e-3)
    assert table.rows[2][2] == "NA"  # no link is known
    assert "no verdict" in table.notes[0]
    none = make_report(with_published(loaded())).study
    assert "study_published" not in none
    assert any("others.csv has no row" in note for note in none["study_epochs"].notes)


def measured_cell(cell: Cell, step_us: float, **phases: float) -> Job:
    traced = windows(cell, 4, 2, step_us=step_us, compute_us=0.9 * step_us, **phases)
    return cell_data(cell, [[step_us] * 8] * 2, traced)


SINGLE = Cell(strategy="single", devices=1, batch_size=8)
ONE_NODE = Cell(strategy="ddp", devices=2, batch_size=8)


def test_bandwidth_by_subtraction_is_shown_next_to_the_measured_one() -> None:
    """Ring bytes of 2 devices are the gradients' bytes; a step of 120 us minus one of 100."""
    buckets = [(float(SIZES.gradient_bytes), 10.0, 16.0)]
    several = cell_data(
        ONE_NODE,
        [[120.0] * 8] * 2,
        windows(
            ONE_NODE, 4, 2, step_us=120.0, compute_us=100.0, communication_us=16.0, hidden_us=0.0, exposed_us=16.0,
            transfer_us=16.0,
        ),
        all_reduces(ONE_NODE, 4, buckets, 2),
    )  # fmt: skip
    run = run_of(measured_cell(SINGLE, 100.0), several)
    calibrated = calibration({"all_reduce": (0.0, 2.0)})
    table = make_report(run, calibration=calibrated).study["study_bandwidth"]
    assert any(note.startswith("ring formula on 2 devices: 2 GB/s") for note in table.notes)
    shown = rows(table)["ddp"]
    by_ring = SIZES.gradient_bytes / 20.0 / 1e3
    assert float(shown["ring by subtraction [GB/s]"]) == pytest.approx(by_ring, rel=0.01)
    of_calibrated = SIZES.gradient_bytes / 16.0 / 1e3 / 2.0 * 100
    assert float(shown["busbw/calibrated [%]"]) == pytest.approx(of_calibrated, rel=0.01)
    assert float(shown["calibrated [GB/s]"]) == 2.0
    linked = make_report(run, parse_link("4GB/s"), calibrated).study["study_bandwidth"]
    assert float(rows(linked)["ddp"]["busbw/link [%]"]) == pytest.approx(
        of_calibrated / 2, rel=0.01
    )


@pytest.mark.long
def test_means_stand_next_to_half_the_wider_side_of_their_intervals() -> None:
    report = reported()
    row = report.comparison.rows["ddp-d2-b8"]
    epochs = rows(report.study["study_epochs"])["ddp"]
    added = rows(report.study["study_estimates"])["ddp"]

    def wider_side(column: str) -> float:
        value, (low, high) = known(row.number(column)), known(row.interval(column))
        return max(value - low, high - value)

    steps = known(row.steps_per_epoch)
    for shown, expected in (
        (epochs["epoch ± [s]"], steps * wider_side("step_us") / 1e6),
        (epochs["speedup at same b ±"], 2 * wider_side("weak_efficiency")),
        (added["T_N-T_1(b)/N ± [s]"], steps * wider_side("same_local_batch_us") / 1e6),
    ):
        assert float(shown) == pytest.approx(expected, rel=0.02)


@pytest.mark.long
def test_intervals_are_only_explained_where_a_table_has_one() -> None:
    """One repeat of each cell has none."""
    cells = Cell("single", 1, 8), Cell("ddp", 2, 8)
    for repeats, explained in (([1e3], False), ([1e3, 1.1e3, 1.2e3], True)):
        report = make_report(run_of(*(timed_cell(cell, *repeats) for cell in cells)))
        table = report.study["study_epochs"]
        assert any("±" in heading for heading in table.headings) is explained
        assert any(note.startswith("±: half the 95% interval") for note in table.notes) is explained


@pytest.mark.long
def test_a_part_of_an_epoch_has_the_interval_of_the_part_of_a_step() -> None:
    """From 100 us below the mean to 300 above it, in each of the epoch's steps."""
    report = reported()
    row = report.comparison.rows["ddp-d2-b8"]
    wait_us = known(row.exposed_wait_us)
    ends = {"exposed_wait_low_us": wait_us - 100.0, "exposed_wait_high_us": wait_us + 300.0}
    certain = replace(row, values={**row.values, **ends})
    comparison = replace(report.comparison, rows={**report.comparison.rows, row.cell: certain})
    parts = traced_table(replace(report, comparison=comparison))
    shown = rows(parts)["ddp"]["wait ± [s]"]
    assert float(shown) == pytest.approx(known(row.steps_per_epoch) * 300.0 / 1e6, rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["markdown", "csv", "latex"])
def test_a_table_taken_alone_states_what_it_is_of_what_limits_it_and_its_letters(
    table_format: str,
) -> None:
    """The example's repeats of dp-host differ by more than 30%."""
    for table in reported().study.values():
        text = csv_with_notes(table) if table_format == "csv" else render(table, table_format)
        assert "tiny, 2 CPU cores, 2 repeats" in text
        for limit in ("not valid for GPUs", "NOISY: medians of repeats differ by over 30"):
            assert limit in text
        letter = "$b$" if table_format == "latex" else "b"
        assert f"{letter}: samples of a step on each device" in text
        assert table.title.endswith(" (NOISY: see the notes)")
