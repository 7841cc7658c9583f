"""The first screen of a run at 80 columns: the verdict, two tables, the worst findings, the
report's path.
"""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.findings.answers import LABELS
from dpscope.analysis.findings.verdict import STAND_IN
from dpscope.analysis.output.analyze import Targets, print_summary, report_of, show_run
from dpscope.analysis.report.comparison_tables import first_cells
from dpscope.analysis.report.files import PrintedReport
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.text.text_table import TextTable
from dpscope.launch.contents import app
from dpscope.profiling.records.run_codes import RunCode
from tests.helpers.made_rows import made_row
from tests.helpers.paths import EXAMPLE_RUN, ROOT

SCREEN = 30  # lines


def shown(report: PrintedReport, whole: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    print_summary(console, report, Path("run_cpu/report/report.html"), whole)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def in_readme(after: str) -> list[str]:
    """The lines of the first block below a sentence of the README."""
    return (
        (ROOT / "README.md")
        .read_text()
        .split(after, 1)[1]
        .split("```text\n", 1)[1]
        .split("```")[0]
        .splitlines()
    )


@pytest.mark.long
def test_the_readme_shows_what_is_printed_of_a_run_and_of_gpu_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples" / "run_cpu", tmp_path / "run_cpu")
    monkeypatch.chdir(tmp_path)
    of_run = shown(report_of(Path("run_cpu"), Targets()).printed)
    assert of_run == in_readme("the whole output of `dpscope analyze")
    monkeypatch.chdir(ROOT)
    printed = (
        CliRunner(env={"COLUMNS": "80"})
        .invoke(app, ["analyze", "tests/data/v100x8_ddp_dlrm"])
        .stdout
    )
    of_traces = printed.split("\nSteps\n")[0].strip("\n").splitlines()
    assert of_traces == in_readme("`dpscope analyze tests/data/v100x8_ddp_dlrm`")
    assert max(map(len, of_run)) <= 80
    assert max(map(len, (of_run, of_traces))) <= SCREEN


def demo(answer: str, findings: int) -> PrintedReport:
    """A report as `make demo` leaves it: three strategies and DDP alone, on one device and two, at
    two batches.
    """
    cells = [
        f"{name}-b{batch}"
        for batch in (4, 8)
        for name in ("single-d1", "ddp-d1", "dp-host-d2", "ddp-d2")
    ]
    headings = (
        "cell",
        "step",
        "samples/s",
        "eff.[%]",
        "traced",
        "compute",
        "wait",
        "transfer",
        "other",
        "idle",
    )
    rows = tuple(
        (cell, "1481.4", "13.90", "100.0", "1488.3", "1188.3", "11.8", "239.9", "33.8", "14.5")
        for cell in cells
    )
    second = ("cell", "exposed", "T_N-T_1", "error", "transfers", "ring", "error")
    shortcuts = tuple(
        (cell, "285.5", "301.2", "15.7", "239.9", "41.5", "-198.4")
        for cell in cells
        if "-d2-" in cell
    )
    return PrintedReport(
        setting="", warnings=(STAND_IN,),
        answers=tuple((label, answer) for label in LABELS),
        summary=TextTable("Where a step goes [ms]", headings, rows),
        shortcuts=TextTable("Against the shortcuts [ms]", second, shortcuts),
        first_cells=tuple(rows[index][0] for index in (4, 6, 7)), tables=(), missing=(),
        findings=tuple(
            RunCode.TRACER_COST.finding(f"{cells[number]}: a traced step takes 1.25x as long as an untraced one")
            for number in range(findings)
        ),
    )  # fmt: skip


@pytest.mark.parametrize("answer", ["Use DDP. " * 12, "Not decided: DDP gives 1.10x. " * 8])
def test_the_demo_ends_within_a_screen(answer: str) -> None:
    lines = shown(demo(answer, findings=7))
    assert len(lines) <= SCREEN
    labels = [
        line.split()[0]
        for line in lines
        if line.startswith(("Which ", "Cost ", "Shortcuts ", "To do "))
    ]
    assert labels == ["Which", "Cost", "Shortcuts", "To"]
    first = [line.split()[0] for line in lines if line.split()[1:2] == ["1481.4"]]
    assert first == [f"{name}-b8" for name in ("single-d1", "dp-host-d2", "ddp-d2")]
    assert [line.split()[0] for line in lines if line.split()[1:2] == ["285.5"]] == first[1:]
    printed = sum(line.startswith("warning ") for line in lines)
    assert (
        f"{7 - printed} more findings and 5 more cells: in the report, or with --verbose." in lines
    )
    assert lines[-1] == "Report: run_cpu/report/report.html"


def test_verbose_shows_every_cell_and_no_finding_is_invented() -> None:
    assert (
        sum(line.split()[1:2] == ["1481.4"] for line in shown(demo("Use DDP.", 0), whole=True)) == 8
    )
    assert not [
        line
        for line in shown(demo("Use DDP.", 0))
        if "finding" in line or line.startswith("warning")
    ]
    assert len([line for line in shown(demo("Use DDP.", 1)) if line.startswith("warning ")]) == 1


def test_the_rows_shown_first_are_those_of_the_answers() -> None:
    """Nine cells, of which the verdict speaks of two: these and their single device."""
    shapes = [(name, devices, batch) for batch in (4, 8) for name, devices in
              (("single", 1), ("ddp", 1), ("dp", 2), ("ddp", 2))]  # fmt: skip
    cells = [
        (f"{name}-d{devices}-b{batch}", name, devices, batch) for name, devices, batch in shapes
    ]
    variant = "ddp-d2-b8-overlap-off"
    rows = [
        made_row(cell=cell, strategy=strategy, devices=devices, batch_size=batch, step_us=1.0)
        for cell, strategy, devices, batch in (*cells, (variant, "ddp", 2, 8))
    ]
    comparison = Comparison({row.cell: row for row in rows}, variants={variant: "overlap-off"})
    chosen = first_cells(comparison, ("dp-d2-b8", "ddp-d2-b8"))
    assert chosen == ("single-d1-b8", "dp-d2-b8", "ddp-d2-b8")


@pytest.mark.parametrize(
    ("alone", "shown"),
    [
        (("single", 1, 8), True),  # at the same batch per device
        (("single", 1, 16), True),  # at the same global batch
        (("ddp", 1, 8), True),  # DDP on one device, where nothing else was measured
        (("single", 1, 4), False),
        (("ddp", 1, 4), False),
    ],
)
def test_the_row_of_the_one_device_that_the_verdict_compares_with_is_shown(
    alone: tuple[str, int, int], shown: bool
) -> None:
    rows = [
        made_row(
            cell=f"{strategy}-d{devices}-b{batch}",
            strategy=strategy,
            devices=devices,
            batch_size=batch,
            global_batch_size=devices * batch,
            step_us=1.0,
        )
        for strategy, devices, batch in (alone, ("ddp", 2, 8))
    ]
    over_itself = {"ddp-d2-b8": Estimate(1.5, None, None, 50)}
    comparison = Comparison({row.cell: row for row in rows}, over_itself=over_itself)
    chosen = first_cells(comparison, ("ddp-d2-b8",))
    assert chosen == tuple(row.cell for row in rows if shown or row.devices == 2)


@pytest.mark.long
def test_a_run_folder_that_may_only_be_read_is_printed_without_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "report"))

    monkeypatch.setattr("dpscope.analysis.report.build.write_report", denied)
    run = Path(shutil.copytree(EXAMPLE_RUN, tmp_path / "run"))
    console = Console(file=io.StringIO(), width=80)
    show_run(run, Targets(), console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert printed.startswith("CPU stand-in")
    assert "give --report FOLDER for one." in printed
    with pytest.raises(PermissionError):
        show_run(run, Targets(report=tmp_path / "there"), console)
