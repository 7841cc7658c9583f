"""The tables of studies, from the example run: measured values are shown, missing ones omitted with
the reason.
"""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dpscope.analysis.cells.comparison import Comparison, compare
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.report.classic_tables import Study, classic_tables
from dpscope.analysis.report.comparison_tables import views_by_name
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.run import Cell, PublishedQuantity, PublishedValue
from tests.helpers.examples import loaded
from tests.helpers.known import known
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.run_cells import SIZES, all_reduces, calibration, cell_data, run_of, windows

NAMES = ("single-d1-b8", "dp-host-d2-b8", "ddp-d2-b8")


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(loaded())


@pytest.fixture(scope="module")
def study(comparison: Comparison) -> Study:
    """The example run's tables."""
    return classic_tables(loaded(), comparison)


def titled(study: Study, title: str) -> TextTable:
    (table,) = [one for one in study.tables if one.title.startswith(title)]
    return table


def entry(table: TextTable, strategy: str, quantity: str) -> float:
    (row,) = [row for row in table.rows if row[0] == strategy and row[2] == quantity]
    return float(row[3])


def test_an_epoch_is_steps_per_epoch_times_a_step(study: Study, comparison: Comparison) -> None:
    """So the sum of an epoch's parts compares with its subtraction: both are seconds of the same
    epoch.
    """
    ddp = comparison.rows["ddp-d2-b8"]
    steps = known(ddp.steps_per_epoch)
    assert steps > 1
    traced, estimated = (
        titled(study, "Compute and communication"),
        titled(study, "Communication of an epoch, estimated"),
    )
    for table, quantity, column in (
        (traced, "epoch, traced [s]", "traced_step_us"),
        (traced, "compute [s]", "compute_us"),
        (traced, "communication, measured [s]", "communication_us"),
        (traced, "exposed, measured [s]", "exposed_us"),
        (estimated, "epoch [s]", "step_us"),
        # at equal batch per device so many steps of t_N(b) - t_1(b)
        (estimated, "estimate T_N-T_1/N [s]", "same_local_batch_us"),
    ):
        rel, rounding = (0.01, None) if quantity == "epoch [s]" else (None, 6e-4)
        expected = known(ddp.number(column)) * steps / 1e6
        assert entry(table, "ddp", quantity) == pytest.approx(expected, rel=rel, abs=rounding)


def test_no_part_exceeds_the_epoch_of_its_table(study: Study) -> None:
    """Parts are of traced steps, which may be longer or shorter than the untraced ones of the
    epochs elsewhere.
    """
    table = titled(study, "Compute and communication")
    assert "epoch [s]" not in {row[2] for row in table.rows}
    for strategy in ("single", "dp-host", "ddp"):
        epoch = entry(table, strategy, "epoch, traced [s]")
        assert entry(table, strategy, "compute [s]") < epoch
        if strategy != "single":
            parts = entry(table, strategy, "compute [s]") + entry(
                table, strategy, "exposed, measured [s]"
            )
            assert parts <= epoch * 1.002  # both parts are rounded
    assert any("parts of the traced epoch" in note for note in table.notes)


def test_a_layout_by_devices_has_the_same_values(comparison: Comparison, study: Study) -> None:
    turned = titled(
        classic_tables(loaded(), comparison, by_devices=True), "Compute and communication"
    )
    assert turned.headings[:4] == ("strategy", "devices", "b", "epoch, traced [s]")
    assert [row[:3] for row in turned.rows] == [
        ("single", "1", "8"),
        ("dp-host", "2", "8"),
        ("ddp", "2", "8"),
    ]
    table = titled(study, "Compute and communication")
    values = {(row[0], row[2]): row[3] for row in table.rows}
    for row in turned.rows:
        for heading, shown in zip(turned.headings[3:], row[3:], strict=True):
            assert values.get((row[0], heading), "NA") == shown
    assert turned.notes == table.notes


def test_results_hold_a_row_per_cell_and_no_empty_column(study: Study) -> None:
    table = titled(study, "Results")
    assert [row[0] for row in table.rows] == list(NAMES)
    assert [row[1] for row in table.rows] == ["1", "2", "2"]
    assert table.headings[-1] == "efficiency, same b [%]"  # no fixed global batch, no accuracy
    assert all(row[-1] != "NA" for row in table.rows)
    assert any(
        "rounded up to whole steps" in note for note in table.notes
    )  # why it is not `weak_efficiency` to the digit
    row = dict(zip(table.headings, table.rows[2], strict=True))
    assert float(row["efficiency, same b [%]"]) == pytest.approx(
        100 * float(row["speedup T_1(b)/T_N(b)"]) / 2, abs=0.3
    )


def test_empty_parts_are_omitted_with_the_reason(study: Study) -> None:
    titles = [one.title for one in study.tables]
    assert all(
        set(row[3:]) != {"NA"} for one in study.tables if one.title != "Results" for row in one.rows
    )
    assert "Epoch seconds and speedup at fixed global batch" not in titles
    assert "Epoch seconds with and without data loading" not in titles
    assert (
        "Bandwidth and utilisation: no dp-host: host copies within one process: no link is used"
        in study.left_out
    )
    reasons = "\n".join(study.left_out)
    for reason in (
        "add --scaling strong",
        "--data synthetic loads nothing",
        "give --link",
        "nothing was trained here",
    ):
        assert reasons.count(reason) == 1, reason
    assert "Published" not in reasons  # none were requested


@pytest.mark.long
def test_the_command_prints_them_and_keeps_data_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from rich.console import Console

    from dpscope.analysis.output.analyze import Targets, print_run

    folder = tmp_path / "run"
    shutil.copytree(EXAMPLE_RUN, folder)
    assert print_run(folder, "csv", True, Targets(), Console(width=200))
    printed = capsys.readouterr()
    assert "Not printed" not in printed.out
    tables = [text for text in printed.out.split("\n\n") if text]
    assert all(text.startswith("# ") for text in tables)  # the title; notes follow their table
    assert "# b: batch per device" in tables[0].splitlines()
    assert next(csv.reader(tables[0].splitlines()[1:]))[:3] == ["strategy", "devices", "quantity"]
    assert "no test accuracy [%]: nothing was trained here" in printed.err


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


def test_published_values_are_shown_next_to_those_of_the_same_cell(study: Study) -> None:
    data = with_published(
        loaded(),
        published("epoch_seconds", 56.3),
        published("speedup", 1.8, unit="1"),
        published("utilisation", 1.25, unit="%"),
        # of nn.DataParallel, which dp-host is not
        published("epoch_seconds", 17.41, strategy="dp"),
        published("epoch_seconds", 17.41, batch_size=16),
    )
    table = titled(classic_tables(data, compare(data)), "Published")
    epochs = titled(study, "Epoch seconds and speedup at fixed batch per device")
    assert [(row[0], row[1], *row[3:]) for row in table.rows] == [
        ("ddp-d2-b8", "epoch", "56.3 s", "by its clock", "a report (4x L4)"),
        ("ddp-d2-b8", "speedup, same batch per device", "1.8", "by its clock", "a report (4x L4)"),
        ("ddp-d2-b8", "utilisation", "1.25%", "by its clock", "a report (4x L4)"),
    ]
    assert float(table.rows[0][2].removesuffix(" s")) == pytest.approx(
        entry(epochs, "ddp", "epoch [s]"), abs=6e-3
    )
    assert float(table.rows[1][2]) == pytest.approx(
        entry(epochs, "ddp", "speedup T_1(b)/T_N(b)"), abs=6e-3
    )
    assert table.rows[2][2] == "NA"  # no link is known
    assert "no verdict" in table.notes[0]
    none = with_published(loaded())
    assert [
        line
        for line in classic_tables(none, compare(none)).left_out
        if line.startswith("Published")
    ] == [
        "Published values of the same cells (other hardware): others.csv has no row for a measured cell: model, data, "
        "strategy, devices and batch must be the same"
    ]


def measured_cell(cell: Cell, step_us: float, **phases: float) -> Job:
    traced = windows(cell, 4, 2, step_us=step_us, compute_us=0.9 * step_us, **phases)
    return cell_data(cell, [[step_us] * 8] * 2, traced)


SINGLE = Cell(strategy="single", devices=1, batch_size=8)
ONE_NODE, TWO_NODES = (
    Cell(strategy="ddp", devices=2, batch_size=8, nodes=nodes) for nodes in (1, 2)
)


def test_cells_on_one_and_on_two_nodes_are_rows_of_their_own_and_named_by_the_first_answer() -> (
    None
):
    single, one_node, two_nodes = (
        measured_cell(SINGLE, 100.0),
        measured_cell(ONE_NODE, 80.0),
        measured_cell(TWO_NODES, 50.0),
    )
    run, alone = run_of(single, one_node, two_nodes), run_of(single, one_node)
    (table, *_) = classic_tables(run, compare(run)).tables
    speedups = {row[0]: row[3] for row in table.rows if row[2].startswith("speedup")}
    assert (speedups["ddp"], speedups["ddp, 2 nodes"]) == ("1.25", "2.00")
    assert "on 2 devices over 2 nodes" in run_verdict(run, compare(run)).which.text
    assert "nodes" not in run_verdict(alone, compare(alone)).which.text


def test_phases_are_columns_and_rows_of_an_epoch() -> None:
    phases = {"forward_us": 30.0, "backward_us": 50.0, "optimizer_us": 10.0}
    run = run_of(measured_cell(SINGLE, 100.0, **phases), measured_cell(ONE_NODE, 120.0, **phases))
    comparison = compare(run)
    values = comparison.table.set_index("cell").loc["ddp-d2-b8"]
    assert {name: values[name] for name in phases} == phases
    assert comparison.reasons["ddp-d2-b8", "data_us"] == "the traces hold no range of this phase"
    phase_view = views_by_name(comparison)["phases"]
    assert [row[-3:] for row in phase_view.rows] == [("30.0", "50.0", "10.0")] * 2
    tables = {one.title: one for one in classic_tables(run, comparison).tables}
    rows = tables["Compute and communication of an epoch, traced"].rows
    assert {"forward [s]", "backward [s]", "optimizer [s]"} <= {
        row[2] for row in rows if row[0] == "ddp"
    }


def test_bandwidth_by_subtraction_is_shown_next_to_the_measured_one_and_the_calibrated_rate_replaces_a_link() -> (
    None
):
    """Ring bytes of 2 devices are the gradients' bytes: over 20 us of subtraction."""
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
    comparison = compare(run, calibration=calibrated)
    rate = comparison.table.set_index("cell").loc["ddp-d2-b8", "ring_subtraction_gb_per_s"]
    assert rate == pytest.approx(SIZES.gradient_bytes / 20.0 / 1e3)
    study = classic_tables(run, comparison)
    table = titled(study, "Bandwidth and utilisation")
    quantities = [row[2] for row in table.rows]
    assert quantities[1:3] == ["all-reduces, busbw [GB/s]", "ring, by T_N-T_1/N [GB/s]"]
    of_calibrated = SIZES.gradient_bytes / 16.0 / 1e3 / 2.0 * 100
    assert entry(table, "ddp", "busbw / calibrated [%]") == pytest.approx(of_calibrated, rel=0.01)
    assert any("calibrated rate" in note and "2 GB/s" in note for note in table.notes)
    assert not any("give --link" in line for line in study.left_out)
    linked = classic_tables(run, compare(run, link=parse_link("4GB/s"), calibration=calibrated))
    assert any(row[2] == "busbw / link [%]" for one in linked.tables for row in one.rows)
