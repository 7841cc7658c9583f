"""What dpscope measures, held against something that does not use it: the wall clock, a plain script, the trace by hand."""

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from dpscope.launch.acceptance.verdict import CheckVerdict, at_most, none_of
from dpscope.launch.acceptance.workplace import PREPARED_RUN, Workplace
from dpscope.launch.workload.models import build_model
from dpscope.profiling.instruments.step_timer import StepCounts, time_block
from dpscope.profiling.store.errors import DpscopeError

KernelTime = tuple[float, float]
_STEPS, _PRODUCTS = 30, 20
_MOST_TRACER_COST = 2.0  # traced step over untraced


def clocks(place: Workplace) -> list[CheckVerdict]:
    """Steps by device events against the wall clock around all of them: within 2%."""
    device = torch.device("cuda", 0) if place.kind == "cuda" else torch.device("cpu")
    side = 4096 if place.kind == "cuda" else 256
    matrix = torch.ones(side, side, device=device)

    def step(batch_arrived: Callable[[], None]) -> StepCounts:
        batch_arrived()
        for _ in range(_PRODUCTS):
            torch.mm(matrix, matrix)
        return StepCounts(samples=1)

    def synchronise() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    time_block(step, 5, device, synchronise)
    block, samples = time_block(step, _STEPS, device, synchronise)
    events_s = sum(sample.step_us for sample in samples) / 1e6
    return [at_most("d.events_against_wall", abs(events_s / block.duration_s - 1), 0.02, "%")]


def memory(place: Workplace) -> list[CheckVerdict]:
    """The peak of the run's single cell against that of a plain script here, which is a process of its own: within 1%."""
    cell = next(row for row in prepared(place)["cells"] if row["strategy"] == "single")
    plain = plain_peak_bytes(cell["batch_size"])
    told = cell["peak_allocated_bytes"]
    share = None if told is None else abs(told / plain - 1)
    return [at_most("e.memory_against_script", share, 0.01, "%", f"dpscope says {told} B, the script {plain} B")]


def plain_peak_bytes(batch_size: int) -> int:
    """A training as anybody writes it; its peak of allocated memory after warm-up."""
    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    built = build_model("resnet18_cifar")
    model = built.model.to(device).train()
    images = torch.randn(batch_size, *built.input_shape, device=device)
    labels = torch.randint(built.classes, (batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for step in range(20):
        if step == 10:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return torch.cuda.max_memory_allocated(device)


def tracer(place: Workplace) -> list[CheckVerdict]:
    """The tracer's cost; busy time against the trace read by hand; every kernel launched in the trace."""
    analysis = prepared(place)
    (cell,) = (row for row in analysis["cells"] if row["strategy"] == "single")
    (path,) = (place.shared / PREPARED_RUN / "cells" / cell["cell"] / "repeat0" / "traces").glob("*.json.gz")
    lost = [
        one["code"]
        for one in analysis["findings"]
        if one["code"] in ("events_of_no_step", "no_kernels", "trace_incomplete")
    ]
    return [
        at_most("f.tracer_cost", cell["tracer_cost"], _MOST_TRACER_COST, "x"),
        at_most("f.busy_by_hand", busy_difference(analysis, cell["cell"], trace_events(path)), 0.01, "%"),
        at_most("f.busy_and_idle", step_difference(analysis, cell["cell"]), 0.001, "%"),
        at_most("f.kernels_without_launch", without_launch(trace_events(path)), 0.001, "%"),
        none_of("f.findings", lost),
    ]


def prepared(place: Workplace) -> dict[str, Any]:
    """The analysis of the run that an earlier check made."""
    run = place.shared / PREPARED_RUN
    if not run.exists():
        raise DpscopeError(f"{run} does not exist: the check that measures it did not run or failed")
    return place.analysis(run)


def trace_events(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, as they stand there."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


def busy_difference(analysis: dict[str, Any], cell: str, events: list[dict[str, Any]]) -> float | None:
    """How far the analysis's busy time of a cell's whole steps is from the union of its kernels, as a share.

    Whole steps end one after another, the last with the last event of a device: they cover that long before it.
    """
    steps = [
        row for row in analysis["steps"] if row["cell"] == cell and row["repeat"] == 0 and not row["partial_window"]
    ]
    kernels = [one for one in events if one.get("cat") == "kernel"]
    on_device = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if not steps or not kernels:
        return None
    told_us = sum(row["compute_us"] + row["exposed_us"] for row in steps)
    end_us = max(float(one["ts"]) + float(one["dur"]) for one in on_device)
    begin_us = end_us - sum(row["step_us"] for row in steps)
    clipped = ((max(float(one["ts"]), begin_us), float(one["ts"]) + float(one["dur"])) for one in kernels)
    by_hand_us = union_us(one for one in clipped if one[1] > one[0])
    return abs(told_us / by_hand_us - 1) if by_hand_us else None


def step_difference(analysis: dict[str, Any], cell: str) -> float | None:
    """The largest share by which compute, exposed and idle miss a step."""
    steps = [row for row in analysis["steps"] if row["cell"] == cell and not row["partial_window"]]
    parts = ("compute_us", "exposed_us", "idle_us")
    if not steps or any(row[name] is None for row in steps for name in parts):
        return None
    return max(abs(float(sum(row[name] for name in parts)) / float(row["step_us"]) - 1) for row in steps)


def without_launch(events: list[dict[str, Any]]) -> float | None:
    """The share of kernels whose correlation no call of the host has."""
    calls = {
        one.get("args", {}).get("correlation") for one in events if one.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    kernels = [one for one in events if one.get("cat") == "kernel"]
    if not kernels:
        return None
    return sum(one.get("args", {}).get("correlation") not in calls for one in kernels) / len(kernels)


def union_us(intervals: Iterable[KernelTime]) -> float:
    """The time that intervals cover together."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
