"""What is printed on a terminal: long paths are folded, never cut."""

import io

import pytest
from rich.console import Console

from dpscope.analysis.text.terminal import print_findings, print_missing, print_table
from dpscope.analysis.text.text_table import TextTable
from dpscope.profiling.records.trace_codes import TraceCode

PATH = "/scratch/" + "a-folder-with-a-long-name/" * 6 + "rank0.pt.trace.json.gz"


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("where", ["table", "note", "missing", "finding"])
def test_a_long_path_is_there_to_its_end(width: int, where: str) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width)
    if where == "table":
        print_table(console, TextTable("Traces", ("trace", "rank"), ((PATH, "0"),), ()))
    elif where == "note":
        print_table(console, TextTable("Traces", ("trace", "rank"), (("x", "0"),), (f"read from {PATH}",)))
    elif where == "missing":
        print_missing(console, [f"{PATH} holds none"])
    else:
        print_findings(console, [TraceCode.FILE_NOT_READ.finding(f"{PATH} is not a trace")])
    lines = [line.removeprefix("warning").strip() for line in out.getvalue().splitlines()]
    assert PATH in "".join(lines)
    assert "…" not in out.getvalue()
