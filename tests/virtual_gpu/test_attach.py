"""`dpscope attach` of scripts as people write them: half precision, accumulation, pinned batches, a
captured step.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis import analyze_traces
from tests.helpers.words import words
from tests.virtual_gpu.conftest import Plant
from tests.virtual_gpu.node import Collectives, CollectiveTime, Device, Kernels, Node, PlantedNode
from tests.virtual_gpu.programs import captured_step, half_precision
from tests.virtual_gpu.true_steps import traced

# on GPUs at least 11 steps of warm-up
WINDOWS = words("--warmup 11 --steps 8 --traced-steps 2")
STEPS = "34"  # of the scripts


@dataclass(frozen=True)
class Planted:
    kernel_us: float
    latency_us: float
    gb_per_s: float


@pytest.fixture(scope="module")
def planted(random_values: random.Random) -> Planted:
    return Planted(
        kernel_us=random_values.uniform(800, 1200),
        latency_us=random_values.uniform(100, 300),
        gb_per_s=random_values.uniform(0.1, 0.3),
    )


@pytest.fixture(scope="module")
def node(plant: Plant, planted: Planted) -> PlantedNode:
    times = CollectiveTime(latency_us=planted.latency_us, gb_per_s=planted.gb_per_s)
    kernels = Kernels(us=planted.kernel_us, matrix_us=planted.kernel_us)
    return plant(
        Node(devices=(Device(),) * 2, kernels=kernels, collectives=Collectives(by_size=(times,)))
    )


def script(module: Any) -> str:
    return str(Path(module.__file__))


def cell_of(node: PlantedNode, run: Path) -> dict[str, Any]:
    report = json.loads(node.dpscope("analyze", str(run), "--format", "json"))
    (cell,) = report["cells"]
    return dict(cell)


def test_half_precision_with_accumulation_and_pinned_batches(
    node: PlantedNode, planted: Planted, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    node.dpscope(
        "attach", "--devices", "2", *WINDOWS, "--out", str(out), "--", script(half_precision), STEPS
    )
    cell = cell_of(node, out)
    assert (cell["strategy"], cell["devices"], cell["batch_size"]) == ("ddp", 2, 8)
    assert cell["cell"] == "ddp-d2-b8-accumulate-2-amp-fp16"
    elements = half_precision.WIDTH * (half_precision.WIDTH + half_precision.CLASSES)
    size = 4 * elements  # gradients of fp32 weights, reduced once in two micro-batches
    assert cell["bytes_per_step"] == size

    traces = sorted(out.glob("cells/*/repeat0/traces/*.gz"))
    analysis = analyze_traces(traces)
    truth = node.truth()
    for rank, trace in enumerate(traces):
        true = traced(truth.collectives.query("name.str.contains('AllReduce')"), trace)
        reported = analysis.collectives.query(
            f"kind == 'all_reduce' and rank == {rank}"
        ).sort_values("start_us")
        assert list(reported["bytes"]) == list(true["bytes"]) == [size] * len(true)
        assert len(true) >= 2
        transfer_us = planted.latency_us + size / planted.gb_per_s / 1000
        assert reported["transfer_us"].to_list() == pytest.approx(
            [transfer_us] * len(true), rel=1e-3
        )
        copies = traced(truth.work.query("name == 'htod'"), trace)
        batches = copies[copies["bytes"] == 4 * half_precision.BATCH * half_precision.WIDTH]
        assert set(batches["step"].value_counts()) == {half_precision.MICRO_BATCHES}


def test_a_captured_step_is_measured_by_its_replays(
    node: PlantedNode, planted: Planted, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    counted = (
        "--devices",
        "single",
        "--steps-by",
        "call",
        "--batch-size",
        str(captured_step.BATCH),
    )
    node.dpscope(
        "attach",
        *counted,
        *WINDOWS,
        "--out",
        str(out),
        "--",
        script(captured_step),
        STEPS,
        "watched",
    )
    cell = cell_of(node, out)
    (trace,) = out.glob("cells/*/repeat0/traces/*.gz")
    true = traced(node.truth().work, trace)
    kernels = true[true["kind"] == "kernel"]
    per_step = kernels.groupby("step").size()
    assert len(set(per_step)) == 1
    assert per_step.iloc[0] >= 10
    busy_us = planted.kernel_us * per_step.iloc[0]
    assert cell["compute_us"] == pytest.approx(busy_us, rel=0.01)
    assert cell["step_us"] == pytest.approx(busy_us, rel=0.05)  # and a copy


def test_a_captured_step_that_nothing_ends_is_refused(node: PlantedNode, tmp_path: Path) -> None:
    command = ("attach", "--devices", "single", *WINDOWS, "--out", str(tmp_path / "run"), "--")
    printed = node.dpscope(*command, script(captured_step), STEPS, status=1)
    assert "the script recorded a step into a CUDA graph" in printed
    assert "attach with --steps-by call" in printed
    assert "Traceback" not in printed
