"""What each part of a traced step should be, from the node's truth: independent of dpscope's own way from a trace to its steps.

Only which step launched an operation comes from the trace (by the correlation of its launch): the node knows no steps.
Definitions: docs/measures.md.
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tests.virtual_gpu.node import Truth

Span = tuple[int, int]  # start and end, nanoseconds
Spans = list[Span]
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
        parts = [(max(a, low), min(b, high)) for a, b in left for low, high in ((a, start), (end, b))]
        left = [(a, b) for a, b in parts if a < b]
    return left


def within(spans: Spans, window: Span) -> Spans:
    return [(max(a, window[0]), min(b, window[1])) for a, b in spans if a < window[1] and b > window[0]]


def length_us(spans: Spans) -> float:
    return sum(end - start for start, end in spans) / 1000


def true_steps(truth: Truth, trace: Path) -> pd.DataFrame:
    """A row per device and step of one process's trace, but for the first step, whose start no event marks; microseconds."""
    work, collectives = (traced(table, trace) for table in (truth.work, truth.collectives))
    ends = work.groupby("step")["end_ns"].max()
    rows = []
    for before, step in zip(ends.index, ends.index[1:], strict=False):
        window = (int(ends[before]), int(ends[step]))
        for device in sorted(work["device"].unique()):
            on_device = work[work["device"] == device]
            parts = _parts_us(on_device, collectives[collectives["device"] == device], window)
            rows.append({"device": int(device), "step": int(step), "step_us": length_us([window]), **parts})
    return pd.DataFrame(rows)


def traced(table: pd.DataFrame, trace: Path) -> pd.DataFrame:
    """The rows of a table of the truth that a step of this trace launched, in the order of their starts, with that `step`."""
    events = _events(trace)
    process = next(event["pid"] for event in events if event.get("cat") == "cuda_runtime")
    of_process = table[table["pid"] == process]
    steps = of_process["correlation"].map(_steps_by_correlation(events))
    launched: pd.DataFrame = of_process.assign(step=steps).dropna(subset="step")
    return launched.sort_values("start_ns")


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


def _parts_us(work: pd.DataFrame, collectives: pd.DataFrame, window: Span) -> dict[str, float]:
    is_communication = work["name"].str.startswith("nccl") | (work["name"] == "ptop")
    compute = within(united(_spans(work[(work["kind"] == "kernel") & ~is_communication])), window)
    communication = within(united(_spans(work[is_communication])), window)
    matched = collectives[collectives["name"].str.contains("|".join(SPLIT))]
    last = [max(times) for times in matched["arrivals_ns"]]
    waits = united(zip(matched["start_ns"], last, strict=True))
    transfers = united(zip(last, matched["end_ns"], strict=True))
    exposed = without(communication, compute)
    transfer = without(within(transfers, window), compute)
    wait = without(without(within(waits, window), compute), transfer)
    return {
        "compute_us": length_us(compute),
        "communication_us": length_us(communication),
        "exposed_wait_us": length_us(wait),
        "exposed_transfer_us": length_us(transfer),
        "exposed_other_us": length_us(without(without(exposed, transfer), wait)),
        "idle_us": length_us(without(without([window], compute), communication)),
    }


def _spans(work: pd.DataFrame) -> Iterable[Span]:
    return zip(work["start_ns"].astype(int), work["end_ns"].astype(int), strict=True)
