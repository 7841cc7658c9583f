"""One step to draw, against the generators' literals."""

from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis.traces.ranks.timeline import Spans, StepTimeline, step_timeline, thinned
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.attribution import attribute
from tests.generated_traces.builder import ZERO_US, TraceBuilder
from tests.generated_traces.generator import (
    Trace,
    Transport,
    ddp_trace,
    dp_trace,
    gloo_trace,
    write_trace,
)
from tests.helpers.known import known
from tests.helpers.paths import DATA


def timeline_of(tmp_path: Path, trace: Trace) -> StepTimeline:
    return known(
        step_timeline(attribute(read_trace(write_trace(trace, tmp_path / "0_0.pt.trace.json.gz"))))
    )


def length(spans: Spans) -> float:
    return sum(end - start for start, end in spans)


@pytest.mark.parametrize("transport", ["nccl", "peer_copy"])
def test_a_step_of_data_parallel_is_drawn_as_it_is_measured(
    tmp_path: Path, transport: Transport
) -> None:
    generated = dp_trace(2, transport)
    timeline = timeline_of(tmp_path, generated.trace)
    # steps 5, 6, 7; the first has no window; of 6 and 7, the later one counts as the middle
    assert timeline.step == 7
    assert [device.device for device in timeline.devices] == [0, 1]
    for device in timeline.devices:
        expected = generated.expected.steps[device.device, 7]
        assert timeline.end_us - timeline.start_us == pytest.approx(expected.step_us)
        assert length(device.compute) == pytest.approx(expected.compute_us)
        assert length(device.communication) == pytest.approx(expected.communication_us)
        assert length(device.exposed) == pytest.approx(expected.exposed_us)
        assert device.closed_gap_us == 0.0
    names = {mark.name for device in timeline.devices for _, mark in device.dp_phases}
    assert {"replicate", "parallel_apply", "gather", "gradient_reduce"} <= names
    copies = [mark for device in timeline.devices for mark in device.copies]
    # by NCCL the gathering alone
    assert len(copies) > 2 if transport == "peer_copy" else len(copies) == 2
    assert all(mark.bytes for mark in copies)
    assert {"forward", "backward", "optimizer"} <= {mark.name for mark in timeline.ranges}


@pytest.mark.parametrize("on_device", [True, False])
def test_a_step_of_ddp(tmp_path: Path, on_device: bool) -> None:
    generated = ddp_trace(0, 2) if on_device else gloo_trace(0, 2)
    timeline = timeline_of(tmp_path, generated.trace)
    (device,) = timeline.devices
    assert timeline.step is not None
    expected = generated.expected.steps[device.device, timeline.step]
    assert length(device.compute) == pytest.approx(expected.compute_us)
    assert length(device.communication) == pytest.approx(expected.communication_us)
    assert device.named
    assert not device.dp_phases


def test_the_step_in_which_the_tracer_was_stopped_is_drawn_only_if_it_is_the_only_one(
    tmp_path: Path,
) -> None:
    # steps 5, 6, 7, of 1000, 1000 and 1040 us, from 0, 1005 and 2010 us
    generated = gloo_trace(0, 2).trace
    for first, drawn in ((1005.0, 6), (2010.0, 7)):
        events = [
            one
            for one in generated["traceEvents"]
            if "ts" not in one or one["ts"] >= ZERO_US + first
        ]
        assert timeline_of(tmp_path, {**generated, "traceEvents": events}).step == drawn


def test_operators_within_others_are_not_named(tmp_path: Path) -> None:
    builder = TraceBuilder(pid=1)
    builder.at("user_annotation", "ProfilerStep#3", 1, (0, 100))
    spans = {"outer": (10, 50), "inner": (12, 20), "after": (50, 60), "elsewhere": (15, 18)}
    for name, span in spans.items():
        builder.at("cpu_op", name, 2 if name == "elsewhere" else 1, span)
    (device,) = timeline_of(tmp_path, builder.trace([])).devices
    assert [mark.name for mark in device.named] == ["outer", "after", "elsewhere"]
    assert device.compute == ((10.0, 60.0),)


def test_the_smallest_gaps_are_closed_first() -> None:
    spans = np.array([[0.0, 1.0], [1.5, 2.0], [5.0, 6.0], [6.2, 7.0]])  # gaps 0.5, 3, 0.2
    assert thinned(spans, 4)[1] == 0.0
    fewer, closed_us = thinned(spans, 2)
    assert fewer.tolist() == [[0.0, 2.0], [5.0, 7.0]]
    assert closed_us == 0.5


def test_a_trace_without_a_whole_step_is_drawn_from_its_first_event() -> None:
    # The real job recorded one step a rank, whose start it does not hold.
    timeline = known(
        step_timeline(attribute(read_trace(DATA / "v100x8_ddp_dlrm" / "rank0.json.gz")))
    )
    assert timeline.step == 10
    assert sum(length(device.compute) for device in timeline.devices) > 0
