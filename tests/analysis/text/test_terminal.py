"""Output on a terminal: long paths are folded, never cut."""

import io
import re

import pytest
from rich.console import Console

from dpscope.analysis.text.terminal import Terminal, print_findings, print_missing, print_table
from dpscope.analysis.text.text_table import TextTable
from dpscope.profiling.records.trace_codes import TraceCode

PATH = "/scratch/" + "a-folder-with-a-long-name/" * 6 + "rank0.pt.trace.json.gz"


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("where", ["table", "note", "missing", "finding"])
def test_a_long_path_is_there_to_its_end(width: int, where: str) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width)
    if where in ("table", "note"):
        name, notes = (PATH, ()) if where == "table" else ("x", (f"read from {PATH}",))
        print_table(console, TextTable("Traces", ("trace", "rank"), ((name, "0"),), notes))
    elif where == "missing":
        print_missing(console, [f"{PATH} holds none"])
    else:
        print_findings(console, [TraceCode.FILE_NOT_READ.finding(f"{PATH} is not a trace")])
    lines = [line.removeprefix("warning").strip() for line in out.getvalue().splitlines()]
    assert PATH in "".join(lines)
    assert "…" not in out.getvalue()


def test_a_long_text_is_wrapped_and_is_no_label() -> None:
    """Two rows of one model: its formula would tell them apart, but is not repeated in each block
    of columns.
    """
    formula = "2(N-1)/N x S/B = 2(8-1)/8 x 2.49 MB / 25 GB/s (S: what was all-reduced)"
    rows = tuple(("all_reduce", formula, "link", str(number)) for number in (1, 2))
    table = TextTable("Models", ("model", "formula", "source", "time"), rows)
    console = Console(file=io.StringIO(), width=60)
    print_table(console, table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 60
    words = re.sub(r"\s+", " ", text)
    assert words.count("2.49 MB") == 2  # once in each row
    assert words.count("all-reduced)") == 2


def test_a_list_without_items_has_no_heading() -> None:
    out = io.StringIO()
    print_missing(Console(file=out), [])
    print_findings(Console(file=out), [])
    assert out.getvalue() == ""


def test_no_output_begins_with_a_blank_line(capsys: pytest.CaptureFixture[str]) -> None:
    console = Terminal()
    table = TextTable("Times", ("cell",), (("a",),))
    print_table(console, table)
    print_table(console, table)
    print_findings(console, [TraceCode.FILE_NOT_READ.finding("x is not a trace")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:7] == ["Times", "cell", "a", "", "Times", "cell", "a"]
    assert lines[7:9] == ["", "Findings"]


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


def test_a_continued_table_keeps_the_columns_that_name_its_rows() -> None:
    """Two quantities of one cell: below, the numbers would else be of nobody knows which."""
    rows = tuple(
        (f"ddp-d{count}-b128", what, "123.45", "234.56", "1.234", "1.111", "1.333")
        for count in (2, 4)
        for what in ("step", "idle")
    )
    headings = ("cell", "quantity", "before [ms]", "after [ms]", "ratio", "low", "high")
    table = TextTable("What changed", headings, rows)
    out = io.StringIO()
    print_table(Console(file=out, width=40), table)
    lines = out.getvalue().splitlines()
    blocks = [line for line in lines if "cell" in line.split()]
    assert len(blocks) == 3
    assert all("quantity" in line.split() for line in blocks)
    assert sum(line.split()[:2] == ["ddp-d4-b128", "idle"] for line in lines) == 3
    assert max(map(len, lines)) <= 40
