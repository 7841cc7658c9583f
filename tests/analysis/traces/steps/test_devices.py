"""Which devices are read, and that one which is not never reads as a CPU that communicates
nothing.
"""

from pathlib import Path

import pytest

from dpscope.analysis.output.trace_tables import trace_status
from dpscope.analysis.traces.ranks.job import Job
from tests.helpers.made_traces import (
    Event,
    analyzed_events,
    event,
    launch,
    on_device,
    operator,
    step,
)

MEASURES = ["step_us", "compute_us", "communication_us", "hidden_us", "exposed_us", "idle_us"]


def messages_by_code(analysis: Job) -> dict[str, str]:
    return {finding.code: finding.message for finding in analysis.findings}


STEPS = [
    step(1, 0, 100),
    step(2, 100, 100),
    operator("aten::mm", 10, 50),
    operator("aten::view", 150, 0),
]


RUNTIMES = (
    "cuda_runtime",
    "xpu_runtime",
    "xpu_driver",
    "privateuse1_runtime",
    "runtime",
    "mtia_runtime",
)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_kernels_of_each_device_belong_to_the_step_that_launched_them(
    tmp_path: Path, runtime: str
) -> None:
    """Launched at 20 and 120, kernels 30-80 and 130-170: 50 us from the first event; then 170 - 80
    = 90, 40 of compute.
    """
    kernel = "mtia_ccp_events" if runtime.startswith("mtia") else "kernel"
    work = [launch(1, 20, "launchKernel", runtime), on_device("gemm", 30, 50, 1, category=kernel)]
    work += [
        launch(2, 120, "launchKernel", runtime),
        on_device("gemm", 130, 40, 2, category=kernel),
    ]
    steps = analyzed_events(tmp_path, [*STEPS, *work]).steps
    assert steps[["step_us", "compute_us", "by_time_us"]].to_numpy().tolist() == [
        [50, 50, 0],
        [90, 40, 0],
    ]


@pytest.mark.parametrize("category", ["hpu_op", "mtia_insight", "npu_kernel", "glow_runtime"])
def test_a_device_that_is_not_read_is_no_cpu(tmp_path: Path, category: str) -> None:
    other = [event(category, "something", 20.0 + index, 1.0, pid=3, tid=4) for index in range(3)]
    analysis = analyzed_events(tmp_path, [*STEPS, *other])
    assert (
        f"3 {category}; its compute and communication are not given"
        in messages_by_code(analysis)["device_not_read"]
    )
    assert "no_kernels" not in messages_by_code(analysis)
    assert analysis.steps["step"].tolist() == [1, 2]
    assert analysis.steps[MEASURES].isna().all(axis=None)
    assert trace_status(analysis.findings, analysis.cut_short) == 1


@pytest.mark.parametrize(
    "asks",
    [[operator("c10d::barrier", 60, 5)], [event("user_annotation", "gloo:all_reduce", 60, 5)], []],
)
def test_a_cpu_that_communicates_in_gloo_or_not_at_all(tmp_path: Path, asks: list[Event]) -> None:
    analysis = analyzed_events(tmp_path, [*STEPS, *asks])
    assert "trace_incomplete" not in messages_by_code(analysis)
    assert analysis.steps["communication_us"].tolist() == [
        5.0 if asks and "gloo" in asks[0]["name"] else 0.0,
        0.0,
    ]


def test_ranges_recorded_as_operators(tmp_path: Path) -> None:
    """As torch 1.12 and before: steps of 100 us, in the first 30 us of computing and 20 of gloo, 10
    of them at the same time.
    """
    events = [operator("ProfilerStep#1", 0, 100), operator("ProfilerStep#2", 100, 100)]
    events += [
        operator("Optimizer.step#SGD.step", 60, 10),
        operator("enumerate(DataLoader)#_Next.__next__", 0, 10),
    ]
    events += [operator("aten::mm", 20, 30), operator("gloo:all_reduce", 40, 20, tid=2)]
    events.append(operator("aten::view", 150, 0))
    analysis = analyzed_events(tmp_path, events)
    assert analysis.steps["step"].tolist() == [1, 2]
    assert analysis.steps[
        ["step_us", "compute_us", "communication_us", "hidden_us"]
    ].to_numpy().tolist() == [[100, 30, 20, 10], [100, 0, 0, 0]]
    assert analysis.collectives["kind"].tolist() == ["all_reduce"]
