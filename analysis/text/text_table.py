"""Tables of text, and their renderers: CSV, Markdown, LaTeX."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dpscope.analysis.text.units import sentence
from dpscope.profiling.records.finding import Finding

OutputFormat = Literal["table", "json", "csv", "markdown", "latex"]


@dataclass(frozen=True)
class TextTable:
    """A table of formatted text: headings include units, and each row has an entry per heading."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # why values are NA


def render(table: TextTable, table_format: str) -> str:
    """A table as Markdown, CSV or LaTeX text; raises ValueError for another format."""
    renderers: dict[str, Callable[[TextTable], str]] = {"markdown": _markdown, "csv": render_csv, "latex": _latex}
    if table_format not in renderers:
        raise ValueError(f"table format {table_format!r}: choose from {', '.join(renderers)}")
    return renderers[table_format](table)


def render_csv(table: TextTable) -> str:
    """A table as CSV text."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.headings)
    writer.writerows(table.rows)
    return buffer.getvalue()


def _markdown(table: TextTable) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    numeric = ["---" if index == 0 else "---:" for index in range(len(table.headings))]
    lines = [f"**{table.title}**", "", line(table.headings), line(numeric), *(line(row) for row in table.rows)]
    if table.notes or table.missing:
        lines += ["", *(f"- {note}" for note in (*table.notes, *table.missing))]
    return "\n".join(lines) + "\n"


def render_findings(findings: Iterable[Finding]) -> str:
    """Findings with their next steps as a Markdown list with a title."""
    lines = (f"- {one.severity}: {sentence(one.message)} {sentence(one.next_step)}\n" for one in findings)
    return "**Findings**\n\n" + "".join(lines)


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a left-aligned Markdown table; bars in cells are escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(headings), "|" + " --- |" * len(headings), *(line(row) for row in rows)]


_LATEX_SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "~": "\\textasciitilde{}",
    "\\": "\\textbackslash{}",
}


def _latex(table: TextTable) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX_SPECIAL.get(char, char) for char in cell) for cell in cells) + r" \\"

    caption = "".join(_LATEX_SPECIAL.get(char, char) for char in table.title)
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}",
            r"\hline",
            line(table.headings),
            r"\hline",
            *(line(row) for row in table.rows),
            r"\hline",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )
