"""The first screen at 80 columns: facts, one table, errors, the report's path."""

import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dpscope.analysis.output.run_screen import Targets, print_summary, report_of, show_run
from dpscope.analysis.report.build import make_report
from dpscope.analysis.report.files import PrintedReport
from dpscope.analysis.runs.run_data import load_run
from dpscope.analysis.text.terminal import print_table
from dpscope.analysis.traces.ranks.job import planned_job
from dpscope.launch.contents import app
from dpscope.profiling.records.run_codes import RunCode
from tests.helpers.examples import FIVE_REPEATS, reported
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
@pytest.mark.parametrize("lost", [None, "ddp-d2-b128", "single-d1-b128"])
def test_what_is_printed_of_a_run_fits_a_screen(lost: str | None) -> None:
    report = reported(FIVE_REPEATS)
    if lost is not None:
        planned = report.run.cells[lost].cell
        cells = {**report.run.cells, lost: planned_job(planned)}
        report = make_report(replace(report.run, cells=cells))
    of_run = shown(report.printed)
    assert max(map(len, of_run)) <= 80
    assert 10 < len(of_run) <= 24
    assert ("MISSING " in "".join(of_run)) is (lost is not None)


def test_everything_gives_reasons_for_printed_columns_and_keeps_names_whole() -> None:
    printed = reported(EXAMPLE_RUN).printed
    headings = {
        heading.partition(" [")[0] for table in printed.tables for heading in table.headings
    }
    assert "MFU" not in headings
    assert printed.missing
    assert not any("MFU" in reason for reason in printed.missing)
    console = Console(file=io.StringIO(), width=80)
    for table in printed.tables:
        print_table(console, table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("dp-host-d2-") and line.endswith("-")] == []


def copy_example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder becomes the working one, with a copy of the example in it."""
    shutil.copytree(ROOT / "examples" / "run_cpu", folder / "run_cpu")
    monkeypatch.chdir(folder)


@pytest.mark.long
def test_a_cut_trace_is_stated_once_on_the_screen_and_no_other_error_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_example(tmp_path, monkeypatch)
    trace = Path("run_cpu/cells/ddp-d2-b128/repeat1/traces/0_1.pt.trace.json.gz")
    trace.write_bytes(trace.read_bytes()[:5000])
    report = report_of(Path("run_cpu"), Targets()).printed
    screen = " ".join(" ".join(shown(report)).split())
    assert screen.count("rank 1's trace of repeat 1 is cut short") == 1
    assert screen.count(f"Copy {trace.relative_to('run_cpu')} again") == 1
    failed = RunCode.CELL_FAILED.finding("out of memory", about="ddp-d2-b128")
    with_failure = replace(report, findings=(*report.findings, failed))
    assert "error ddp-d2-b128: out of memory" in "".join(shown(with_failure))


@pytest.mark.long
def test_a_run_that_everything_limits_fits_a_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One repeat of DDP is lost, every cell drifts, repeats differ, and the calibration is noisy."""
    copy_example(tmp_path, monkeypatch)
    shutil.rmtree(Path("run_cpu/cells/ddp-d2-b128/repeat1"))
    run = load_run(Path("run_cpu"))
    cells = {}
    for name, data in run.cells.items():
        drift = RunCode.DRIFT.finding("steps grow longer by 61% within a repeat", about=name)
        cells[name] = data.with_findings(drift)
    report = make_report(replace(run, cells=cells)).printed
    limits = {limit.label: limit for limit in report.verdict.limits}
    assert {"MISSING", "NOISY", "DRIFT", "NOISY FIT"} <= limits.keys()
    of_run = shown(report)
    assert max(map(len, of_run)) <= 80
    assert len(of_run) <= 24
    screen = " ".join(" ".join(of_run).split())
    assert f"MISSING {limits['MISSING'].lines[0]}" in screen
    for fact in report.verdict.facts:
        assert all(line in screen for line in fact.lines)
    monkeypatch.setattr("dpscope.analysis.output.run_screen.MOST_LINES", len(of_run) - 1)
    shortened = " ".join(" ".join(shown(report)).split())
    assert "ALSO NOISY, DRIFT, NOISY FIT: --verbose" in shortened


@pytest.mark.long
def test_the_readme_shows_what_is_printed_of_gpu_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    printed = of_traces(Path("tests/data/v100x8_ddp_dlrm"))
    assert printed == in_readme("`dpscope analyze tests/data/v100x8_ddp_dlrm`")
    commands = (ROOT / "README.md").read_text()
    assert "\nmake demo " in commands
    assert "\nmake test " in commands


@pytest.mark.long
@pytest.mark.parametrize("name", ["v100x8_ddp_dlrm", "a100x2_ddp_resnet50_rank0.json.gz"])
def test_what_is_printed_of_traces_fits_a_screen(name: str) -> None:
    lines = of_traces(DATA / name)
    assert 10 < len(lines) <= 40
    assert max(map(len, lines)) <= 80


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


def test_parts_that_tracing_made_unreliable_are_marked_where_they_stand() -> None:
    """Their traced steps take 1.5 to 2 times as long as untraced ones."""
    report = report_of(EXAMPLE_RUN, Targets())
    marked = "parts hold for the traced step alone, not for an untraced one; tracing slowed: "
    screen = " ".join(" ".join(shown(report.printed)).split())
    assert "COST" in screen
    assert marked in screen
    named = screen.split(marked)[1]
    for row in report.comparison.rows.values():
        ratio = (row.traced_step_us or 0.0) / (row.step_us or 1.0)
        assert (f"{row.cell} {ratio:.1f}x" in named) == (ratio > 1.5)
    for name in ("step", "breakdown"):
        table = {**report.first, **report.tables}[name]
        assert any(note.startswith(marked) for note in table.notes), name
