"""Text tables and findings on a terminal, by rich: colour only on a terminal, wide only where there is room."""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dpscope.analysis.tables import TextTable
from dpscope.analysis.units import sentence
from dpscope.profiling.run_types import Finding

_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def print_table(console: Console, table: TextTable) -> None:
    """One table with its notes beneath it."""
    drawn = Table(
        title=escape(table.title), title_justify="left", title_style="bold", pad_edge=False, box=None, padding=(0, 1)
    )
    for index, heading in enumerate(table.headings):
        widest = max((len(row[index]) for row in table.rows), default=0)  # headings may wrap, values not
        drawn.add_column(escape(heading), justify="left" if index == 0 else "right", overflow="fold", min_width=widest)
    for row in table.rows:
        drawn.add_row(*(escape(value) for value in row))
    console.print()
    console.print(drawn)
    for note in table.notes:
        console.print(Text(note, style="dim"))


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Findings as sentences, each with its next step."""
    console.print()
    console.print(Text("Findings", style="bold"))
    rows = Table.grid(padding=(0, 1))
    for finding in findings:
        said = Text(f"{sentence(finding.message)} ")
        said.append(sentence(finding.next_step), style="dim")
        rows.add_row(Text(finding.severity, style=_STYLES[finding.severity]), said)
    console.print(rows)
