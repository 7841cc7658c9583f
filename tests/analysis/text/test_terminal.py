"""Output on a terminal: long paths are folded, never cut."""

import io
import re

from rich.console import Console

from dpscope.analysis.text.terminal import print_findings, print_table, print_tables
from dpscope.analysis.text.text_table import TextTable
from dpscope.profiling.records.trace_codes import TraceCode


def test_no_line_ends_in_blanks() -> None:
    """Of a table, of a wrapped note and of findings, with and without colours; the text stays
    complete.
    """
    table = TextTable(
        "Times",
        ("cell", "step [ms]"),
        (("single-d1-b8", "1.0"), ("a", "22.0")),
        ("a note that is long " * 6,),
    )
    for colour in (False, True):
        console = Console(
            file=io.StringIO(),
            width=40,
            force_terminal=colour,
            color_system="standard" if colour else None,
        )
        print_table(console, table)
        print_findings(console, [TraceCode.TRACE_INCOMPLETE.finding("a cell " * 12)])
        text = console.file.getvalue()  # type: ignore[attr-defined]
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        assert [line for line in plain.splitlines() if line != line.rstrip()] == []
        assert " ".join(plain.split()).count("a note that is long") == 6
        assert "22.0" in plain


def test_a_note_of_several_tables_stands_below_the_first_of_them() -> None:
    tables = [
        TextTable(title, ("cell", "step"), (("a", "1"),), notes)
        for title, notes in (("first", ("shared",)), ("second", ("shared", "of the second alone")))
    ]
    console = Console(file=io.StringIO(), width=80)
    print_tables(tables, "table", console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert shown.count("shared") == 1
    assert shown.index("shared") < shown.index("second") < shown.index("of the second alone")
