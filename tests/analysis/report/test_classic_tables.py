"""The tables of studies, from the example run: what is shown is what was measured, what is not says why."""

import shutil
from pathlib import Path

import pytest

from dpscope.analysis.comparison.compare import compare
from dpscope.analysis.report.classic_tables import Study, classic_tables
from dpscope.analysis.runs.run_data import load_run
from dpscope.analysis.text.text_table import TextTable
from tests.helpers.paths import EXAMPLE_RUN

NAMES = ("single-d1-b8", "dp-host-d2-b8", "ddp-d2-b8")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, dict[str, dict[str, float]]]:
    """The example run's tables, and its comparison by cell."""
    folder = tmp_path_factory.mktemp("study") / "run"
    shutil.copytree(EXAMPLE_RUN, folder)
    run = load_run(folder)
    comparison = compare(run)
    rows = comparison.table.to_dict("records")
    return classic_tables(run, comparison), {
        str(row["cell"]): {str(key): value for key, value in row.items()} for row in rows
    }


def entry(table: TextTable, strategy: str, quantity: str) -> float:
    (row,) = [row for row in table.rows if row[0] == strategy and row[2] == quantity]
    return float(row[3])


def test_an_epoch_is_steps_per_epoch_times_a_step(study: tuple[Study, dict[str, dict[str, float]]]) -> None:
    """So the sum of an epoch's parts compares with its subtraction: both are seconds of the same epoch."""
    tables, cells = study
    ddp = cells["ddp-d2-b8"]
    steps = ddp["steps_per_epoch"]
    assert steps > 1
    (table,) = [one for one in tables.tables if one.title.startswith("Compute and communication")]
    for quantity, column in (
        ("compute [s]", "compute_us"),
        ("communication, measured [s]", "communication_us"),
        ("exposed, measured [s]", "exposed_us"),
    ):
        assert entry(table, "ddp", quantity) == pytest.approx(ddp[column] * steps / 1e6, abs=6e-4)
    # T_N - T_1/N at equal batch per device is that many steps of t_N(b) - t_1(b).
    assert entry(table, "ddp", "estimate T_N-T_1/N [s]") == pytest.approx(
        ddp["same_local_batch_us"] * steps / 1e6, abs=6e-4
    )


def test_results_hold_a_row_per_cell_and_no_empty_column(study: tuple[Study, dict[str, dict[str, float]]]) -> None:
    tables, _ = study
    (table,) = [one for one in tables.tables if one.title == "Results"]
    assert [row[0] for row in table.rows] == list(NAMES)
    assert [row[1] for row in table.rows] == ["1", "2", "2"]
    assert table.headings[-1] == "efficiency, same b [%]"  # no fixed global batch, no accuracy
    assert all(row[-1] != "NA" for row in table.rows)


def test_what_is_empty_is_not_printed_and_says_why(study: tuple[Study, dict[str, dict[str, float]]]) -> None:
    tables, _ = study
    titles = [one.title for one in tables.tables]
    assert all(one.rows for one in tables.tables)
    assert all(set(row[3:]) != {"NA"} for one in tables.tables if one.title != "Results" for row in one.rows)
    assert "Epoch seconds and speedup at fixed global batch" not in titles
    assert "Epoch seconds with and without data loading" not in titles
    said = "\n".join(tables.left_out)
    for reason in ("add --scaling strong", "--data synthetic loads nothing", "give --link", "nothing was trained here"):
        assert said.count(reason) == 1, reason


def test_the_command_prints_them_and_keeps_data_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from rich.console import Console

    from dpscope.analysis.output.analyze import Targets, print_run

    folder = tmp_path / "run"
    shutil.copytree(EXAMPLE_RUN, folder)
    assert print_run(folder, "csv", True, Targets(), Console(width=200))
    printed = capsys.readouterr()
    assert "Not printed" not in printed.out
    assert "no test accuracy [%]: nothing was trained here" in printed.err
