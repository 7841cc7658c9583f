"""What torch.profiler writes on the virtual node is what the node did."""

import json
import random
from pathlib import Path

import pandas as pd
import pytest

from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import Device, Kernels, KernelTime, Node

# the trace's name: the truth's
_DEVICE_WORK = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}
_ARGUMENTS = ("device", "stream", "correlation", "bytes")
_SAME = ["kind", "device", "stream", "correlation"]
_ORDER = ["start_ns", "stream"]


def device_events(trace: Path) -> pd.DataFrame:
    """The trace's work of devices in the order of its starts, with times in nanoseconds."""
    events = json.loads(trace.read_text())["traceEvents"]
    rows = [
        {
            "kind": _DEVICE_WORK[event["cat"]],
            "name": event["name"],
            "start_ns": event["ts"] * 1000,
            "ns": event["dur"] * 1000,
            **{name: event["args"].get(name) for name in _ARGUMENTS},
        }
        for event in events
        if event.get("cat") in _DEVICE_WORK
    ]
    return pd.DataFrame(rows).sort_values(_ORDER, ignore_index=True)


@pytest.mark.parametrize(
    ("variant", "least"), [("plain", 40), ("amp", 40), ("graph", 30), ("compiled", 15)]
)
def test_trace_equals_truth(
    plant: Plant, random_values: random.Random, tmp_path: Path, variant: str, least: int
) -> None:
    convolution_us, kernel_us = random_values.uniform(300, 900), random_values.uniform(50, 150)
    times = (KernelTime(name="fprop", us=convolution_us),)
    node = plant(Node(devices=(Device(),) * 2, kernels=Kernels(us=kernel_us, by_name=times)))
    trace = tmp_path / "trace.json"
    caches = {
        name: str(tmp_path / name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    }
    node.run(
        "-m", "tests.virtual_gpu.programs.profiled_steps", variant, str(trace), variables=caches
    )

    events, work = device_events(trace), node.truth().work.sort_values(_ORDER, ignore_index=True)
    # nothing runs after the profiler stops
    profiled = work.tail(len(events)).reset_index(drop=True)
    assert len(events) >= least
    pd.testing.assert_frame_equal(events[_SAME], profiled[_SAME])
    is_copy = events["kind"] == "copy"
    assert list(events["bytes"][is_copy]) == list(profiled["bytes"][is_copy])
    true_ns = (profiled["end_ns"] - profiled["start_ns"]).astype(float)
    pd.testing.assert_series_equal(events["ns"], true_ns, check_names=False, rtol=1e-3, atol=100)
    offsets_ns = events["start_ns"] - profiled["start_ns"]
    assert (offsets_ns - offsets_ns.median()).abs().max() < 2000

    convolutions = events[events["name"].str.contains("fprop")]
    assert convolutions["ns"].to_list() == pytest.approx([convolution_us * 1000] * 2, abs=100)
    own = events[events["name"].str.contains("at::native|triton_")]
    assert own["ns"].to_list() == pytest.approx([kernel_us * 1000] * len(own), abs=100)
    assert len(own) > 5
    assert own["name"].str.contains("triton_").any() == (variant == "compiled")
