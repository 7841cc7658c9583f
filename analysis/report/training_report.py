"""Trainings without measurements, on a terminal and in the report folder: page, training.md, training.csv, curves."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dpscope.analysis.report.page import render_page
from dpscope.analysis.report.stamp import TRAINING_FILES, data_digest, formats_there, is_current, replace_stamp
from dpscope.analysis.report.training_page import training_page
from dpscope.analysis.text.terminal import open_in_browser, print_findings, print_missing, print_table
from dpscope.analysis.text.text_table import render
from dpscope.analysis.text.units import sentence
from dpscope.analysis.training.data import TrainingData, load_training
from dpscope.analysis.training.findings import training_findings
from dpscope.analysis.training.tables import training_csv, training_json, training_tables
from dpscope.profiling.store.files import write_together
from dpscope.profiling.store.folders import RunFolder, is_run_folder
from dpscope.profiling.store.ownership import check_report


def show_training(
    folder: Path,
    target_accuracy: float | None,
    console: Console,
    figure_formats: Sequence[str] | None = None,
    open_page: bool = False,
) -> bool:
    """Print a run folder's trainings and write their files, as `write_training` does; whether nothing speaks against them.

    Files that stand there and were made from the same are left as they are.
    """
    made_from = data_digest(folder, f"trainings {target_accuracy}")
    data = load_training(folder, target_accuracy)
    shown = training_tables(data)
    for table in shown.values():
        print_table(console, table)
    if reasons := [reason for table in shown.values() for reason in table.missing]:
        print_missing(console, reasons)
    findings = training_findings(data)
    if findings:
        print_findings(console, findings)
    path = _page_of(data)
    if is_run_folder(folder) or not is_current(path.parent, made_from, figure_formats):
        write_training(data, figure_formats, made_from)
    console.print(f"\nReport: {path}", highlight=False, soft_wrap=True)
    if open_page:
        open_in_browser(path)
    return not any(finding.severity == "error" for finding in findings)


def print_training(folder: Path, output_format: str, target_accuracy: float | None) -> bool:
    """A run folder's trainings as JSON, CSV, Markdown or LaTeX on standard output; nothing is written."""
    data = load_training(folder, target_accuracy)
    if output_format == "json":
        sys.stdout.write(training_json(data) + "\n")
    elif output_format == "csv":
        sys.stdout.write(training_csv(data))
    else:
        for table in training_tables(data).values():
            sys.stdout.write(render(table, output_format) + "\n")
    return not any(finding.severity == "error" for finding in training_findings(data))


def write_training(data: TrainingData, figure_formats: Sequence[str] | None = None, made_from: str = "") -> Path:
    """Write training.md, training.csv, the curves and the page; returns the page's path.

    `figure_formats` are as in `write_report`; `made_from` is what `data_digest` gave before the trainings were loaded.
    The page of a folder with measurements is left alone: `analyze` sets the trainings beside them there.
    """
    from dpscope.analysis.figures.draw import figure_files
    from dpscope.analysis.figures.training import training_figures

    folder = RunFolder(data.folder).report_path
    drawn = training_figures(data)
    formats = formats_there(folder) if figure_formats is None else tuple(figure_formats)
    files = [f"{name}.{one}" for name in drawn for one in formats]
    check_report(data.folder, files)
    svg, figures = figure_files(drawn, formats)
    contents: dict[Path, bytes | str] = {folder / "figures" / name: content for name, content in figures.items()}
    contents |= {folder / "training.csv": training_csv(data), folder / "training.md": training_markdown(data)}
    page = _page_of(data)
    if not is_run_folder(data.folder):
        contents[page] = render_page(training_page(data, svg))
    write_together(contents)
    if not is_run_folder(data.folder):
        names = (*TRAINING_FILES, page.name, *(f"figures/{name}" for name in files))
        replace_stamp(folder, made_from, names, formats, printed=None)
    return page


def _page_of(data: TrainingData) -> Path:
    """What shows a folder's trainings: a page, or beside a run's own page their tables as Markdown."""
    return RunFolder(data.folder).report_path / ("training.md" if is_run_folder(data.folder) else "report.html")


def training_markdown(data: TrainingData) -> str:
    """Tables and findings as Markdown."""
    parts = [f"# Trainings: {data.folder.name}\n"]
    parts += [render(table, "markdown") for table in training_tables(data).values()]
    parts.append("**Findings**\n")
    parts.append(
        "".join(
            f"- {finding.severity}: {sentence(finding.message)} {sentence(finding.next_step)}\n"
            for finding in training_findings(data)
        )
    )
    return "\n".join(parts)
