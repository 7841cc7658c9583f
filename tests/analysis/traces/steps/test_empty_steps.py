"""Steps that hold no event have no times, and a finding names them."""

from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis, analyze_traces
from tests.helpers.made_traces import Event, event, launch, on_device, operator, step, write

STEPS = [step(number, 100.0 * number, 100) for number in range(1, 5)]
TIMES = ["compute_us", "communication_us", "hidden_us", "exposed_us", "idle_us"]


def analyzed(folder: Path, *events: Event, world_size: int = 1) -> TraceAnalysis:
    write(folder, [*STEPS, *events], world_size=world_size)
    return analyze_traces([folder])


def empty(analysis: TraceAnalysis) -> list[tuple[str, str]]:
    found = [one for one in analysis.findings if one.code == "steps_empty"]
    return [
        (one.severity, one.message.partition(" of ")[0] + one.message[one.message.index(" hold ") :]) for one in found
    ]


def test_a_step_of_the_cpu_without_events_is_unknown(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, *(operator("aten::mm", begin, 50) for begin in (110, 310, 410)))
    second = analysis.steps[analysis.steps["step"] == 2]
    assert second[TIMES].isna().all(axis=None)
    assert second["partial_window"].tolist() == [True]
    assert analysis.steps.loc[analysis.steps["step"] == 1, "communication_us"].tolist() == [0.0]
    assert empty(analysis) == [("warning", "1 hold no event (step 2): their times are not given")]


def test_a_step_that_an_earlier_steps_event_reaches_is_not_empty(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, operator("aten::mm", 110, 250), operator("aten::mm", 410, 50))
    assert analysis.steps["compute_us"].tolist() == [90.0, 100.0, 60.0, 50.0]
    assert empty(analysis) == []


def test_a_trace_of_empty_steps_is_an_error(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, event("user_annotation", "before", 10, 20))
    assert analysis.steps[TIMES].isna().all(axis=None)
    assert empty(analysis) == [("error", "4 hold no event (step 1, 2, 3 and 1 more): their times are not given")]


@pytest.mark.parametrize("communicates", [False, True])
def test_a_step_without_work_of_a_device(tmp_path: Path, communicates: bool) -> None:
    name = "ncclDevKernel_AllReduce" if communicates else "gemm"
    work = [launch(1, 105), on_device(name, 110, 50, 1), launch(3, 305), on_device(name, 310, 50, 3)]
    analysis = analyzed(tmp_path, *work, world_size=2)
    assert analysis.steps["step"].tolist() == [1, 3]
    assert empty(analysis) == [("warning", "2 hold no work of a device (step 2, 4): their times are not given")]
