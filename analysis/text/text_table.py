"""Tables: declared by their columns, with their values and as text, rendered as CSV, Markdown or
LaTeX.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dpscope.analysis.text.latex import latex_table
from dpscope.analysis.text.units import NA, Quantity, Unit, choose_unit, plain, sentence, show
from dpscope.profiling.records.finding import Finding, grouped
from dpscope.profiling.store.shown_text import one_line

if TYPE_CHECKING:
    import pandas as pd

OutputFormat = Literal["table", "json", "csv", "markdown", "latex"]


MOST_HEADINGS = 6
"""Of the columns that a line names whose values are missing, where it stands for several tables."""


class Unknown(NamedTuple):
    """Why a value is missing: in the column of this heading (empty: in most), in the row of this
    name. A column without any value is not `drawn`.
    """

    reason: str
    heading: str
    row: str
    drawn: bool = True
    is_half_width: bool = False  # which readers do not see as a column


def reasons(unknown: Iterable[Unknown], most: int | None = None) -> list[str]:
    """Each reason once, with at most `most` headings of its columns, and its rows."""
    lines = []
    for reason, alike in grouped((missing.reason, missing) for missing in unknown).items():
        columns = list(dict.fromkeys(missing.heading for missing in alike))
        rows = dict.fromkeys(missing.row for missing in alike)
        named = ", ".join(columns[:most])
        # Of many columns the first say enough.
        if most is not None and len(columns) > most:
            named += f" and {len(columns) - most} more"
        where = "; ".join(filter(None, (named, ", ".join(rows))))
        lines.append(f"{NA} ({where}): {reason}")
    return lines


@dataclass(frozen=True)
class TextTable:
    """A table of formatted text: headings include units, and each row has an entry per heading.

    `unknown` states why values are NA; `meanings` has a sentence for each heading, empty where its
    columns are not declared. `values` are the columns before they were formatted, by names that end
    in their unit.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    meanings: tuple[str, ...] = ()
    values: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    half_widths: tuple[int, ...] = ()  # places of columns: each is of the one before it

    @property
    def missing(self) -> tuple[str, ...]:
        """Why values are NA: each reason once, with its columns and rows."""
        return tuple(reasons(self.unknown))

    @property
    def all_notes(self) -> tuple[str, ...]:
        """What stands below it in every format: its notes, and why values are NA."""
        return (*self.notes, *self.missing)

    def for_readers(self) -> "TextTable":
        """With each half width behind its value, as ``1.23 ± 0.04``; a program wants its own column."""
        if not self.half_widths:
            return self
        kept = [place for place in range(len(self.headings)) if place not in self.half_widths]
        take = itemgetter(*kept)
        rows = map(self._with_half_widths, self.rows)
        unknown = []
        for missing in self.unknown:
            if not missing.is_half_width:
                unknown.append(missing)
        return replace(
            self,
            headings=take(self.headings),
            rows=tuple(map(take, rows)),
            meanings=take(self.meanings),
            unknown=tuple(unknown),
            half_widths=(),
        )

    def _with_half_widths(self, row: Sequence[str]) -> list[str]:
        cells = list(row)
        for place in self.half_widths:
            value = row[place - 1]
            half_width = row[place]
            if NA not in (value, half_width):
                cells[place - 1] = f"{value} ± {half_width}"
        return cells

    def frame(self) -> "pd.DataFrame":
        """Its values: a missing number is NaN in a column of floats, a missing word NA."""
        import pandas as pd

        return pd.DataFrame({name: _series(column) for name, column in self.values.items()})


def _series(column: Sequence[object]) -> "pd.Series[Any]":
    import pandas as pd

    known = [value for value in column if value is not None]
    values: list[Any] = list(column)
    if any(isinstance(value, str | bool) for value in known):
        return pd.Series(values, dtype=object).convert_dtypes()
    # Whole numbers stay whole where none is missing.
    if len(known) == len(values) > 0:
        return pd.Series(values)
    return pd.Series(values, dtype=float)


@dataclass(frozen=True)
class Field:
    """A column of a table: `get` is a function of a row, else the name of a row's key or attribute
    (also of ``part.attribute``).

    `unit` formats the values; a quantity chooses one for the column, and for all columns of times
    together. The heading gets the unit's label, unless it has one or the table's title states that
    of times as ``{unit}``. `text` is how a row's value is shown where a unit does not do; `column` its
    name among the values, where the attribute's or the heading's does not do.
    """

    heading: str
    get: str | Callable[[Any], object]
    unit: Quantity | Unit = "text"
    meaning: str = ""
    column: str = ""
    text: Callable[[Any], str] | None = None
    is_half_width: bool = False  # of the interval of the column before it

    @property
    def name(self) -> str:
        """Of its column of values: `column`, else the attribute, else the heading with the stored
        unit.
        """
        if self.column:
            return self.column
        if isinstance(self.get, str):
            # of an estimate, ``speedup.low`` is speedup_low and ``speedup.value`` speedup
            *parents, last = self.get.split(".")
            if last == "value":
                return parents[-1]
            if parents and last in ("low", "high"):
                return f"{parents[-1]}_{last}"
            return last
        # the heading without its unit
        title = self.heading.partition("[")[0].lower()
        words = re.findall(r"[a-z0-9]+", title)
        return "_".join(words) + _SUFFIXES.get(str(self.unit), "")

    @property
    def timed(self) -> bool:
        """Whether its unit is that of the table's times."""
        return self.unit == "time"

    def value(self, row: object) -> object:
        """A row's value as plain Python, None where missing."""
        if not isinstance(self.get, str):
            return plain(self.get(row))
        if isinstance(row, Mapping):
            return plain(row[self.get])
        return plain(attrgetter(self.get)(row))


_SUFFIXES = {"time": "_us", "bytes": "_bytes", "bandwidth": "_gb_per_s"}
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
    unknown: Iterable[Unknown] = (),
    times: Iterable[float | None] = (),
) -> TextTable:
    """The table of these columns, with a row of text for each of `rows`; `times` choose the unit of
    times (default: all).
    """
    fields = list(fields)
    rows = list(rows)
    columns: list[tuple[object, ...]] = []
    for one in fields:
        columns.append(tuple(map(one.value, rows)))
    units = _units(fields, columns, list(times))
    label = ""
    shown = []
    values = {}
    for one, column, unit in zip(fields, columns, units, strict=True):
        if one.timed:
            label = unit.label
        shown.append(_shown(one, rows, column, unit))
        values[one.name] = column
    assert len(values) == len(fields), f"two columns of {title} have one name: {[*values]}"
    headings = []
    for one, unit in zip(fields, units, strict=True):
        headings.append(_heading(one, unit, "{unit}" in title))
    return TextTable(
        title=title.replace("{unit}", label),
        headings=tuple(headings),
        rows=tuple(zip(*shown, strict=True)),
        notes=tuple(notes),
        unknown=tuple(unknown),
        meanings=tuple(one.meaning for one in fields),
        values=values,
        half_widths=tuple(place for place, one in enumerate(fields) if one.is_half_width),
    )


def _shown(one: Field, rows: Sequence[object], column: Sequence[object], unit: Unit) -> list[str]:
    """A column as text."""
    if one.text is not None:
        return [one.text(row) for row in rows]
    return [show(value, unit) for value in column]


def _units(
    fields: Sequence[Field], columns: Sequence[Sequence[object]], times: Sequence[float | None]
) -> list[Unit]:
    """A unit for each column: of all columns of times the same."""
    known = [_numbers(column) for column in columns]
    measured = []
    for one, column in zip(fields, known, strict=True):
        if one.timed:
            measured += column
    time = choose_unit("time", times or measured)
    units = []
    for one, column in zip(fields, known, strict=True):
        if isinstance(one.unit, Unit):
            units.append(one.unit)
        elif one.timed:
            units.append(time)
        else:
            units.append(choose_unit(one.unit, column))
    return units


def _numbers(column: Sequence[object]) -> list[float]:
    """The known numbers of a column."""
    return [value for value in column if isinstance(value, int | float)]


def _heading(one: Field, unit: Unit, in_title: bool) -> str:
    """With the unit's label, unless the heading or the title has it."""
    if not unit.label or "[" in one.heading or (one.timed and in_title):
        return one.heading
    return f"{one.heading} [{unit.label}]"


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
    title = f"# {one_line(table.title)}\n"
    comments = [f"# {one_line(note)}\n" for note in table.all_notes]
    return title + render_csv(table) + "".join(comments)


_BEGINS_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def in_markdown(text: str) -> str:
    """The text as one line of Markdown, in which it can make neither an HTML element nor a link or
    an image.

    >>> in_markdown("<img src=x> [here](http://x) ![a](b)")
    '&lt;img src=x> [here]\\\\(http://x) ![a]\\\\(b)'
    """
    return _BEGINS_TAG.sub("&lt;", one_line(text)).replace("](", "]\\(")


def _line(cells: Iterable[str]) -> str:
    escaped = (in_markdown(cell).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _markdown(table: TextTable) -> str:
    table = table.for_readers()
    # The first column names a row, the others are numbers.
    aligned = ["---", *["---:"] * (len(table.headings) - 1)]
    lines = [f"**{in_markdown(table.title)}**", ""]
    lines.append(_line(table.headings))
    lines.append(_line(aligned))
    lines += map(_line, table.rows)
    if notes := table.all_notes:
        lines.append("")
        lines += [f"- {in_markdown(note)}" for note in notes]
    return "\n".join(lines) + "\n"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a left-aligned Markdown table; bars in cells are escaped."""
    return [_line(headings), "|" + " --- |" * len(headings), *map(_line, rows)]


def render_findings(findings: Iterable[Finding]) -> str:
    """Findings with their next steps as a Markdown list with a title."""
    return "**Findings**\n\n" + "".join(f"{finding_line(finding)}\n" for finding in findings)


def finding_line(finding: Finding) -> str:
    """A finding as an item of a Markdown list."""
    return in_markdown(
        f"- {finding.severity}: {sentence(finding.message)} {sentence(finding.next_step)}"
    )


def _latex(table: TextTable) -> str:
    table = table.for_readers()
    return latex_table(table.title, table.headings, table.rows, table.all_notes)
