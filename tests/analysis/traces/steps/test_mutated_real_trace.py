"""A real trace with bytes changed: never a crash or a hang; sums over untouched events stay, or a
finding explains why not."""

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
from tests.helpers.paths import DATA


@dataclass(frozen=True)
class Original:
    head: bytes
    pieces: tuple[bytes, ...]
    tail: bytes
    steps: tuple[int | None, ...]  # by piece: the step an event was launched in, or begins in
    sums: pd.DataFrame
    bytes_moved: float
    count: int


A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"


CLOSING = b"\n  }"


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
        yield next(
            (
                step
                for step, (low, high) in ranges.items()
                if when is not None and low <= when < high
            ),
            None,
        )


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


SUMS = (
    "step_us",
    "compute_us",
    "communication_us",
    "hidden_us",
    "exposed_us",
    "host_copy_us",
    "idle_us",
)


def mutated(data: st.DataObject, piece: bytes) -> bytes:
    at, removed = data.draw(st.integers(0, len(piece) - 1)), data.draw(st.integers(0, 3))
    kinds = st.binary(max_size=3) | st.sampled_from(
        [bytes([one]) for one in b'"}{\n\\-9\xff,\0'] + [b"NaN"]
    )
    return piece[:at] + data.draw(kinds) + piece[at + removed :]


LOST = {
    "events_damaged", "trace_cut_short",
    "header_unreadable",
}  # fmt: skip


MATTERS = ("ph", "cat", "name", "pid", "tid", "ts", "dur")


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


SEPARATOR = b",\n"


@pytest.mark.long
@pytest.mark.timeout(120)
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_to_some_events_costs_no_other_step(tmp_path: Path, data: st.DataObject) -> None:
    base = original()
    pieces = list(base.pieces)
    touched: set[int] = set()
    excused = False
    for index in data.draw(
        st.lists(st.integers(1, len(pieces) - 2), min_size=1, max_size=4, unique=True)
    ):
        before = pieces[index]
        pieces[index] = mutated(data, before)
        touched.add(index)
        # the cut behind it is gone: the next event may go with it
        if not pieces[index].endswith(CLOSING):
            touched.add(index + 1)
        excused = excused or is_another_sound_event(before, pieces[index])
    path = tmp_path / "0_0.pt.trace.json"
    path.write_bytes(base.head + SEPARATOR.join(pieces) + base.tail)
    trace = read_trace(path)  # most of the file is sound
    attribution = attribute(trace)
    steps, count = step_breakdown(attribution).set_index("step"), len(trace.events)
    moved, findings = (
        float(collectives(attribution)["bytes"].sum()),
        {finding.code for finding in trace.findings},
    )
    assert (steps[["step_us", "compute_us"]].dropna() >= 0).all(axis=None)
    if excused:
        return
    unchanged = [
        step
        for step in base.sums.index
        if not {step, step - 1} & {base.steps[index] for index in touched}
    ]
    damaged_range = any(b"ProfilerStep#" in base.pieces[index] for index in touched)
    if not damaged_range:
        for name in SUMS:
            assert steps.loc[unchanged, name].tolist() == pytest.approx(
                base.sums.loc[unchanged, name].tolist()
            ), name
    alike = steps[list(SUMS)].shape == base.sums[list(SUMS)].shape and all(
        steps[name].tolist() == pytest.approx(base.sums[name].tolist()) for name in SUMS
    )
    same = alike and moved == base.bytes_moved and count == base.count
    assert same or findings & LOST
    assert count >= base.count - len(touched)
