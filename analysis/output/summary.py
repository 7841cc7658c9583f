"""The first screen: a verdict, two tables, the worst findings, and where the report lies."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dpscope.analysis.report.stamp import PrintedReport
from dpscope.analysis.text.terminal import Trimmed, folded, print_table, table_lines
from dpscope.analysis.text.units import sentence
from dpscope.profiling.records.finding import Finding, counted

MOST_FINDINGS = 3
_LINES = 30  # of the whole at 80 columns: findings take what the answers and the tables leave; errors are always shown
_STYLES = {"error": "bold red", "warning": "yellow"}


def print_summary(console: Console, report: PrintedReport, page: Path | None, whole: bool = False) -> None:
    """At most 30 lines at 80 columns. `whole`: the answers with a row for every cell, and nothing after them."""
    answers = answer_grid(report.warnings, report.answers)
    tables = [report.summary, *([] if report.shortcuts is None else [report.shortcuts])]
    if not whole:
        tables = [replace(one, rows=tuple(row for row in one.rows if row[0] in report.first_cells)) for one in tables]
    console.print(answers)
    for table in tables:
        print_table(console, table)
    if whole:
        return
    serious = [one for one in report.findings if one.severity != "info"]
    used = _height(console, answers) + sum(1 + table_lines(console, table) for table in tables)
    used += 3  # a blank line, what is left out, where the report is
    listed = next(
        (
            count
            for count in range(min(MOST_FINDINGS, len(serious)), 0, -1)
            if used + _height(console, _findings(serious[:count])) <= _LINES
        ),
        sum(one.severity == "error" for one in serious),
    )
    if listed:
        console.print()
        console.print(_findings(serious[:listed]))
    left = {"finding": len(serious) - listed, "cell": len(report.summary.rows) - len(tables[0].rows)}
    if more := [counted(count, f"more {noun}") for noun, count in left.items() if count]:
        console.print(Text(f"{' and '.join(more)}: in the report, or with --verbose.", style="dim"))
    console.print(place_of_page(page), highlight=False, soft_wrap=True)


def place_of_page(page: Path | None) -> str:
    """Where the page is; None: the run folder may only be read."""
    none = "No page: this folder may only be read; give --report FOLDER for one."
    return none if page is None else f"Report: {page}"


def answer_grid(warnings: Sequence[str], answers: Sequence[tuple[str, str]]) -> Trimmed:
    """The answers with their labels, after what comes before any conclusion."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for label, answer in answers:
        grid.add_row(label, folded(answer))
    both = Table.grid()
    for warning in warnings:
        both.add_row(folded(warning, "yellow"))
    both.add_row(grid)
    return Trimmed(both if warnings else grid)


def _findings(findings: Sequence[Finding]) -> Trimmed:
    """Errors whole, warnings by their meaning; the page has each in full."""
    grid = Table.grid(padding=(0, 1))
    for one in findings:
        short = sentence(one.message.split("; ")[0])  # with the first cell that it names
        if one.severity == "error":
            short = f"{sentence(one.message)} {sentence(one.next_step)}"
        grid.add_row(Text(one.severity, style=_STYLES[one.severity]), folded(short))
    return Trimmed(grid)


def _height(console: Console, drawn: RenderableType) -> int:
    return len(console.render_lines(drawn, pad=False))
