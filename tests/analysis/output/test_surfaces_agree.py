"""Every surface prints one verdict: terminal, page, JSON, Markdown (TensorBoard's text) and CSV of ten runs and trace sets."""

import html
import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from dpscope.analysis.findings.answers import Verdict
from dpscope.analysis.output.analyze import Targets, print_summary
from dpscope.analysis.output.run_json import run_json
from dpscope.analysis.output.traced_report import ReadJob, print_traces, report_of_traces, traces_json
from dpscope.analysis.report.build import Report, make_page, render_markdown
from dpscope.analysis.report.comparison_tables import comparison_csv
from dpscope.analysis.report.page import render_page
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from tests.generated_traces.ddp import DdpOptions
from tests.generated_traces.generator import ddp_trace, dp_trace, parallel_trace, write_trace
from tests.generated_traces.model import GeneratedTrace
from tests.helpers.examples import reported
from tests.helpers.paths import DATA, EXAMPLE_RUN, ROOT

RUNS = (EXAMPLE_RUN, ROOT / "examples" / "run_cpu")
REAL = (DATA / "v100x8_ddp_dlrm", DATA / "compiled_ddp", DATA / "a100x2_ddp_resnet50_rank0.json.gz")


def late(rank: int) -> GeneratedTrace:
    return ddp_trace(rank, 2, DdpOptions(straggler=1))


def hybrid(rank: int) -> GeneratedTrace:
    return ddp_trace(rank, 4, DdpOptions(extra_groups=True))


MADE: dict[str, tuple[int, Callable[[int], GeneratedTrace]]] = {
    "even": (2, lambda rank: ddp_trace(rank, 2)),
    "late": (2, late),
    "one of two": (1, late),
    "groups": (4, hybrid),
    "data parallel": (1, lambda rank: dp_trace()),
    "sharded": (4, lambda rank: parallel_trace("fully_sharded", rank)),
}


def plain(text: str) -> str:
    """Without markup and line breaks."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", text)))


def check(verdict: Verdict, surfaces: dict[str, str], record: dict[str, object]) -> None:
    """Each answer and warning stands in each surface, and the record holds the same facts."""
    for name, shown in surfaces.items():
        for text in (*verdict.warnings, *(one.text for one in verdict.answers)):
            assert plain(text) in plain(shown), name
    assert record == json.loads(json.dumps(verdict.record()))
    if verdict.late is not None:
        assert f"rank {verdict.late.rank}" in verdict.cost.text + verdict.action.text
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
        assert found == (pytest.approx(value) if value is not None else pytest.approx(float("nan"), nan_ok=True)), part


@pytest.mark.long
@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_surfaces_of_a_run_agree(folder: Path) -> None:
    report = reported(folder)
    console = Console(file=StringIO(), width=80)
    print_summary(console, report.printed, Path("report.html"))
    assert isinstance(console.file, StringIO)
    surfaces = {"terminal": console.file.getvalue(), **of_report(report)}
    check(report.verdict, surfaces, json.loads(run_json(report))["verdict"])
    check_csv(report, report.verdict)
    assert report.verdict.late is None or folder == EXAMPLE_RUN  # five repeats show no late rank


@pytest.mark.long
@pytest.mark.parametrize("place", REAL, ids=lambda place: place.name)
def test_surfaces_of_real_traces_agree(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_traces(place, capsys)


@pytest.mark.long
@pytest.mark.parametrize("name", MADE)
def test_surfaces_of_made_traces_agree(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks, make = MADE[name]
    for rank in range(ranks):
        write_trace(make(rank).trace, tmp_path / f"0_{rank}.pt.trace.json")
    check_traces(tmp_path, capsys)


def check_traces(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ReadJob(analyze_traces([place]))
    verdict = job.verdict
    console = Console(file=StringIO(), width=80)
    print_traces([place], "table", DEFAULT_LIMITS, console, Targets())
    assert isinstance(console.file, StringIO)
    report = report_of_traces(job.analysis, [place], Targets())
    surfaces = {"terminal": console.file.getvalue(), **of_report(report)}
    check(verdict, surfaces, json.loads(traces_json({"": job}, None))["verdict"])
    check_csv(report, verdict)
    print_traces([place], "json", DEFAULT_LIMITS, console, Targets())
    assert json.loads(capsys.readouterr().out)["verdict"] == json.loads(json.dumps(verdict.record()))
