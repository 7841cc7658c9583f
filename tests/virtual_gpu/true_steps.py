"""What each part of a traced step should be, from the node's truth: independent of dpscope's own
way from a trace to its steps.

Only which step launched an operation comes from the trace (by the correlation of its launch): the
node knows no steps. Definitions: docs/measures.md.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from tests.virtual_gpu.node import Truth

Span = tuple[int, int]  # start and end, nanoseconds
Spans = list[Span]
KINDS = {  # as dpscope names what NCCL's kernels do
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
SPLIT = ("AllReduce", "AllGather", "ReduceScatter")  # every rank waits for every other


def united(spans: Iterable[Span]) -> Spans:
    whole: Spans = []
    for start, end in sorted(spans):
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        elif end > start:
            whole.append((start, end))
    return whole


def without(spans: Spans, others: Spans) -> Spans:
    """The parts of disjoint spans that lie in none of the others."""
    left = spans
    for start, end in others:
        parts = [
            (max(a, low), min(b, high)) for a, b in left for low, high in ((a, start), (end, b))
        ]
        left = [(a, b) for a, b in parts if a < b]
    return left


def within(spans: Spans, window: Span) -> Spans:
    return [
        (max(a, window[0]), min(b, window[1])) for a, b in spans if a < window[1] and b > window[0]
    ]


def length_us(spans: Spans) -> float:
    return sum(end - start for start, end in spans) / 1000


def true_steps(truth: Truth, trace: Path) -> pd.DataFrame:
    """A row per device and step of one process's trace, but for the first step, whose start no
    event marks; microseconds.
    """
    return pd.DataFrame(
        [{**place, **_parts_us(on_device)} for place, on_device in _devices_and_steps(truth, trace)]
    )


def true_parts(truth: Truth, trace: Path) -> pd.DataFrame:
    """What the exposed communication of these steps is: `time_us` per device, step, part and
    kind.
    """
    rows = []
    for place, on_device in _devices_and_steps(truth, trace):
        for part, by_kind in _exposed_us(on_device).items():
            rows += [(*place.values(), part, kind, time_us) for kind, time_us in by_kind.items()]
    return pd.DataFrame(rows, columns=["device", "step", "part", "kind", "time_us"])


@dataclass(frozen=True)
class OnDevice:
    """What one device did during a window; a copy between two devices occupies both."""

    window: Span
    compute: Spans
    communication: list[tuple[Span, str]]  # in the order of their starts, with their kinds
    waits: list[tuple[Span, str]]
    transfers: list[tuple[Span, str]]


def _devices_and_steps(truth: Truth, trace: Path) -> Iterator[tuple[dict[str, int], OnDevice]]:
    work, collectives = (traced(table, trace) for table in (truth.work, truth.collectives))
    matched = collectives[collectives["name"].str.contains("|".join(SPLIT))]
    ends = work.groupby("step")["end_ns"].max()
    for before, step in zip(ends.index, ends.index[1:], strict=False):
        window = (int(ends[before]), int(ends[step]))
        for device in sorted(work["device"].unique()):
            is_end = (work["name"] == "ptop") & work[["source", "target"]].eq(device).any(axis=1)
            here = _on_device(
                work[(work["device"] == device) | is_end],
                matched[matched["device"] == device],
                window,
            )
            yield {"device": int(device), "step": int(step)}, here


def _on_device(work: pd.DataFrame, matched: pd.DataFrame, window: Span) -> OnDevice:
    kinds = work["name"].map(_kind)
    is_compute = (work["kind"] == "kernel") & kinds.isna()
    communication = work[kinds.notna()]
    last = [max(times) for times in matched["arrivals_ns"]]
    names = [KINDS[name.split("_")[1]] for name in matched["name"]]
    return OnDevice(
        window,
        within(united(_spans(work[is_compute])), window),
        list(zip(_spans(communication), kinds.dropna(), strict=True)),
        list(zip(zip(matched["start_ns"], last, strict=True), names, strict=True)),
        list(zip(zip(last, matched["end_ns"], strict=True), names, strict=True)),
    )


def _kind(name: str) -> str | None:
    if name == "ptop":
        return "copy"
    return KINDS[name.split("_")[1]] if name.startswith("nccl") else None


def traced(table: pd.DataFrame, trace: Path) -> pd.DataFrame:
    """The rows of a table of the truth that a step of this trace launched, in the order of their
    starts, with that `step`.
    """
    events = _events(trace)
    of_process = table[table["pid"] == _process(events)]
    steps = of_process["correlation"].map(_steps_by_correlation(events))
    launched: pd.DataFrame = of_process.assign(step=steps).dropna(subset="step")
    return launched.sort_values("start_ns")


def process_of(trace: Path) -> int:
    """The process that wrote a trace."""
    return _process(_events(trace))


def _process(events: list[dict[str, Any]]) -> int:
    return next(int(event["pid"]) for event in events if event.get("cat") == "cuda_runtime")


@cache
def _events(trace: Path) -> list[dict[str, Any]]:
    with gzip.open(trace) if trace.suffix == ".gz" else trace.open("rb") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def _steps_by_correlation(events: list[dict[str, Any]]) -> Mapping[int, int]:
    ranges = {
        int(event["name"].partition("#")[2]): (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    }
    launches = [event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    return {
        event["args"]["correlation"]: step
        for event in launches
        for step, (start, end) in ranges.items()
        if start <= event["ts"] < end
    }


def _parts_us(device: OnDevice) -> dict[str, float]:
    communication = within(united(span for span, _ in device.communication), device.window)
    exposed = without(communication, device.compute)
    parts_us = {part: sum(by_kind.values()) for part, by_kind in _exposed_us(device).items()}
    return {
        "step_us": length_us([device.window]),
        "compute_us": length_us(device.compute),
        "communication_us": length_us(communication),
        "hidden_us": length_us(communication) - length_us(exposed),
        **{f"exposed_{part}_us": time_us for part, time_us in parts_us.items()},
        "idle_us": length_us(without(without([device.window], device.compute), communication)),
    }


def _exposed_us(device: OnDevice) -> dict[str, dict[str, float]]:
    """By part and kind: what transfers is no waiting, and what several do at once counts for the
    one that began it first.
    """
    communication = within(united(span for span, _ in device.communication), device.window)
    left = without(communication, device.compute)
    parts: dict[str, dict[str, float]] = {}
    for part, spans in (
        ("transfer", device.transfers),
        ("wait", device.waits),
        ("other", device.communication),
    ):
        by_kind: dict[str, float] = {}
        for span, kind in sorted(spans):
            by_kind[kind] = by_kind.get(kind, 0) + length_us(within(left, span))
            left = without(left, [span])
        parts[part] = by_kind
    return parts


def _spans(work: pd.DataFrame) -> Iterable[Span]:
    return zip(work["start_ns"].astype(int), work["end_ns"].astype(int), strict=True)
