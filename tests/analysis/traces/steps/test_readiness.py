"""When collectives were ready, against the same worked out from the raw trace."""

import gzip
import json

import numpy as np
import pytest

from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.attribution import attribute
from dpscope.analysis.traces.steps.collectives import ready_us
from dpscope.analysis.traces.steps.event_kind import Kind
from tests.helpers.paths import ROOT

TRACE = ROOT / "tests" / "data" / "a100x2_ddp_resnet50_rank0.json.gz"


def test_ready_is_the_end_of_what_was_launched_before() -> None:
    events = [one for one in json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"] if one.get("ph") == "X"]
    launched = {
        one["args"]["correlation"]: one["ts"]
        for one in events
        if "Launch" in one["name"] and "correlation" in one["args"]
    }
    kernels = [
        (launched[one["args"]["correlation"]], one["ts"], one["ts"] + one["dur"], "nccl" in one["name"].lower())
        for one in events
        if one.get("cat") == "kernel" and one["args"].get("correlation") in launched
    ]
    expected = {
        start: max([launch, *(end for other, _, end, nccl in kernels if not nccl and other < launch)])
        for launch, start, _, is_nccl in kernels
        if is_nccl
    }
    assert len(expected) >= 14
    attribution = attribute(read_trace(TRACE))
    rows = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    waits = attribution.events.start_us[rows] - ready_us(attribution, rows)
    known = np.isfinite(waits)
    by_hand = [start - ready for start, ready in sorted(expected.items())]
    assert sorted(waits[known].tolist()) == pytest.approx(sorted(by_hand), abs=0.01)
    assert min(by_hand) > -1  # none starts before it is ready


def test_on_the_cpu_a_collective_is_created_when_it_is_ready() -> None:
    path = next((ROOT / "examples" / "run_cpu" / "cells" / "ddp-d2-b8").glob("repeat0/traces/0_0.pt.trace.json.gz"))
    attribution = attribute(read_trace(path))
    rows = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    assert len(rows) >= 3
    assert ready_us(attribution, rows).tolist() == attribution.events.start_us[rows].tolist()
