"""Traces of a few events, written by hand: tests state each time."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces

Event = dict[str, Any]

HOST = 100
MAIN = 1
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32"


def event(category: str, name: str, start: float, duration: float, **more: Any) -> Event:
    """Any complete event; `pid`, `tid` and `args` may be given."""
    place = {"pid": HOST, "tid": MAIN, "args": {}} | more
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, **place}


def step(number: int, start: float, duration: float) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start, duration)


def operator(name: str, start: float, duration: float, tid: int = MAIN, **args: Any) -> Event:
    return event("cpu_op", name, start, duration, tid=tid, args=args)


def on_device(
    name: str,
    start: float,
    duration: float,
    correlation: int = 0,
    stream: int = 7,
    category: str = "kernel",
    **args: Any,
) -> Event:
    """A kernel or copy of device 0; without a correlation nothing launched it."""
    arguments = {"device": 0, "stream": stream, **args} | (
        {"correlation": correlation} if correlation else {}
    )
    return event(category, name, start, duration, pid=0, tid=stream, args=arguments)


def launch(
    correlation: int, start: float, name: str = "cudaLaunchKernel", category: str = "cuda_runtime"
) -> Event:
    return event(category, name, start, 1.0, args={"correlation": correlation})


def record(collective: str, start: float, **args: Any) -> Event:
    """What torch records of a collective, 2 us long."""
    return operator("record_param_comms", start, 2.0, **{"Collective name": collective} | args)


def steps_with(
    spans: Iterable[tuple[float, float]],
    kernel: str = ALL_REDUCE,
    begin: float = 0.0,
    step_us: float = 1_000.0,
    **args: Any,
) -> list[Event]:
    """Steps 1, 2, ... with a kernel each, whose beginning and end count from its step's
    beginning.
    """
    events = []
    for index, (start, end) in enumerate(spans):
        at = begin + step_us * index
        events += [step(index + 1, at, step_us), launch(index + 1, at + 1)]
        events.append(on_device(kernel, at + start, end - start, index + 1, **args))
    return events


def write(
    folder: Path, events: list[Event], rank: int = 0, world_size: int = 2, **header: Any
) -> Path:
    info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size}}
    path = folder / f"0_{rank}.pt.trace.json"
    path.write_text(json.dumps({**info, **header, "traceEvents": events}))
    return path


def analyzed_events(
    folder: Path, events: list[Event], rank: int = 0, world_size: int = 2, **header: Any
) -> Job:
    """The analysis of a folder to which the trace of this rank is added."""
    write(folder, events, rank, world_size, **header)
    return analyze_traces([folder])
