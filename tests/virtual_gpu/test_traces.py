"""What torch.profiler writes on the virtual node is what the node did."""

import json
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import Device, Kernels, KernelTime, Node

_DEVICE_WORK = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}  # the trace's name: the truth's


def _events(trace: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    return events


def _device_events(trace: Path) -> pd.DataFrame:
    rows = [
        {
            "kind": _DEVICE_WORK[event["cat"]],
            "name": event["name"],
            "start_us": event["ts"],
            "us": event["dur"],
            **{name: event["args"].get(name) for name in ("device", "stream", "correlation", "bytes")},
        }
        for event in _events(trace)
        if event.get("cat") in _DEVICE_WORK
    ]
    return pd.DataFrame(rows)


def test_trace_equals_truth(plant: Plant, random_values: random.Random, tmp_path: Path) -> None:
    convolution_us = random_values.uniform(300, 900)
    kernel_us = random_values.uniform(50, 150)
    times = (KernelTime(name="fprop", us=convolution_us),)
    node = plant(Node(devices=(Device(),) * 2, kernels=Kernels(us=kernel_us, by_name=times)))
    trace = tmp_path / "trace.json"
    node.run("-m", "tests.virtual_gpu.programs.profiled_steps", str(trace))

    truth, events = node.truth(), _device_events(trace)
    both = events.merge(truth.work, on="correlation", suffixes=("", "_true"))
    first = truth.work["start_ns"] >= both["start_ns"].min()  # the steps before were not profiled
    assert len(events) == len(both) == first.sum() > 40
    assert list(both["kind"]) == list(both["kind_true"])
    assert list(both["stream"]) == list(both["stream_true"])
    assert list(both["device"]) == list(both["device_true"])
    moved = both[both["kind"] == "copy"]
    assert list(moved["bytes"]) == list(moved["bytes_true"])
    true_us = (both["end_ns"] - both["start_ns"]) / 1000
    pd.testing.assert_series_equal(both["us"], true_us, check_names=False, rtol=1e-3, atol=0.1)
    offsets_us = both["start_us"] - both["start_ns"] / 1000
    assert (offsets_us - offsets_us.median()).abs().max() < 2

    convolutions = both[both["name"].str.contains("fprop")]
    assert convolutions["us"].to_list() == pytest.approx([convolution_us] * 2, abs=0.1)
    additions = both[both["name"].str.contains("CUDAFunctorOnSelf_add")]
    assert additions["us"].to_list() == pytest.approx([kernel_us] * len(additions), abs=0.1)
