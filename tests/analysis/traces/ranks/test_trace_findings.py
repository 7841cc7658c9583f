"""Every finding the trace engine can emit: a trace that triggers it, and a near miss that must not."""

import ast
import gzip
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import analyze_jobs, analyze_traces
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import DdpOptions, Trace, cut_file, ddp_trace, relabel, trace_text, write_trace
from tests.generated_traces.relabeling import fused_trace
from tests.helpers.made_traces import launch, on_device, step, write
from tests.helpers.paths import ROOT
from tests.helpers.several_jobs import lengthened, write_job, write_one_process_run

ANALYSIS = ROOT / "analysis"
FOLDERS = ("reading", "steps", "data_parallel", "ranks")
Make = Callable[[Path], None]
P = ParamSpec("P")
MAX_BYTES = 8 << 20


def maker(make: Callable[Concatenate[Path, P], None]) -> Callable[P, Make]:
    """A function that writes into a folder what its other arguments describe; the result takes these alone."""
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


@maker
def content(folder: Path, change: Callable[[bytes], bytes]) -> None:
    sound = gzip.compress(trace_text(ddp_trace(0, 2).trace).encode())
    (folder / "0_0.pt.trace.json.gz").write_bytes(change(sound))


def without(*categories: str, names: str = "no name") -> Make:
    """A rank without the events of these categories, and those whose names match."""
    trace = ddp_trace(0, 2).trace
    kept = [
        event
        for event in trace["traceEvents"]
        if event.get("cat") not in categories and not re.search(names, str(event["name"]))
    ]
    return job({**trace, "traceEvents": kept})


def with_further_step(empty: bool) -> Trace:
    """A fourth step behind the others, with its own kernel or none."""
    trace = ddp_trace(0, 2).trace
    annotations = [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    marks = [event for event in annotations if event["name"].startswith("ProfilerStep#")]
    last = max(marks, key=lambda event: float(event["ts"]))
    begin = last["ts"] + last["dur"] + 100.0
    added = [{**last, "name": "ProfilerStep#9", "ts": begin, "dur": 500.0}]
    if not empty:
        calls = [event for event in trace["traceEvents"] if event.get("cat") == "cuda_runtime"]
        call = max(calls, key=lambda event: int(event["args"]["correlation"]))
        number = call["args"]["correlation"] + 1
        kernel = next(event for event in trace["traceEvents"] if event.get("cat") == "kernel")
        added.append({**call, "ts": begin + 10.0, "args": {**call["args"], "correlation": number}})
        added.append({**kernel, "ts": begin + 5_000.0, "args": {**kernel["args"], "correlation": number}})
    return {**trace, "traceEvents": [*trace["traceEvents"], *added]}


@maker
def collectives_in_last_step(folder: Path, count: int) -> None:
    """Five steps of 1,000 us, an all-reduce in each, and in the last one so many."""
    events = []
    for index in range(5):
        events.append(step(index + 1, 1_000.0 * index, 1_000))
        for place in range(count if index == 4 else 1):
            number, begin = 10 * index + place + 1, 1_000.0 * index + 100 * place + 100
            events += [launch(number, begin), on_device("ncclDevKernel_AllReduce", begin + 20, 50, number)]
    write(folder, events)


def doubled(same_time: bool) -> Make:
    """One collective's kernel stands there twice, or a second one like it a little later."""
    trace = ddp_trace(0, 2).trace
    kernel = next(event for event in trace["traceEvents"] if "AllReduce" in event["name"])
    again = {**kernel, "ts": kernel["ts"] + (0 if same_time else 0.5)}
    return job({**trace, "traceEvents": [*trace["traceEvents"], again]})


def bomb(folder: Path) -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = compressor.compress(b'{"traceEvents": [' + b" " * (MAX_BYTES + 1))
    (folder / "bomb.json.gz").write_bytes(packed + compressor.flush())


def cut(folder: Path) -> None:
    job(ddp_trace(0, 2).trace)(folder)
    cut_file(folder / "0_0.pt.trace.json.gz", 0.6)


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


@maker
def with_one_process_run(folder: Path, later_s: float) -> None:
    """Ranks 1 to 3 of four processes, and rank 0 of a run of one process, or without a delay of the same job."""
    write_job(folder, "rank", ranks=4)
    if later_s:
        write_one_process_run(folder / "rank0.json", later_s)


@maker
def two_jobs(folder: Path, apart_s: float) -> None:
    write_job(folder, "a", later_s=0.0)
    write_job(folder if apart_s else folder / "b", "b", later_s=265.0, process=5000)


def steps_from(offset: int) -> Make:
    return job(*(relabel(trace, step_offset=offset * rank) for rank, trace in enumerate(two())))


def slower(factor: float) -> Make:
    """All times of rank 1 are so many times as long, as if nanoseconds were read as microseconds."""
    first, second = two()
    return job(first, lengthened(second, factor))


def stretched(times: float) -> Make:
    """The host's part of a job takes so many times as long, and its kernels as long as before."""
    trace = ddp_trace(0, 2).trace
    on_device = ("kernel", "gpu_memcpy", "gpu_memset")
    events = [
        {**event, "ts": event["ts"] * times, "dur": event["dur"] * (1 if event["cat"] in on_device else times)}
        if event.get("ph") == "X"
        else event
        for event in trace["traceEvents"]
    ]
    return job({**trace, "traceEvents": events})


def with_category(category: str) -> Make:
    """A sound rank with one additional event of another category."""
    trace = ddp_trace(0, 2).trace
    one = {"ph": "X", "cat": category, "name": "other", "pid": 9, "tid": 9, "ts": 10.0, "dur": 5.0, "args": {}}
    return job({**trace, "traceEvents": [*trace["traceEvents"], one]})


def long_copy(duration_us: float) -> Make:
    """The first step's copy lasts so long."""
    trace = ddp_trace(0, 2).trace
    copy = next(event for event in trace["traceEvents"] if event.get("cat") == "gpu_memcpy")
    copy["dur"] = duration_us
    return job(trace)


def pairs(late_us: float) -> Make:
    """Four ranks that name no groups; two of them run so much later than the others."""
    traces = [ddp_trace(rank, 4, DdpOptions(metadata="none")).trace for rank in range(4)]
    for trace in traces[2:]:
        for event in trace["traceEvents"]:
            event["ts"] += late_us
    return job(*traces)


@dataclass(frozen=True)
class Case:
    """`triggers` makes a folder whose analysis holds the finding, `near_miss` one whose analysis does not."""

    triggers: Make
    near_miss: Make = sound


CASES = {
    "gzip_damaged": Case(cut),
    "gzip_trailing_bytes": Case(content(lambda sound: sound + b"more"), content(lambda sound: sound + b"\0" * 512)),
    "trace_too_large": Case(bomb),
    "trace_truncated": Case(text(lambda whole: whole[: len(whole) // 2])),
    "header_unreadable": Case(
        text(lambda whole: whole.replace('"schemaVersion": 1', '"schemaVersion": ')),
        text(lambda whole: whole.replace('"schemaVersion": 1', '"schemaVersion": NaN')),
    ),
    "events_unreadable": Case(
        text(lambda whole: whole.replace('"name": "sm80_', '"name": "sm"80_', 1)),
        changed(lambda event: event.update(name='ge"mm')),
    ),
    "events_repaired": Case(
        text(lambda whole: whole.replace("ampere_sgemm", "ampere\x01sgemm").replace("sm80_", "sm80\x01", 1)),
        text(lambda whole: whole.replace("sm80_", "sm80\\u0001")),
    ),
    "events_without_time": Case(
        changed(lambda event: event.update(dur=None)), changed(lambda event: event.update(dur=0))
    ),
    "devices_unknown": Case(
        changed(lambda event: event.update(pid="a GPU", args=event["args"] | {"device": -5})),
        changed(lambda event: event.update(args=event["args"] | {"device": 2**40})),  # its process is the device
    ),
    "negative_durations": Case(changed(lambda event: event.update(dur=-1)), changed(lambda event: event.update(dur=0))),
    "duplicate_events": Case(doubled(same_time=True), doubled(same_time=False)),
    "fused_ranks": Case(job(fused_trace(two(), "args_rank"))),
    "fused_events_unowned": Case(job(fused_trace(two(), "same_launches")), job(fused_trace(two(), "plain"))),
    "no_events": Case(text(lambda whole: '{"traceEvents": []}'), text(lambda whole: whole)),
    "no_kernels": Case(without("kernel", "gpu_memcpy", "gpu_memset"), without("gpu_memcpy")),
    "events_of_no_step": Case(job(ddp_trace(0, 2, DdpOptions(unlaunched=True)).trace), job(ddp_trace(0, 2).trace)),
    "trace_incomplete": Case(job(ddp_trace(0, 2, DdpOptions(communication=False)).trace)),
    "no_steps": Case(without(names="^ProfilerStep#")),
    "collectives_unmatched": Case(
        job(ddp_trace(0, 2).trace, ddp_trace(1, 2, DdpOptions(buffers=False)).trace),
        job(ddp_trace(0, 2).trace, ddp_trace(1, 2).trace),
    ),
    "ranks_not_unique": Case(same_rank(1.0), same_rank(0.0, rank=1)),
    "trace_of_another_job": Case(with_one_process_run(31.0), with_one_process_run(0.0)),
    "several_jobs": Case(two_jobs(265.0), two_jobs(0.0)),
    "steps_numbered_differently": Case(steps_from(100), steps_from(0)),
    "step_times_apart": Case(slower(1000.0), slower(20.0)),
    "trace_copied": Case(same_rank(0.0), same_rank(1.0)),
    "file_not_read": Case(next_to("other.json", '{"a": 1}'), next_to("notes.txt", '{"a": 1}')),
    "device_idle": Case(stretched(4.0), stretched(1.0)),
    "parallelism": Case(sound, without("user_annotation", names="nccl|c10d|record_param_comms")),
    "device_not_read": Case(with_category("hpu_op"), with_category("python_function")),
    "steps_empty": Case(job(with_further_step(empty=True)), job(with_further_step(empty=False))),
    "steps_uneven": Case(collectives_in_last_step(3), collectives_in_last_step(1)),
    "steps_outlasted": Case(long_copy(2_000.0), long_copy(20.0)),
    "communication_unknown": Case(
        changed(lambda event: event.update(name="my_gather_kernel")),
        changed(lambda event: event.update(name="void at::native::vectorized_gather_kernel<16, long>(char*)")),
    ),
    "groups_unknown": Case(pairs(late_us=200.0), pairs(late_us=0.0)),
}


IN_RUNS_ONLY = {"launch_bound"}  # it needs the waits for the loader, which runs record: test_idle_findings.py


def codes(folder: Path, make: Make) -> set[str]:
    folder.mkdir()
    make(folder)
    return {
        finding.code
        for job in analyze_jobs([folder], ReadLimits(max_bytes=MAX_BYTES)).values()
        for finding in job.findings
    }


@pytest.mark.parametrize("code", CASES)
def test_the_finding_is_there_and_not_in_a_near_miss(tmp_path: Path, code: str) -> None:
    assert code in codes(tmp_path / "job", CASES[code].triggers)
    assert code not in codes(tmp_path / "near_miss", CASES[code].near_miss)


def test_what_the_cut_removed_is_reported_once(tmp_path: Path) -> None:
    """Runtime calls and communicating operators first, kernels last: the first half of the file has no kernel."""
    trace = ddp_trace(0, 2).trace
    events = sorted(
        trace["traceEvents"], key=lambda event: str(event.get("cat")) in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    whole = trace_text({**trace, "traceEvents": events})
    (tmp_path / "0_0.pt.trace.json").write_text(whole[: whole.index('"cat": "kernel"')])
    found = {finding.code: finding for finding in analyze_traces([tmp_path], ReadLimits(max_bytes=MAX_BYTES)).findings}
    assert {"trace_truncated", "no_kernels"} <= set(found)
    assert "trace_incomplete" not in found
    assert "what could be read of" in found["no_kernels"].message
    assert "cut short" in found["no_kernels"].next_step
    assert "CUPTI" not in found["no_kernels"].next_step


def test_a_sound_job_has_none_at_all(tmp_path: Path) -> None:
    assert codes(tmp_path / "job", sound) == {"parallelism"}


def test_every_code_has_its_case() -> None:
    modules = [module for folder in FOLDERS for module in (ANALYSIS / "traces" / folder).glob("*.py")]
    nodes = [node for module in modules for node in ast.walk(ast.parse(module.read_text()))]
    found = {
        TraceCode[node.attr].code
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "TraceCode"
    }
    assert found == {*CASES, *IN_RUNS_ONLY}


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions bind no superuser, so the refusal is made here."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write_trace(ddp_trace(0, 2).trace, tmp_path / "0_0.pt.trace.json")
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(DpscopeError, match=r"cannot read .*Permission denied") as caught:
        analyze_traces([path])
    assert "\n" not in str(caught.value)


def test_a_folder_next_to_the_traces_and_one_without_any(tmp_path: Path) -> None:
    sound(tmp_path)
    (tmp_path / "deeper.json").mkdir()
    (tmp_path / "empty").mkdir()
    assert len(analyze_traces([tmp_path]).summaries) == 2
    with pytest.raises(DpscopeError, match="holds no trace"):
        analyze_traces([tmp_path / "empty"])
    with pytest.raises(DpscopeError, match="does not exist"):
        analyze_traces([tmp_path / "absent.json"])
