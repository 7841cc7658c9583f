"""The first screen of a run: its three answers, one table, the worst findings, and where the report lies."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dpscope.analysis.report.printed import PrintedReport
from dpscope.analysis.text.terminal import Trimmed, folded, print_table, table_lines
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import sentence
from dpscope.profiling.records.finding import Finding, counted

MOST_FINDINGS = 3
_LINES = 29  # of the whole at 80 columns: findings take what the answers and the table leave, and one is always told
_LABELS = ("Which", "Cost", "To do")  # of the answers
_STYLES = {"error": "bold red", "warning": "yellow"}


def print_summary(console: Console, report: PrintedReport, page: Path, whole: bool = False) -> None:
    """About 25 lines at 80 columns. `whole`: the answers with a row for every cell, and nothing after them."""
    answers = _answers(report)
    table = report.summary if whole else _first_rows(report)
    console.print()
    console.print(answers)
    print_table(console, table)
    if whole:
        return
    grave = [one for one in report.findings if one.severity != "info"]
    used = (
        4 + _height(console, answers) + table_lines(console, table)
    )  # blank lines, what is left out, where the report is
    told = next(
        (
            count
            for count in range(min(MOST_FINDINGS, len(grave)), 1, -1)
            if used + _height(console, _findings(grave[:count])) <= _LINES
        ),
        min(1, len(grave)),
    )
    if grave:
        console.print()
        console.print(_findings(grave[:told]))
    if left := _left_out(len(grave) - told, len(report.summary.rows) - len(table.rows)):
        console.print(Text(left, style="dim"))
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def _answers(report: PrintedReport) -> Trimmed:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for label, answer in zip(_LABELS, report.answers, strict=True):
        grid.add_row(label, folded(answer))
    if report.caveat is None:
        return Trimmed(grid)
    both = Table.grid()
    both.add_row(Text(report.caveat, style="yellow"))
    both.add_row(grid)
    return Trimmed(both)


def _first_rows(report: PrintedReport) -> TextTable:
    table = report.summary
    return replace(table, rows=tuple(table.rows[index] for index in report.first_rows))


def _findings(findings: Sequence[Finding]) -> Trimmed:
    """Errors whole, warnings by their meaning; the page has each in full."""
    grid = Table.grid(padding=(0, 1))
    for one in findings:
        grid.add_row(Text(one.severity, style=_STYLES[one.severity]), folded(_short(one)))
    return Trimmed(grid)


def _height(console: Console, drawn: RenderableType) -> int:
    return len(console.render_lines(drawn, pad=False))


def _left_out(findings: int, cells: int) -> str:
    told = [counted(count, f"more {noun}") for count, noun in ((findings, "finding"), (cells, "cell")) if count]
    return f"{' and '.join(told)}: in the report, or with --verbose." if told else ""


def _short(finding: Finding) -> str:
    """An error in full; of a warning what it means, with the first cell it names."""
    if finding.severity == "error":
        return f"{sentence(finding.message)} {sentence(finding.next_step)}"
    return sentence(finding.message.split("; ")[0])
