"""The first screen of a run: its three answers, one table, the worst findings, and where the report lies."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpscope.analysis.report.printed import PrintedReport
from dpscope.analysis.text.terminal import Trimmed, folded, print_table
from dpscope.analysis.text.units import counted, sentence
from dpscope.profiling.records.finding import Finding

MOST_FINDINGS = 5
_LABELS = ("Which", "Cost", "To do")  # of the answers
_STYLES = {"error": "bold red", "warning": "yellow"}


def print_summary(console: Console, report: PrintedReport, page: Path, findings: bool = True) -> None:
    """About 25 lines at 80 columns; `--verbose` prints what the page holds."""
    console.print()
    if report.caveat:
        console.print(Trimmed(Text(report.caveat, style="yellow")))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for label, answer in zip(_LABELS, report.answers, strict=True):
        grid.add_row(label, folded(answer))
    console.print(Trimmed(grid))
    print_table(console, report.summary)
    if findings:
        _print_worst(console, report.findings)
        console.print(f"\nReport: {page}", highlight=False, soft_wrap=True)


def _print_worst(console: Console, findings: Sequence[Finding]) -> None:
    """Errors whole, warnings by their meaning, no more than MOST_FINDINGS; the page has each in full."""
    grave = [one for one in findings if one.severity != "info"]
    if not grave:
        return
    console.print()
    grid = Table.grid(padding=(0, 1))
    for one in grave[:MOST_FINDINGS]:
        grid.add_row(Text(one.severity, style=_STYLES[one.severity]), folded(_short(one)))
    console.print(Trimmed(grid))
    more = len(grave) - MOST_FINDINGS
    if more > 0:
        console.print(Text(f"{counted(more, 'more finding')} in the report, or with --verbose.", style="dim"))


def _short(finding: Finding) -> str:
    """An error in full; of a warning what it means, with the first cell it names."""
    if finding.severity == "error":
        return f"{sentence(finding.message)} {sentence(finding.next_step)}"
    return sentence(finding.message.split("; ")[0])
