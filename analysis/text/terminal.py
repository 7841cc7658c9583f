"""Tables and findings on a terminal, drawn by rich: with colour only on a terminal, and no wider
than it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dpscope.analysis.text.text_table import MOST_HEADINGS, TextTable, Unknown, reasons, render
from dpscope.analysis.text.units import name_folded, sentence
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.shown_text import cleaned, complain, one_line, write_out

# width of the first column down to which its names are folded to avoid a second block
_NARROWEST = 12
_MOST_LABELS = 3  # columns that name a row: rank, device and step
# letters from which on a text is a sentence or a formula, and the width that it is wrapped to
_LONG, _WRAPPED = 48, 32
_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


class Terminal(Console):
    """A terminal on which square brackets are no markup, and on which no text from a file has
    control.
    """

    def __init__(self, stderr: bool = False, highlight: bool = True) -> None:
        super().__init__(markup=False, stderr=stderr, highlight=highlight)
        self.has_printed = False

    def print(self, *objects: Any, **options: Any) -> None:
        self.has_printed = True
        super().print(*objects, **options)

    def on_broken_pipe(self) -> None:  # rich ends the process here, with status 1
        raise

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=cleaned(segment.text))


class Trimmed:
    """What rich draws without trailing blanks, which are noise in logs and in copied text."""

    def __init__(self, drawn: RenderableType) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._drawn, options, pad=False):
            text = list(line)
            while text and not text[-1].control and not text[-1].text.rstrip(" "):
                text.pop()
            if text and not text[-1].control:
                text[-1] = Segment(text[-1].text.rstrip(" "), text[-1].style)
            yield from text
            yield Segment.line()


def separate(console: Console) -> None:
    """A blank line between what was printed and what follows: no output begins with one."""
    if not isinstance(console, Terminal) or console.has_printed:
        console.print()


@contextmanager
def progress(doing: str = "Reading traces") -> Iterator[Callable[[str], None]]:
    """Show the current activity on standard error if it is a terminal; yields a function that sets
    the current part.

    The line is redrawn without a thread, and removed at the end.
    """
    terminal = Terminal(stderr=True, highlight=False)
    with Live(f"{doing} ...", console=terminal, auto_refresh=False, transient=True) as line:
        yield lambda part: line.update(f"{doing}: {part}", refresh=True)


def open_in_browser(page: Path) -> None:
    """Show a page in the user's browser; without a browser, print its path."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        complain(f"--open: no browser was found; open {page} manually")


def print_tables(tables: Sequence[TextTable], output_format: str, console: Console) -> None:
    """Print tables on the terminal, a note that several have below the first of them, at the end why
    values are missing; or as text in a format for other programs.
    """
    if output_format != "table":
        for table in tables:
            write_out(render(table, output_format) + "\n")
        return
    # several tables of one command share notes
    above: set[str] = set()

    for table in tables:
        notes = tuple(note for note in table.notes if note not in above)
        above.update(notes)

        print_table(console, replace(table, notes=notes))
    unknown: list[Unknown] = []
    for table in tables:
        unknown += table.for_readers().unknown
    print_missing(console, reasons(unknown, MOST_HEADINGS))


def print_table(console: Console, table: TextTable) -> None:
    """Print a table with its notes; columns that do not fit continue below, with those that name a
    row repeated.
    """
    separate(console)
    for part in _drawn(table.for_readers(), console.width):
        console.print(part)


def _drawn(table: TextTable, width: int) -> Iterator[Trimmed]:
    yield Trimmed(Text(one_line(table.title), style="bold"))
    gap = next(
        (
            gap
            for gap in (2, 1)
            if len(_fitting(table, _first_width(table, width, gap), width, gap)) == 1
        ),
        2,
    )
    first = _first_width(table, width, gap)
    for columns in _fitting(table, first, width, gap):
        drawn = Table(pad_edge=False, box=None, padding=(0, gap, 0, 0))
        for index in columns:
            drawn.add_column(
                Text(one_line(table.headings[index])),
                justify="left" if index == 0 or _is_long(table, index) else "right",
                vertical="bottom",
                overflow="fold",
                width=_width(table, index) if index else first,
            )
        for row in table.rows:
            words = [one_line(word) for word in row]
            drawn.add_row(
                *(
                    Text(words[index] if index else name_folded(words[0], first))
                    for index in columns
                )
            )
        yield Trimmed(drawn)
    for note in table.notes:
        yield Trimmed(Text(one_line(note), style="dim"))


def _width(table: TextTable, index: int) -> int:
    """The width of a column: values never wrap unless they are long, headings wrap between
    words.
    """
    if index and _is_long(table, index):
        return _WRAPPED
    values = [row[index] for row in table.rows]
    words = table.headings[index].split()
    return max(map(len, [*values, *words]), default=0)


def _is_long(table: TextTable, index: int) -> bool:
    """Whether a column holds sentences or formulas."""
    return any(len(row[index]) > _LONG for row in table.rows)


def _first_width(table: TextTable, width: int, gap: int) -> int:
    """The width of the first column: less than its names need if all other columns then fit."""
    needed = _width(table, 0)
    left = width - sum(_width(table, index) + gap for index in range(1, len(table.headings)))
    return left if _NARROWEST <= left < needed else needed


def _fitting(table: TextTable, first: int, width: int, gap: int) -> list[list[int]]:
    """Groups of columns, each with the label columns, that fit side by side with `gap` blanks
    between them.
    """
    labels = list(range(_label_columns(table)))
    of_labels = first + sum(_width(table, index) + gap for index in labels[1:])
    groups, used = [[*labels]], of_labels
    for index in range(len(labels), len(table.headings)):
        needed = _width(table, index) + gap
        if used + needed > width and len(groups[-1]) > len(labels):
            groups.append([*labels])
            used = of_labels
        groups[-1].append(index)
        used += needed
    return groups


def _label_columns(table: TextTable) -> int:
    """The fewest columns, from the left, in which no two rows are alike: what each row is of. One
    where there are none; a long text is no label.
    """
    for count in range(1, min(_MOST_LABELS, len(table.headings) - 1) + 1):
        if _is_long(table, count - 1):
            return max(1, count - 1)
        if len({row[:count] for row in table.rows}) == len(table.rows):
            return count
    return 1


def folded(text: str, style: str = "") -> Text:
    """One line of text, in which long words, such as paths, continue on the next line instead of
    being cut.
    """
    return Text(one_line(text), style=style, overflow="fold")


def print_sentences(console: Console, sentences: Iterable[str]) -> None:
    """Print each sentence on a new line, without interpreting brackets as markup."""
    for text in sentences:
        console.print(Trimmed(folded(text)), highlight=False)


def print_missing(console: Console, reasons: Iterable[str]) -> None:
    """Print why values are missing, once for all tables."""
    print_notes(console, "NA, and why", reasons)


def print_notes(console: Console, title: str, notes: Iterable[str]) -> None:
    """Print sentences below a title; nothing without any."""
    _print_list(console, title, ((Text("-"), folded(note, "dim")) for note in notes))


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Print findings as sentences, each with its next step."""
    _print_list(
        console,
        "Findings",
        (
            (
                Text(finding.severity, style=_STYLES[finding.severity]),
                folded(f"{sentence(finding.message)} ").append(
                    sentence(finding.next_step), style="dim"
                ),
            )
            for finding in findings
        ),
    )


def _print_list(console: Console, title: str, items: Iterable[tuple[Text, Text]]) -> None:
    """Print marked items below a title; nothing without an item."""
    rows = Table.grid(padding=(0, 1))
    for mark, text in items:
        rows.add_row(mark, text)
    if rows.row_count:
        separate(console)
        console.print(Text(title, style="bold"))
        console.print(Trimmed(rows))
