"""A real trace with bytes changed: never a crash or a hang; sums over untouched events stay, or a finding explains why not."""

import gzip
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpscope.analysis.traces.ranks.frames import collectives, step_breakdown
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.attribution import attribute
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import DATA

A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
SEPARATOR = b",\n"
CLOSING = b"\n  }"
SUMS = ("step_us", "compute_us", "communication_us", "hidden_us", "exposed_us", "host_copy_us", "idle_us")
MATTERS = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
LOST = {
    "events_unreadable", "events_repaired", "events_without_time", "negative_durations", "trace_truncated",
    "header_unreadable", "duplicate_events",
}  # fmt: skip


@dataclass(frozen=True)
class Original:
    head: bytes
    pieces: tuple[bytes, ...]
    tail: bytes
    steps: tuple[int | None, ...]  # by piece: the step an event was launched in, or begins in
    sums: pd.DataFrame
    bytes_moved: float
    count: int


@cache
def original() -> Original:
    text = gzip.decompress(A100.read_bytes())
    start = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(CLOSING + b"\n") + len(CLOSING)
    pieces = tuple(re.split(rb"(?<=\n  \}),\n", text[start:end]))
    events = [json.loads(piece) for piece in pieces]
    trace = read_trace(A100)
    attribution = attribute(trace)
    return Original(
        text[:start], pieces, text[end:], tuple(steps_of(events)), step_breakdown(attribution).set_index("step"),
        float(collectives(attribution)["bytes"].sum()), len(trace.events),
    )  # fmt: skip


def steps_of(events: list[dict[str, Any]]) -> Iterable[int | None]:
    ranges = {
        int(event["name"].split("#")[1]): (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    }
    calls = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    for event in events:
        correlation = event.get("args", {}).get("correlation")
        when = calls.get(correlation) if correlation is not None else event.get("ts")
        yield next((step for step, (low, high) in ranges.items() if when is not None and low <= when < high), None)


def mutated(data: st.DataObject, piece: bytes, low: int, high: int) -> bytes:
    at = data.draw(st.integers(low, high - 1))
    removed = data.draw(st.integers(0, 3))
    kinds = st.binary(max_size=3) | st.sampled_from(
        [b'"', b"}", b"{", b"\n", b"\\", b"NaN", b"-", b"9", b"\xff", b",", b"\0"]
    )
    return piece[:at] + data.draw(kinds) + piece[at + removed :]


def is_another_sound_event(before: bytes, after: bytes) -> bool:
    """Whether the text is still JSON with another time, place or kind: then nothing is damaged."""
    try:
        value = json.loads(after)
    except ValueError:
        return False
    was = json.loads(before)
    if not isinstance(value, dict):
        return False
    args, args_before = value.get("args"), was.get("args")
    return any(value.get(key) != was.get(key) for key in MATTERS) or args != args_before


def analyzed(path: Path) -> tuple[pd.DataFrame, float, int, set[str]] | None:
    """Steps, bytes of collectives, events and findings; None where the file was refused, in one line that names it."""
    refusal = ""
    try:
        trace = read_trace(path)
    except DpscopeError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        assert str(path) in refusal
        return None
    attribution = attribute(trace)
    steps = step_breakdown(attribution).set_index("step")
    moved = float(collectives(attribution)["bytes"].sum())
    return steps, moved, len(trace.events), {finding.code for finding in trace.findings}


@pytest.mark.long
@pytest.mark.timeout(120)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_to_some_events_costs_no_other_step(tmp_path: Path, data: st.DataObject) -> None:
    base = original()
    pieces = list(base.pieces)
    touched: set[int] = set()
    excused = False
    for index in data.draw(st.lists(st.integers(1, len(pieces) - 2), min_size=1, max_size=4, unique=True)):
        before = pieces[index]
        pieces[index] = mutated(data, before, 0, len(before))
        touched.add(index)
        if not pieces[index].endswith(CLOSING):  # the cut behind it is gone: the next event may go with it
            touched.add(index + 1)
        excused = excused or is_another_sound_event(before, pieces[index])
    path = tmp_path / "0_0.pt.trace.json"
    path.write_bytes(base.head + SEPARATOR.join(pieces) + base.tail)
    found = analyzed(path)
    assert found is not None, "most of the file is sound"
    steps, moved, count, findings = found
    assert (steps[["step_us", "compute_us"]].dropna() >= 0).all(axis=None)
    if excused:
        return
    unchanged = [step for step in base.sums.index if not {step, step - 1} & {base.steps[index] for index in touched}]
    damaged_range = any(b"ProfilerStep#" in base.pieces[index] for index in touched)
    if not damaged_range:
        for name in SUMS:
            assert steps.loc[unchanged, name].tolist() == pytest.approx(base.sums.loc[unchanged, name].tolist()), name
    alike = steps[list(SUMS)].shape == base.sums[list(SUMS)].shape and all(
        steps[name].tolist() == pytest.approx(base.sums[name].tolist()) for name in SUMS
    )
    same = alike and moved == base.bytes_moved and count == base.count
    assert same or findings & LOST
    assert count >= base.count - len(touched)


@pytest.mark.long
@pytest.mark.timeout(120)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_never_crashes(tmp_path: Path, data: st.DataObject) -> None:
    """Header, tail, brackets, the compressed bytes themselves."""
    base = original()
    path = tmp_path / "0_0.pt.trace.json.gz"
    place = data.draw(st.sampled_from(["head", "tail", "gzip", "cut"]))
    if place == "gzip":
        packed = A100.read_bytes()
        path.write_bytes(mutated(data, packed, 0, len(packed)))
    elif place == "cut":
        path.write_bytes(A100.read_bytes()[: data.draw(st.integers(0, A100.stat().st_size))])
    else:
        head, tail = base.head, base.tail
        if place == "head":
            head = mutated(data, head, 0, len(head))
        else:
            tail = mutated(data, tail, 0, len(tail))
        path.write_bytes(gzip.compress(head + SEPARATOR.join(base.pieces) + tail, 1))
    found = analyzed(path)
    if found is None:
        return
    steps, _, count, findings = found
    assert (steps["step_us"].dropna() >= 0).all()
    assert count == base.count or findings
    assert count <= base.count
