"""Tables of text: declared by their columns, and rendered as CSV, Markdown or LaTeX."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from dpscope.analysis.text.latex import latex_table
from dpscope.analysis.text.units import Quantity, Unit, choose_unit, plain, sentence, show
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.shown_text import one_line

OutputFormat = Literal["table", "json", "csv", "markdown", "latex"]


@dataclass(frozen=True)
class TextTable:
    """A table of formatted text: headings include units, and each row has an entry per heading.

    `missing` states why values are NA; `meanings` has a sentence for each heading, empty where its
    columns are not declared.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    meanings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Field:
    """A column of a table: `get` is a function of a row, else the name of a row's key or attribute
    (also of ``part.attribute``).

    `unit` formats the values; a quantity chooses one for the column, and for all columns of times
    together. The heading gets the unit's label, unless it has one or the table's title states that
    of times as ``{unit}``.
    """

    heading: str
    get: str | Callable[[Any], object]
    unit: Quantity | Unit = "text"
    meaning: str = ""

    def value(self, row: object) -> object:
        """A row's value as plain Python, None where missing."""
        if not isinstance(self.get, str):
            return plain(self.get(row))
        return plain(row[self.get] if isinstance(row, Mapping) else attrgetter(self.get)(row))


CELL = Field("cell", "cell", meaning="Strategy, devices and batch per device, and the variant")


def estimate_fields(
    name: str, unit: Unit, meaning: str = "", ends: Unit | None = None
) -> list[Field]:
    """An estimate, which is an attribute of a row, and the ends of its 95% interval, in the unit
    `ends` if it is another.
    """
    return [
        Field(name.rpartition(".")[2], f"{name}.value", unit, meaning),
        Field("low", f"{name}.low", ends or unit, "Lower end of the 95% interval"),
        Field("high", f"{name}.high", ends or unit, "Upper end of the 95% interval"),
    ]


def table_of(
    title: str,
    fields: Iterable[Field],
    rows: Iterable[object],
    notes: Iterable[str] = (),
    missing: Iterable[str] = (),
    times: Iterable[float | None] = (),
) -> TextTable:
    """The table of these columns, with a row of text for each of `rows`; `times` choose the unit of
    times (default: all).
    """
    fields, rows = list(fields), list(rows)
    columns = [[field.value(row) for row in rows] for field in fields]
    numbers = [[one for one in column if isinstance(one, int | float)] for column in columns]
    timed = [known for field, known in zip(fields, numbers, strict=True) if field.unit == "time"]
    time = choose_unit("time", list(times) or [one for known in timed for one in known])
    units = [
        one.unit
        if isinstance(one.unit, Unit)
        else time
        if one.unit == "time"
        else choose_unit(one.unit, known)
        for one, known in zip(fields, numbers, strict=True)
    ]
    named = [
        one.heading
        if not unit.label or "[" in one.heading or (one.unit == "time" and "{unit}" in title)
        else f"{one.heading} [{unit.label}]"
        for one, unit in zip(fields, units, strict=True)
    ]
    shown = [
        [show(value, unit) for value in column] for column, unit in zip(columns, units, strict=True)
    ]
    return TextTable(
        title=title.replace("{unit}", time.label),
        headings=tuple(named),
        rows=tuple(zip(*shown, strict=True)),
        notes=tuple(notes),
        missing=tuple(missing),
        meanings=tuple(field.meaning for field in fields),
    )


def render(table: TextTable, table_format: str) -> str:
    """A table as Markdown, CSV or LaTeX text; raises ValueError for another format."""
    renderers: dict[str, Callable[[TextTable], str]] = {
        "markdown": _markdown,
        "csv": render_csv,
        "latex": _latex,
    }
    if table_format not in renderers:
        raise ValueError(f"table format {table_format!r}: choose from {', '.join(renderers)}")
    return renderers[table_format](table)


def render_csv(table: TextTable) -> str:
    """A table as CSV text."""
    buffer = io.StringIO()
    rows = (map(one_line, row) for row in (table.headings, *table.rows))
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def csv_with_notes(table: TextTable) -> str:
    """A table as CSV text, with its title and its notes as comments (#) around it: one of several
    in a file.
    """
    comments = [f"# {one_line(note)}\n" for note in (*table.notes, *table.missing)]
    return f"# {one_line(table.title)}\n{render_csv(table)}{''.join(comments)}"


_BEGINS_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def in_markdown(text: str) -> str:
    """The text as one line of Markdown, in which it can make neither an HTML element nor a link or
    an image.

    >>> in_markdown("<img src=x> [here](http://x) ![a](b)")
    '&lt;img src=x> [here]\\\\(http://x) ![a]\\\\(b)'
    """
    return _BEGINS_TAG.sub("&lt;", one_line(text)).replace("](", "]\\(")


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(in_markdown(cell).replace("|", "\\|") for cell in cells) + " |"


def _markdown(table: TextTable) -> str:
    numeric = ["---" if index == 0 else "---:" for index in range(len(table.headings))]
    lines = [
        f"**{in_markdown(table.title)}**",
        "",
        *map(_line, (table.headings, numeric, *table.rows)),
    ]
    if table.notes or table.missing:
        lines += ["", *(f"- {in_markdown(note)}" for note in (*table.notes, *table.missing))]
    return "\n".join(lines) + "\n"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a left-aligned Markdown table; bars in cells are escaped."""
    return [_line(headings), "|" + " --- |" * len(headings), *map(_line, rows)]


def render_findings(findings: Iterable[Finding]) -> str:
    """Findings with their next steps as a Markdown list with a title."""
    return "**Findings**\n\n" + "".join(f"{finding_line(one)}\n" for one in findings)


def finding_line(finding: Finding) -> str:
    """A finding as an item of a Markdown list."""
    return in_markdown(
        f"- {finding.severity}: {sentence(finding.message)} {sentence(finding.next_step)}"
    )


def _latex(table: TextTable) -> str:
    return latex_table(table.title, table.headings, table.rows, (*table.notes, *table.missing))
