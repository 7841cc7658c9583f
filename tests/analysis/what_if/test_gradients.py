"""Which gradients a trace's nodes show, and with how many bytes."""

import json
from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis import read_trace
from dpscope.analysis.what_if.gradients import NODE, ready_gradients
from dpscope.analysis.what_if.step_profile import BY_ORDER

# when the nodes of two tensors begin, in the two backward passes
FIRST, LAST = (100.0, 150.0), (500.0, 600.0)


def trace_of(path: Path, starts: tuple[float, ...]) -> Path:
    nodes = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": NODE,
            "pid": 1,
            "tid": 2,
            "ts": start,
            "dur": 10.0,
            "args": {},
        }
        for start in (0.0, *starts)
    ]
    nodes[0]["name"] = "aten::convolution"
    path.write_text(json.dumps({"traceEvents": nodes}))
    return path


@pytest.mark.parametrize("starts", [(*FIRST, *LAST), LAST])
def test_only_the_last_micro_batchs_gradients_are_in_a_bucket(
    tmp_path: Path, starts: tuple[float, ...]
) -> None:
    events = read_trace(trace_of(tmp_path / "0_0.pt.trace.json", starts)).events
    found = ready_gradients(
        events, (0.0, 1000.0), np.array([620.0]), np.array([300.0]), parameter_bytes=[100, 200]
    )
    assert found.known == BY_ORDER
    assert found.bytes.tolist() == [200.0, 100.0]  # in the order of the backward pass
    assert found.end_us.tolist() == [510.0, 620.0]  # the last one when its bucket is launched
