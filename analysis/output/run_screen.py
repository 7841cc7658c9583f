"""What the commands print of run folders, by rich on a terminal and as text elsewhere; each returns
whether it passed.
"""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpscope.analysis.findings.facts import Fact, Verdict
from dpscope.analysis.report.files import DEFAULT_FORMATS, PrintedReport
from dpscope.analysis.text.terminal import (
    Trimmed,
    folded,
    open_in_browser,
    print_findings,
    print_missing,
    print_table,
    print_tables,
    progress,
)
from dpscope.analysis.text.text_table import OutputFormat, csv_with_notes
from dpscope.profiling.machine.gpu_speed import StatedFlops
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RunFolder, is_run_folder
from dpscope.profiling.store.shown_text import write_out

if TYPE_CHECKING:
    from dpscope.analysis.report.build import Report
    from dpscope.analysis.runs.run_data import RunData

Detail = Literal["summary", "everything", "path"]

MOST_LINES = 24  # of the first screen
_LINES_AROUND_ROWS = 5  # an empty one, title and headings above; what more there is, and where
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True)
class Targets:
    """What the user states of a run or of traces and judges them against; None: the value stated
    when a run was measured.

    `calibration` is read as `costs_at` does, in place of the one in the run's folder; `report` is
    where the report goes.
    """

    link: LinkRate | None = None
    calibration: Path | None = None
    report: Path | None = None
    efficiency: float | None = None  # 0..1
    accuracy: float | None = None  # percent
    nccl_logs: tuple[Path, ...] = ()  # of one of the run's jobs
    flops: StatedFlops | None = None  # of cells that did not count them
    figure_formats: Sequence[str] = DEFAULT_FORMATS  # as in `write_report`
    open_page: bool = False  # in the user's browser
    hide_hosts: bool = False  # of traces: numbers replace host names in all output

    @property
    def modelled(self) -> bool:
        """Whether models of traces are requested."""
        return (
            self.link is not None
            or self.calibration is not None
            or bool(self.nccl_logs)
            or self.flops is not None
        )


def load(path: Path, target_accuracy: float | None = None) -> "RunData":
    """Load a run, with the cell that is being read on standard error."""
    from dpscope.analysis.runs.run_data import load_run

    with progress() as report:
        return load_run(path, report, target_accuracy)


def report_of(path: Path, targets: Targets) -> "Report":
    """The report of a run, with the calibration that lies in its folder, if one does."""
    from dpscope.analysis.costs.calibration_files import costs_at
    from dpscope.analysis.report.build import make_report

    calibration = costs_at(targets.calibration) if targets.calibration is not None else None
    run = load(path, targets.accuracy)
    if targets.flops is not None:
        check_flops(run)
    with progress("Comparing cells"):
        return make_report(
            run, targets.link, calibration, targets.efficiency, targets.nccl_logs, targets.flops
        )


def findings_of(path: Path) -> "tuple[Finding, ...]":
    """The findings on a run, without the rest of its report."""
    from dpscope.analysis.cells.comparison import compare
    from dpscope.analysis.findings.run_findings import conclusions

    run = load(path)
    with progress("Comparing cells"):
        return tuple(conclusions(run, compare(run)))


def check_flops(run: "RunData") -> None:
    """Raises DpscopeError where FLOPs that the user states would be those of no cell, or of cells
    with different batches.
    """
    uncounted = [
        data
        for data in run.measured
        if all(rank.flops is None or rank.flops.total is None for _, rank in data.ranks)
    ]
    if not uncounted:
        raise DpscopeError(
            "--flops does nothing here: the run counted the FLOPs of its cells itself; omit it"
        )
    if len(batches := sorted({data.cell.batch_size for data in uncounted})) > 1:
        listed = ", ".join(map(str, batches))
        raise DpscopeError(
            f"--flops: cells have batches of {listed} per device, whose FLOPs differ; analyze runs of one batch per device"
        )


def show_run(path: Path, targets: Targets, console: Console, detail: Detail = "summary") -> bool:
    """Analyze a run, write its report, print what `detail` asks for; of a folder with trainings
    alone, these.

    In a run folder that may only be read the report is printed without a page.
    """
    if not is_run_folder(path):
        from dpscope.analysis.report.training_report import show_training

        return show_training(
            path, targets.accuracy, console, targets.figure_formats, targets.open_page
        )
    from dpscope.analysis.report.build import write_report

    report = report_of(path, targets)
    folder = targets.report or RunFolder(path).report_path
    page: Path | None = folder / "report.html"
    try:
        with progress("Writing the report"):
            write_report(report, targets.figure_formats, folder)
    except OSError as error:
        if (
            targets.report is not None
            or detail == "path"
            or targets.open_page
            or error.errno not in _READ_ONLY
        ):
            raise
        page = None
    if detail == "path":
        console.print(str(page), highlight=False, soft_wrap=True)
    elif detail == "summary":
        print_summary(console, report.printed, page)
    else:
        _print_everything(console, report.printed, page)
    if detail != "path" and (recorded := RunFolder(path).collectives()):
        console.print(
            f"Collectives of {counted(len(recorded), 'whole job')}: dpscope analyze {recorded[-1]}",
            highlight=False,
            soft_wrap=True,
        )
    if targets.open_page and page is not None:
        open_in_browser(page)
    return report.printed.sound


def _print_everything(console: Console, report: PrintedReport, page: Path | None) -> None:
    console.print(fact_grid(report.verdict))
    console.print()
    console.print(Trimmed(folded(report.setting, "dim")))
    for table in (report.summary, *report.tables):
        print_table(console, table)
    print_missing(console, report.missing)
    print_findings(console, report.findings)
    console.print(f"\nReport: {place_of_page(page)}", highlight=False, soft_wrap=True)


def print_run(
    path: Path, output_format: OutputFormat, classic: bool, targets: Targets, console: Console
) -> bool:
    """A run in a format other programs read, or its classic tables; nothing is written."""
    if not is_run_folder(path) and not classic:
        from dpscope.analysis.report.training_report import print_training

        return print_training(path, output_format, targets.accuracy)
    report = report_of(path, targets)
    if output_format == "json":
        from dpscope.analysis.output.run_json import run_json

        write_out(run_json(report) + "\n")
    elif output_format == "csv" and not classic:
        from dpscope.analysis.report.comparison_tables import comparison_csv

        write_out(comparison_csv(report.comparison))
    elif classic and output_format == "csv":
        write_out("\n".join(map(csv_with_notes, report.study.values())))
    elif classic:
        print_tables([*report.study.values()], output_format, console)
    else:
        print_tables([*report.first.values(), *report.tables.values()], output_format, console)
    return report.printed.sound


def print_summary(console: Console, report: PrintedReport, page: Path | None) -> None:
    """The first screen, at most MOST_LINES at 80 columns: the facts, the steps of the cells that
    they are about, errors that no limit states, and where the rest is.
    """
    # other notes are with the whole table: the first screen has no line for them
    rows = tuple(row for row in report.summary.rows if row[0] in report.first_cells)
    below = len(rows) + len(report.first_notes) + _LINES_AROUND_ROWS
    verdict = _within(report.verdict, MOST_LINES - below, console)
    console.print(fact_grid(verdict))
    print_table(console, replace(report.summary, rows=rows, notes=report.first_notes))
    stated = {line for limit in verdict.limits for line in limit.lines}
    unstated = [finding for finding in report.findings if finding.message not in stated]
    errors = [finding for finding in unstated if finding.severity == "error"]
    if errors:
        print_findings(console, errors)
    left = {"finding": len(unstated) - len(errors), "cell": len(report.summary.rows) - len(rows)}
    more = [counted(count, f"more {noun}") for noun, count in left.items() if count]
    if more:
        console.print(f"{', '.join(more)}: --verbose", highlight=False)
    console.print(f"Report: {place_of_page(page)}", highlight=False, soft_wrap=True)


def _within(verdict: Verdict, most: int, console: Console) -> Verdict:
    """The verdict in `most` lines, if what limits it can be shortened to that; --verbose prints all
    lines.
    """
    for shorter in _shortened(verdict):
        if len(console.render_lines(fact_grid(shorter))) <= most:
            return shorter
    return shorter


def _shortened(verdict: Verdict) -> Iterator[Verdict]:
    """The verdict, and with a line for each of its limits, and with one for all but the first."""
    yield verdict
    limits = tuple(replace(limit, lines=limit.lines[:1]) for limit in verdict.limits)
    yield replace(verdict, limits=limits)
    first, *others = limits or (None,)
    if first is not None and len(others) > 1:
        labels = ", ".join(limit.label for limit in others)
        also = Fact("limits", "ALSO", (f"{labels}: --verbose",))
        yield replace(verdict, limits=(first, also))


def place_of_page(page: Path | None) -> str:
    """Where the page is; None: the run folder may only be read."""
    none = "no page: this folder may only be read; give --report FOLDER for one"
    return none if page is None else f"{page}"


def fact_grid(verdict: Verdict) -> Trimmed:
    """What was measured, then each line of each fact next to its label."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for fact in verdict.shown:
        style = "bold yellow" if fact.question == "limits" else "bold"
        first, *others = fact.lines
        grid.add_row(Text(fact.label, style=style), folded(first))
        for line in others:
            grid.add_row("", folded(line))
    both = Table.grid()
    both.add_row(folded(verdict.setting))
    if verdict.shown:
        both.add_row(grid)
    return Trimmed(both)
