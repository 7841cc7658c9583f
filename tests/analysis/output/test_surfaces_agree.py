"""Every surface shows one verdict: terminal, page, JSON, Markdown (TensorBoard's text), CSV; only
DDP jobs get advice on DDP.
"""

import html
import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dpscope.analysis.cells.view import REGISTERED
from dpscope.analysis.findings.facts import Verdict
from dpscope.analysis.output.api_results import Analysis
from dpscope.analysis.output.run_json import run_json
from dpscope.analysis.output.run_screen import Targets, fact_grid
from dpscope.analysis.output.tensorboard import export_tensorboard, metric
from dpscope.analysis.output.traces_screen import ReadJob, print_traces, report_of_traces
from dpscope.analysis.report.build import Report, make_page, render_markdown
from dpscope.analysis.report.comparison_tables import FIRST_COLUMNS, comparison_csv
from dpscope.analysis.report.page import render_page
from dpscope.analysis.text.terminal import print_table
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.run_codes import RunCode
from tests.generated_traces.ddp import DdpOptions
from tests.generated_traces.generator import Trace, ddp_trace, dp_trace, parallel_trace, write_trace
from tests.helpers.examples import FIVE_REPEATS, reported
from tests.helpers.made_traces import event, launch, on_device, step, write
from tests.helpers.made_verdicts import said
from tests.helpers.paths import EXAMPLE_RUN

RUNS = (EXAMPLE_RUN, FIVE_REPEATS)
# DDP's arguments, dpscope's options for them, and buckets of gradients.
DDP_ADVICE = re.compile(
    r"bucket|no_sync|static.graph|broadcast.buffers|DDP's|DDP without|use DDP|gradient accumulation|fp16 gradients",
    re.IGNORECASE,
)


def late(rank: int) -> Trace:
    return ddp_trace(rank, 2, DdpOptions(straggler=1)).trace


MADE: dict[str, tuple[int, Callable[[int], Trace]]] = {
    "late": (2, late),
    "one of two": (1, late),
    "groups": (4, lambda rank: ddp_trace(rank, 4, DdpOptions(extra_groups=True)).trace),
    "data parallel": (1, lambda rank: dp_trace().trace),
    "sharded": (4, lambda rank: parallel_trace("fully_sharded", rank).trace),
    "tensor parallel": (2, lambda rank: parallel_trace("tensor_parallel", rank).trace),
    "pipeline": (2, lambda rank: parallel_trace("pipeline", rank).trace),
}
DDP_JOBS = ("late", "one of two", "data parallel")


def write_megatron_like(folder: Path) -> None:
    """Two ranks whose all-reduces carry no sizes and no autograd nodes: rank 1 is 300 us late, the
    transfer takes 200 us.
    """
    for rank in range(2):
        events = []
        for number in range(1, 9):
            begin, start = 1000.0 * number, 100.0 + 300.0 * rank
            args: dict[str, Any] = {
                "Collective name": "allreduce",
                "Process Group Name": "0",
                "Group size": 2,
                "Seq": number,
            }
            events += [
                step(number, begin, 1000),
                event("user_annotation", "forward-backward", begin + 1, 900),
            ]
            events += [
                launch(2 * number, begin + 5),
                on_device("s16816gemm", begin + 20, 60, 2 * number),
            ]
            name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
            reduce = on_device(name, begin + start, 600 - start, 2 * number + 1, 9, **args)
            events += [launch(2 * number + 1, begin + 8), reduce]
        write(folder, events, rank, 2, host_name="node")


def plain(text: str) -> str:
    """Without markup and line breaks."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", text)))


def check(verdict: Verdict, surfaces: dict[str, str], record: dict[str, object]) -> None:
    """Each fact stands in each surface, and the record holds the same facts."""
    lines = [verdict.setting, *(line for fact in verdict.shown for line in fact.lines)]
    for name, shown in surfaces.items():
        for line in lines:
            assert plain(line) in plain(shown), name
    assert record == json.loads(json.dumps(verdict.record()))
    if verdict.late is not None:
        assert f"rank {verdict.late.rank} " in said(verdict, "late")
        assert record["late_rank"] == verdict.late.rank
    if verdict.ledger is not None:
        parts = verdict.ledger.parts_us
        assert sum(parts.values()) == pytest.approx(verdict.ledger.traced_step_us)


def of_report(report: Report) -> dict[str, str]:
    return {"page": render_page(make_page(report, {})), "markdown": render_markdown(report)}


def check_csv(report: Report, verdict: Verdict) -> None:
    """The cell's columns are its ledger's numbers."""
    table = pd.read_csv(StringIO(comparison_csv(report.comparison))).set_index("cell")
    if verdict.ledger is None or verdict.cell is None:
        return
    for part in (*STEP_PARTS, "traced_step", "tracer", "slowdown"):
        value, found = getattr(verdict.ledger, f"{part}_us"), table.loc[verdict.cell, f"{part}_us"]
        assert found == (
            pytest.approx(value) if value is not None else pytest.approx(float("nan"), nan_ok=True)
        ), part


@pytest.mark.long
@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_surfaces_of_a_run_agree(folder: Path) -> None:
    report = reported(folder)
    console = Console(file=StringIO(), width=80)
    console.print(fact_grid(report.verdict))  # the first screen may have fewer lines of it
    assert isinstance(console.file, StringIO)
    surfaces = {"terminal": console.file.getvalue(), **of_report(report)}
    check(report.verdict, surfaces, json.loads(run_json(report))["verdict"])
    check_csv(report, report.verdict)
    assert report.verdict.late is None or folder == EXAMPLE_RUN  # five repeats show no late rank


@pytest.mark.long
def test_hundreds_of_values_are_the_same_on_every_surface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of CSV, JSON, the API's frames and TensorBoard; texts of page and terminal."""
    report = reported(FIVE_REPEATS)
    monkeypatch.setattr(Report, "figures", {})  # which hold no number of their own
    in_csv = pd.read_csv(StringIO(comparison_csv(report.comparison))).set_index("cell")
    in_json = {one["cell"]: one for one in json.loads(run_json(report))["cells"]}
    in_frame = Analysis(report).frames["cells"].set_index("cell")
    board = export_tensorboard(report, tmp_path)
    compared = 0
    for cell, row in report.comparison.rows.items():
        on_board = EventAccumulator(str(board / cell)).Reload()
        tags = on_board.Tags()["scalars"]
        for name in in_json[cell]:
            number = row.number(name) if name in REGISTERED else None
            if number is None:
                continue
            assert in_csv.loc[cell, name] == pytest.approx(number, rel=1e-9), (cell, name)
            assert in_json[cell][name] == pytest.approx(number, abs=1e-6, rel=1e-5), (cell, name)
            assert float(in_frame.loc[cell, name]) == pytest.approx(number), (cell, name)
            compared += 3
            if name in FIRST_COLUMNS and (tag := metric(name)) in tags:
                # milliseconds and percent, of which other views have microseconds and shares
                factor = {"ms]": 1e-3, "%]": 100.0}.get(tag.rpartition("[")[2], 1.0)
                expected = pytest.approx(number * factor, rel=1e-6)
                assert on_board.Scalars(tag)[0].value == expected, tag
                compared += 1
    assert compared >= 200
    page = plain(render_page(make_page(report, {})))
    console = Console(file=StringIO(), width=1000)
    tables = [report.printed.summary, *report.printed.tables]
    for table in tables:
        print_table(console, table)
    assert isinstance(console.file, StringIO)
    terminal = plain(console.file.getvalue())
    texts = [value for table in tables for row in table.rows for value in row]
    assert [value for value in texts if plain(value) not in page] == []
    assert [value for value in texts if plain(value) not in terminal] == []
    assert len(texts) >= 200


@pytest.mark.long
@pytest.mark.parametrize("name", [*MADE, "unknown"])
def test_surfaces_of_made_traces_agree(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "unknown":
        write_megatron_like(tmp_path)
    else:
        ranks, make = MADE[name]
        for rank in range(ranks):
            write_trace(make(rank), tmp_path / f"0_{rank}.pt.trace.json")
    shown = check_traces(tmp_path, capsys)
    if name not in DDP_JOBS:
        assert [
            shown[max(0, one.start() - 60) : one.end() + 30] for one in DDP_ADVICE.finditer(shown)
        ] == []
    assert DDP_ADVICE.search(RunCode.NO_OVERLAP.value.action)


def check_traces(place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the terminal shows, and the findings with a link."""
    analysis = analyze_traces([place])
    verdict = ReadJob(analysis).verdict
    with StringIO() as file:
        print_traces([place], "table", DEFAULT_LIMITS, Console(file=file, width=80), Targets())
        terminal = file.getvalue()
    report, linked = (
        report_of_traces(analysis, [place], Targets(link)) for link in (None, parse_link("10GB/s"))
    )
    content = in_json(place, None, report, capsys)
    in_json(place, parse_link("10GB/s"), linked, capsys)
    check(verdict, {"terminal": terminal, **of_report(report)}, content["verdict"])
    check_csv(report, verdict)
    return plain(
        " ".join([terminal, *(f"{one.message} {one.next_step}" for one in linked.findings)])
    )


def in_json(
    place: Path, link: LinkRate | None, report: Report, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """JSON, and so the terminal, has the codes of the report's findings with their severity."""
    print_traces([place], "json", DEFAULT_LIMITS, Console(quiet=True), Targets(link))
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {(one["code"], one["severity"]) for one in content["findings"]} == {
        (one.code, one.severity) for one in report.findings
    }
    return content
