"""When collectives were ready, against the same worked out from the raw trace."""

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.attribution import attribute
from dpscope.analysis.traces.steps.collectives import collectives, ready_us
from dpscope.analysis.traces.steps.event_kind import Kind
from tests.generated_traces.collective_cases import gloo_queue_trace
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


@pytest.mark.parametrize(("begins", "expected"), [("created", True), ("taken_up", True), ("alone", False)])
def test_on_the_cpu_a_collective_is_ready_when_it_is_created(tmp_path: Path, begins: str, expected: bool) -> None:
    """Created at 110, 120, 130, 140; carried out 110-200, 120-180, 180-250, 200-300, so that the first overlaps the second and
    the third, the second the first, the third the first and the fourth, the fourth the third."""
    path = tmp_path / "0_0.pt.trace.json"
    path.write_text(json.dumps(gloo_queue_trace(begins)))
    table = collectives(attribute(read_trace(path))).sort_values("order")
    created = [110.0, 120.0, 130.0, 140.0]
    assert table["ready_us"].tolist() == (created if expected else [pd.NA] * 4)
    assert table["concurrent"].tolist() == [2, 1, 2, 1]


def test_collectives_of_a_device_overlap_only_on_that_device(tmp_path: Path) -> None:
    """Kernels of two streams run at once; the same spans on two devices do not share a device's links."""
    spans = [(0, 0.0, 10.0), (0, 5.0, 15.0), (0, 15.0, 20.0), (1, 0.0, 20.0)]
    path = tmp_path / "0_0.pt.trace.json"
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "pid": device, "tid": 7 + index,
         "ts": 100 + start, "dur": end - start, "args": {"device": device, "stream": 7 + index}}
        for index, (device, start, end) in enumerate(spans)
    ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": kernels}))
    table = collectives(attribute(read_trace(path))).sort_values(["device", "start_us"])
    assert table["concurrent"].tolist() == [1, 1, 0, 0]
