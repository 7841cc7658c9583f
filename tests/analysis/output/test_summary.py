"""The first screen at 80 columns: facts, one table, errors, the report's path."""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.findings.facts import Fact, Verdict
from dpscope.analysis.findings.verdict import STAND_IN
from dpscope.analysis.output.analyze import Targets, print_summary, report_of, show_run
from dpscope.analysis.report.comparison_tables import first_cells
from dpscope.analysis.report.files import PrintedReport
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.text.text_table import TextTable
from dpscope.launch.contents import app
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run_codes import RunCode
from tests.helpers.made_rows import made_row
from tests.helpers.paths import DATA, EXAMPLE_RUN, ROOT


def shown(report: PrintedReport) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    print_summary(console, report, Path("run_cpu/report/report.html"))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def of_traces(place: Path) -> list[str]:
    """What `analyze` prints of traces."""
    ended = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["analyze", str(place)])
    return ended.stdout.strip("\n").splitlines()


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
    assert of_run == in_readme("the whole output of `dpscope analyze examples/run_cpu`")
    assert max(map(len, of_run)) <= 80
    assert len(of_run) <= 24
    monkeypatch.chdir(ROOT)
    printed = of_traces(Path("tests/data/v100x8_ddp_dlrm"))
    assert printed == in_readme("`dpscope analyze tests/data/v100x8_ddp_dlrm`")


@pytest.mark.long
@pytest.mark.parametrize("name", ["v100x8_ddp_dlrm", "a100x2_ddp_resnet50_rank0.json.gz"])
def test_what_is_printed_of_traces_fits_a_screen(name: str) -> None:
    lines = of_traces(DATA / name)
    assert 10 < len(lines) <= 40
    assert max(map(len, lines)) <= 80


LABELS = ("NOISY", "USE DDP", "COST", "SHORTCUTS", "LATE RANK", "NEXT")


def demo(findings: tuple[Finding, ...] = ()) -> PrintedReport:
    """A report as `make demo` leaves it: three strategies and DDP alone, on one device and two, at
    two batches. Each fact fills two lines.
    """
    cells = [
        f"{name}-b{batch}"
        for batch in (4, 8)
        for name in ("single-d1", "ddp-d1", "dp-host-d2", "ddp-d2")
    ]
    headings = [
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
    ]
    values = ["1481.4", "13.90", "100.0", "1488.3", "1188.3", "11.8", "239.9", "33.8", "14.5"]
    facts = [Fact("which", label, ("twelve char " * 10,)) for label in LABELS]
    return PrintedReport(
        setting="",
        verdict=Verdict(f"vgg11, 2 CPU cores. {STAND_IN}", tuple(facts[:1]), tuple(facts[1:])),
        summary=TextTable(
            "Where a step goes [ms]", tuple(headings), tuple((cell, *values) for cell in cells)
        ),
        first_cells=tuple(cells[index] for index in (4, 6, 7)),
        tables=(),
        missing=(),
        findings=findings,
    )


def test_several_batches_fit_a_screen_and_what_is_left_out_is_counted() -> None:
    slow = RunCode.TRACER_COST.finding("ddp-d2-b8: a traced step takes 1.25x as long")
    lines = shown(demo(findings=(slow,) * 7))
    assert len(lines) <= 30
    assert [label for line in lines for label in LABELS if line.startswith(label)] == [*LABELS]
    first = [line.split()[0] for line in lines if line.split()[1:2] == ["1481.4"]]
    assert first == [f"{name}-b8" for name in ("single-d1", "dp-host-d2", "ddp-d2")]
    assert lines[-2:] == [
        "7 more findings, 5 more cells: --verbose",
        "Report: run_cpu/report/report.html",
    ]


def test_errors_are_on_the_first_screen_and_no_finding_is_invented() -> None:
    failed = RunCode.CELL_FAILED.finding("ddp-d2-b4: failed: out of memory")
    lines = shown(demo(findings=(failed,)))
    assert any(line.startswith("error ") and "out of memory" in line for line in lines)
    assert "5 more cells: --verbose" in lines
    assert not [line for line in shown(demo()) if "finding" in line or line.startswith("error")]


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
    assert "COST" in printed
    assert "give --report FOLDER for one" in printed
    with pytest.raises(PermissionError):
        show_run(run, Targets(report=tmp_path / "there"), console)
