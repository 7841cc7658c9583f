"""Findings of the trace engine: a trace that has it and a near miss, here or in the test of the
module that makes it.
"""

import ast
import json
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import analyze_jobs, analyze_traces
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import Trace, ddp_trace, relabel, trace_text, write_trace
from tests.helpers.made_traces import launch, on_device, step, write
from tests.helpers.paths import ROOT

Make = Callable[[Path], None]
P = ParamSpec("P")
MAX_BYTES = 8 << 20


def maker(make: Callable[Concatenate[Path, P], None]) -> Callable[P, Make]:
    """A function that writes into a folder what its other arguments describe; the result takes
    these alone.
    """
    return lambda *arguments, **keywords: lambda folder: make(folder, *arguments, **keywords)


def two() -> list[Trace]:
    """The ranks of a sound job."""
    return [ddp_trace(rank, 2).trace for rank in range(2)]


@maker
def job(folder: Path, *ranks: Trace) -> None:
    for rank, trace in enumerate(ranks):
        write_trace(trace, folder / f"0_{rank}.pt.trace.json.gz")


@maker
def changed(folder: Path, change: Callable[[Trace], None]) -> None:
    """Two sound ranks, of which rank 0's first kernel is changed."""
    traces = two()
    change(next(event for event in traces[0]["traceEvents"] if event.get("cat") == "kernel"))
    job(*traces)(folder)


@maker
def text(folder: Path, change: Callable[[str], str]) -> None:
    """One sound rank whose text is changed."""
    (folder / "0_0.pt.trace.json").write_text(change(trace_text(ddp_trace(0, 2).trace)))


def without(*categories: str, names: str = "no name") -> Make:
    """A rank without the events of these categories, and those whose names match."""
    trace = ddp_trace(0, 2).trace
    kept = [
        event
        for event in trace["traceEvents"]
        if event.get("cat") not in categories and not re.search(names, str(event["name"]))
    ]
    return job({**trace, "traceEvents": kept})


@maker
def collectives_in_last_step(folder: Path, count: int) -> None:
    """Five steps of 1,000 us, an all-reduce in each, and in the last one so many."""
    events = []
    for index in range(5):
        events.append(step(index + 1, 1_000.0 * index, 1_000))
        for place in range(count if index == 4 else 1):
            number, begin = 10 * index + place + 1, 1_000.0 * index + 100 * place + 100
            events += [
                launch(number, begin),
                on_device("ncclDevKernel_AllReduce", begin + 20, 50, number),
            ]
    write(folder, events)


def doubled(same_time: bool) -> Make:
    """One collective's kernel stands there twice, or a second one like it a little later."""
    trace = ddp_trace(0, 2).trace
    kernel = next(event for event in trace["traceEvents"] if "AllReduce" in event["name"])
    again = {**kernel, "ts": kernel["ts"] + (0 if same_time else 0.5)}
    return job({**trace, "traceEvents": [*trace["traceEvents"], again]})


def bomb(folder: Path) -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    events = 2 * (json.dumps(step(1, 0, 1_000)).encode() + b", ")
    packed = compressor.compress(b'{"traceEvents": [' + events + b" " * (MAX_BYTES + 1))
    (folder / "bomb.json.gz").write_bytes(packed + compressor.flush())


sound = job(*two())


@maker
def next_to(folder: Path, name: str, text_of_it: str) -> None:
    sound(folder)
    (folder / name).write_text(text_of_it)


@maker
def same_rank(folder: Path, shift_us: float, rank: int = 0) -> None:
    """Rank 0 of two processes, and again so much later, or the given rank of the same job."""
    write_trace(ddp_trace(0, 2).trace, folder / "a.json")
    write_trace(relabel(ddp_trace(rank, 2).trace, shift_us), folder / "b.json.gz")


@dataclass(frozen=True)
class Case:
    """`triggers` makes a folder whose analysis holds the finding, `near_miss` one whose analysis
    does not.
    """

    triggers: Make
    near_miss: Make = sound


CASES = {
    "trace_too_large": Case(bomb),
    "header_unreadable": Case(
        text(lambda whole: whole.replace('"schemaVersion": 1', '"schemaVersion": ')),
        text(lambda whole: whole.replace('"schemaVersion": 1', '"schemaVersion": NaN')),
    ),
    "device -1": Case(
        changed(lambda event: event.update(pid="a GPU", args=event["args"] | {"device": -5})),
        # its process is the device
        changed(lambda event: event.update(args=event["args"] | {"device": 2**40})),
    ),
    "twice in the file": Case(doubled(same_time=True), doubled(same_time=False)),
    "trace_incomplete": Case(without(names="ncclDevKernel"), without(names="gemm")),
    "holds no event with a duration": Case(next_to("other.json", '{"traceEvents": []}')),
    "ends before its first whole event; copy the file again": Case(
        next_to("other.json", '{"traceEvents": ['), next_to("other.json", '{"traceEvents": []}')
    ),
    "no_kernels": Case(without("kernel", "gpu_memcpy", "gpu_memset"), without("gpu_memcpy")),
    "no_steps": Case(without(names="^ProfilerStep#")),
    "several_jobs": Case(same_rank(1.0), same_rank(0.0, rank=1)),
    "holds the same trace": Case(same_rank(0.0), same_rank(1.0)),
    "file_not_read": Case(next_to("other.json", '{"a": 1}'), next_to("notes.txt", '{"a": 1}')),
    "steps_uneven": Case(collectives_in_last_step(3), collectives_in_last_step(1)),
    "communication_unknown": Case(
        changed(lambda event: event.update(name="my_gather_kernel")),
        changed(
            lambda event: event.update(
                name="void at::native::vectorized_gather_kernel<16, long>(char*)"
            )
        ),
    ),
}


def found(folder: Path, make: Make) -> str:
    """Codes and messages."""
    folder.mkdir()
    make(folder)
    return "; ".join(
        f"{finding.code}: {finding.message}"
        for job in analyze_jobs([folder], ReadLimits(max_bytes=MAX_BYTES)).values()
        for finding in job.findings
    )


@pytest.mark.parametrize("words", CASES)
def test_the_finding_is_there_and_not_in_a_near_miss(tmp_path: Path, words: str) -> None:
    assert words in found(tmp_path / "job", CASES[words].triggers)
    assert words not in found(tmp_path / "near_miss", CASES[words].near_miss)


def test_a_sound_job_has_none_at_all(tmp_path: Path) -> None:
    assert set(re.findall(r"(?:^|; )(\w+): ", found(tmp_path / "job", sound))) == {"parallelism"}


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions bind no superuser, so the refusal is made here."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write_trace(ddp_trace(0, 2).trace, tmp_path / "0_0.pt.trace.json")
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(DpscopeError, match=r"cannot read .*Permission denied") as caught:
        analyze_traces([path])
    assert "\n" not in str(caught.value)


def test_folders_that_may_not_be_searched_or_entered_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions bind no superuser, so the refusals are made here."""
    sound(tmp_path)
    for name in ("closed", "listed"):
        (tmp_path / name).mkdir()
        write_trace(ddp_trace(0, 2).trace, tmp_path / name / "0_0.pt.trace.json")
    scandir, stat = os.scandir, os.stat

    def refuse_to_list(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    def refuse_to_enter(path: Any, **options: Any) -> Any:
        if "listed/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "scandir", refuse_to_list)
    monkeypatch.setattr(os, "stat", refuse_to_enter)
    inside = f"{tmp_path}/listed/0_0.pt.trace.json"
    analysis = analyze_traces([tmp_path])
    assert len(analysis.summaries) == 2
    assert [
        one.message for one in analysis.findings if one.code == TraceCode.FILE_NOT_READ.code
    ] == [
        f"cannot read {path}: Permission denied; check the name and its permissions"
        for path in (f"{tmp_path}/closed", inside)
    ]
    with pytest.raises(DpscopeError, match=f"cannot read {inside}: Permission denied"):
        analyze_traces([inside])


def test_a_folder_next_to_the_traces_and_one_without_any(tmp_path: Path) -> None:
    sound(tmp_path)
    (tmp_path / "deeper.json").mkdir()
    (tmp_path / "empty").mkdir()
    assert len(analyze_traces([tmp_path]).summaries) == 2
    with pytest.raises(DpscopeError, match="holds no trace"):
        analyze_traces([tmp_path / "empty"])
    with pytest.raises(DpscopeError, match="does not exist"):
        analyze_traces([tmp_path / "absent.json"])


def test_every_code_is_in_a_test() -> None:
    modules = (ROOT / "analysis" / "traces").rglob("*.py")
    nodes = [node for module in modules for node in ast.walk(ast.parse(module.read_text()))]
    made = {
        TraceCode[node.attr].code
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "TraceCode"
    }
    tests = "".join(
        path.read_text() for path in (ROOT / "tests" / "analysis" / "traces").rglob("test_*.py")
    )
    assert [code for code in sorted(made) if f'"{code}"' not in tests] == [], (
        "no test of analysis/traces names these codes: add one that shows the finding, and a near miss"
    )
