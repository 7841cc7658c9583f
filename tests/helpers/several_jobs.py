"""Traces of several jobs in one folder, as people keep them: other times, process ids and world
sizes.
"""

from pathlib import Path
from typing import Any

from tests.generated_traces.generator import Trace, ddp_trace, relabel, write_trace


def moved(trace: Trace, later_s: float = 0.0, process: int = 0, step_offset: int = 0) -> Trace:
    """The trace so much later, its process id raised by `process`."""
    hosts = {event["pid"] for event in trace["traceEvents"] if event.get("cat") == "cpu_op"}

    def renumbered(event: Any) -> Any:
        return {**event, "pid": event["pid"] + process} if event.get("pid") in hosts else event

    later = relabel(trace, 1e6 * later_s, step_offset=step_offset)
    return {**later, "traceEvents": [renumbered(event) for event in later["traceEvents"]]}


def write_job(
    folder: Path, prefix: str, ranks: int = 2, later_s: float = 0.0, process: int = 0
) -> list[Path]:
    """Every rank of a DDP job as `<prefix><rank>.json`, the process ids of its ranks in a row."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_trace(
            moved(ddp_trace(rank, ranks).trace, later_s, process + rank),
            folder / f"{prefix}{rank}.json",
        )
        for rank in range(ranks)
    ]


def lengthened(trace: Trace, factor: float) -> Trace:
    """All times of the trace, counted from its first event, so many times as long."""
    first = min(event["ts"] for event in trace["traceEvents"] if event.get("ph") == "X")
    events = []
    for event in trace["traceEvents"]:
        times = {"ts": first + (event["ts"] - first) * factor} if "ts" in event else {}
        times |= {"dur": event["dur"] * factor} if "dur" in event else {}
        events.append({**event, **times})
    return {**trace, "traceEvents": events}
