"""Output on a terminal: long paths are folded, never cut."""

import io
import re

import pytest
from rich.console import Console

from dpscope.analysis.text.terminal import print_findings, print_table
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


@pytest.mark.parametrize(("width", "blocks"), [(60, 1), (40, 1), (33, 1), (31, 2)])
def test_long_names_are_folded_where_that_keeps_a_row_in_one_block(width: int, blocks: int) -> None:
    """Two columns of 9 take 22 with gaps of two blanks and 20 with gaps of one.

    60 leaves room for the name's 20, 40 leaves 18; with gaps of one blank, 33 leaves 13 and 31
    leaves 11. The least is 12.
    """
    rows = (("ddp-d2-b4-bucket-1mb", "123456789", "987654321"),)
    out = io.StringIO()
    print_table(
        Console(file=out, width=width), TextTable("Times", ("cell", "step [ms]", "wait [ms]"), rows)
    )
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert [line.startswith("cell") for line in lines].count(True) == blocks
    assert max(map(len, lines)) <= width
    if width == 40:
        assert lines[-2] == "ddp-d2-b4-bucket-"
        assert lines[-1].split() == ["1mb", "123456789", "987654321"]
    elif width == 33:
        assert lines[-2:] == ["ddp-d2-b4-", "bucket-1mb    123456789 987654321"]
    elif blocks == 1:
        assert lines[-1].split() == list(rows[0])
