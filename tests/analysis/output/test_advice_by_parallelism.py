"""Advice about DDP is given to DDP jobs alone: never to traces of another parallelism or of an unknown one."""

import html
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dpscope.analysis.output.analyze import Targets
from dpscope.analysis.output.traced_report import ReadJob, print_traces, report_of_traces, traces_json
from dpscope.analysis.report.build import make_page
from dpscope.analysis.report.page import render_page
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.run_codes import RunCode
from tests.generated_traces.generator import Job, parallel_trace, write_trace
from tests.generated_traces.parallel_jobs import RANKS
from tests.helpers.made_traces import event, launch, on_device, step, write

# DDP's args, dpscope's options for them, and buckets of gradients.
DDP_ADVICE = re.compile(
    r"bucket|no_sync|static.graph|broadcast.buffers|DDP's|DDP without|use DDP|gradient accumulation|fp16 gradients",
    re.IGNORECASE,
)
MEGATRON_STEP_US = 1000.0


def megatron_like(folder: Path) -> Path:
    """Two ranks whose all-reduces carry no sizes and no autograd nodes: rank 1 is 300 us late, the transfer takes 200 us."""
    for rank in range(2):
        events = []
        for number in range(1, 9):
            begin, start = MEGATRON_STEP_US * number, 100.0 + 300.0 * rank
            args: dict[str, Any] = {
                "Collective name": "allreduce",
                "Process Group Name": "0",
                "Group size": 2,
                "Seq": number,
            }
            events += [
                step(number, begin, MEGATRON_STEP_US),
                event("user_annotation", "forward-backward", begin + 1, 900),
            ]
            events += [launch(2 * number, begin + 5), on_device("ampere_bf16_s16816gemm", begin + 20, 60, 2 * number)]
            events.append(launch(2 * number + 1, begin + 8))
            events.append(
                on_device(
                    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", begin + start, 600 - start, 2 * number + 1, 9, **args
                )
            )
        write(folder, events, rank, 2, host_name="node")
    return folder


def surfaces(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the terminal, the page and JSON show of a job's traces, without the page's fixed explanations of terms."""
    shown = StringIO()
    print_traces([folder], "table", DEFAULT_LIMITS, Console(file=shown, width=300), Targets())
    analysis = analyze_traces(folder)
    report = report_of_traces(analysis, [folder], Targets(link=parse_link("10GB/s")))
    page = make_page(report, {})
    record = json.loads(traces_json({"": ReadJob(analysis)}, report))
    return {
        "terminal": shown.getvalue() + capsys.readouterr().out,
        "page": " ".join([*(f"{one.message} {one.next_step}" for one in page.findings), *_answers(render_page(page))]),
        "json": json.dumps([record["findings"], record["verdict"]]),
    }


def _answers(page: str) -> list[str]:
    """The page's text up to its first section."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", " ", text.split("<h2")[0]))]


@pytest.mark.long
@pytest.mark.parametrize("job", ["tensor_parallel", "pipeline", "fully_sharded", "unknown"])
def test_no_advice_about_ddp(tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str) -> None:
    if job == "unknown":
        megatron_like(tmp_path)
    else:
        write_job(tmp_path, job)  # type: ignore[arg-type]
    for name, text in surfaces(tmp_path, capsys).items():
        assert text, name
        assert [text[max(0, one.start() - 60) : one.end() + 30] for one in DDP_ADVICE.finditer(text)] == [], name


def test_the_words_are_those_of_advice_to_ddp() -> None:
    assert DDP_ADVICE.search(RunCode.NO_OVERLAP.next_step)


def write_job(folder: Path, job: Job) -> None:
    for rank in range(RANKS[job]):
        write_trace(parallel_trace(job, rank).trace, folder / f"rank{rank}.json")
