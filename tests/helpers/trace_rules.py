"""What a trace must keep to for Perfetto and Chrome's viewer to show all of it, as a list of what
does not.

From the Trace Event Format (Google, 2016) and Perfetto's JSON importer: every event has a phase, a
process and a thread, all but metadata a time; complete events a duration, and on one thread they
nest; flows have a number for an id, one start and one end; a negative time and an event that partly
overlaps another are dropped; threads are named by their number alone.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]

_UINT32 = range(2**32)
_PHASES = frozenset("XistfMCbenBE")
_METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def violations(trace: dict[str, Any]) -> list[str]:
    """One line for each thing that is against the rules; none for a sound trace."""
    events = trace.get("traceEvents")
    if not isinstance(events, list) or not events:
        return ["no traceEvents"]
    problems = [] if trace.get("displayTimeUnit") in ("ms", "ns") else ["no displayTimeUnit"]
    for event in events:
        problems += [f"{wrong}: {event}" for wrong in _event(event)]
    return problems or [*_names(events), *_nesting(events), *_flows(events)]


def _event(event: Event) -> Iterator[str]:
    phase = event.get("ph")
    if phase not in _PHASES or not isinstance(event.get("name"), str):
        yield "no phase or no name"
        return
    if type(event.get("pid")) is not int or event["pid"] not in _UINT32 or event["pid"] == 0:
        yield "process is no number of 32 bits above 0"
    if type(event.get("tid")) is not int or event["tid"] not in _UINT32:
        yield "thread is no number of 32 bits"
    if not _sound(event.get("ts")):
        yield "time is no number from 0 on"
    if phase == "X" and not _sound(event.get("dur")):
        yield "duration is no number from 0 on"
    if phase in "stf" and (type(event.get("id")) is not int or not 0 <= event["id"] < 2**64):
        yield "a flow's id is no number of 64 bits"
    if phase == "i" and event.get("s") not in ("g", "p", "t"):
        yield "an instant without a scope"
    if phase == "M":
        key, kind = _METADATA.get(event["name"], ("", object))
        if key and not isinstance(event.get("args", {}).get(key), kind):
            yield "metadata without its argument"


def _sound(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )


def _names(events: list[Event]) -> Iterator[str]:
    process_of: dict[int, int] = {}
    for event in events:
        if event["ph"] != "M" and process_of.setdefault(event["tid"], event["pid"]) != event["pid"]:
            yield f"thread {event['tid']} is in two processes"
    named = {(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    if len(named) < sum(event["ph"] == "M" for event in events):
        yield "something is named twice"
    for thread, process in process_of.items():
        for what, where in (
            ("process_name", 0),
            ("process_sort_index", 0),
            ("thread_name", thread),
        ):
            if (what, process, where) not in named:
                yield f"thread {thread} of process {process} has no {what}"


def _nesting(events: list[Event]) -> Iterator[str]:
    """In the order of times, and of the file where times are equal; in whole nanoseconds."""
    by_thread: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for index, event in enumerate(events):
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            by_thread[event["tid"]].append((start, index, start + round(event["dur"] * 1000)))
    for spans in by_thread.values():
        open_ends: list[int] = []
        for start, index, end in sorted(spans):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if open_ends and end > open_ends[-1]:
                yield f"overlaps another partly: {events[index]}"
            open_ends.append(end)


def _flows(events: list[Event]) -> Iterator[str]:
    ends: dict[tuple[str, int], list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            ends[event.get("cat", ""), event["id"]].append(event["ph"])
    for flow, phases in ends.items():
        if phases.count("s") > 1 or phases.count("f") > 1:
            yield f"flow {flow} has several starts or ends"
