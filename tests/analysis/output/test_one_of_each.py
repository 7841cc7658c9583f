"""Traces and runs that hold one of each thing are shown, and no surface writes "1 steps"."""

import html
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.analysis.output.analyze import Targets
from dpscope.analysis.output.traced_report import print_traces
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from tests.generated_traces.generator import write_ddp_job
from tests.helpers.made_traces import Event, event, launch, on_device, step, write

# A one that is no part of a larger number, then a plural; words that end in s and are no plurals,
# and units.
_ONE_OF_MANY = re.compile(
    r"(?<![\w.,:/-])1 (?!(?:process|pass|bus|loss|class|is|was|has|its|does|as|us|ms|ns|samples/s)\b)[a-z]+s\b(?!/)"
)


def disagreements(text: str) -> list[str]:
    """Where a noun or verb disagrees with the number one."""
    plain = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))
    return [
        plain[max(0, one.start() - 30) : one.end() + 20] for one in _ONE_OF_MANY.finditer(plain)
    ]


def one_of_each() -> list[Event]:
    """One step with one kernel and one all-reduce; of each damage one event."""
    negative, nowhere = on_device("k", 400, -5, 3), on_device("k", 500, 5, 4)
    del nowhere["args"]["device"]
    nowhere["pid"] = "somewhere"
    timeless = event("cpu_op", "aten::mm", 0, 1) | {"ts": "soon"}
    return [
        step(5, 0, 1000),
        launch(1, 10),
        on_device("ncclDevKernel_AllReduce_Sum_f32", 100, 50, 1, stream=8),
        launch(2, 20),
        on_device("some_library_reduce_scatter_kernel", 200, 100, 2),
        negative,
        nowhere,
        timeless,
    ]


@pytest.mark.parametrize(
    ("output_format", "damaged"), [("table", False), ("table", True), ("json", True), ("csv", True)]
)
def test_of_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output_format: str, damaged: bool
) -> None:
    if damaged:
        path = write(tmp_path, one_of_each())
        text = path.read_text(encoding="utf-8")
        brace = text.rindex('{"ph"')
        path.write_text(text[:brace] + '{"ph": "X", "ts": 1 2}, ' + text[brace:], encoding="utf-8")
    else:
        write_ddp_job(tmp_path)
    shown = StringIO()
    print_traces(
        [tmp_path], output_format, DEFAULT_LIMITS, Console(file=shown, width=200), Targets()
    )
    printed = shown.getvalue() + capsys.readouterr().out
    assert disagreements(printed) == []
    if damaged and output_format == "json":
        codes = (
            "events_damaged",
            "events_damaged",
            "events_damaged",
            "communication_unknown",
        )
        assert [code for code in codes if code not in printed] == []
