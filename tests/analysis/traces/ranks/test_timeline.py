"""One step to draw, against the generators' literals."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpscope.analysis.traces.ranks import timeline as timelines
from dpscope.analysis.traces.ranks.timeline import Spans, StepTimeline, step_timeline, thinned
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.attribution import attribute
from tests.generated_traces.generator import (
    Trace,
    Transport,
    ddp_trace,
    dp_trace,
    gloo_trace,
    write_trace,
)
from tests.helpers.known import known


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


def test_the_smallest_gaps_are_closed_first() -> None:
    spans = np.array([[0.0, 1.0], [1.5, 2.0], [5.0, 6.0], [6.2, 7.0]])  # gaps 0.5, 3, 0.2
    assert thinned(spans, 4)[1] == 0.0
    fewer, closed_us = thinned(spans, 2)
    assert fewer.tolist() == [[0.0, 2.0], [5.0, 7.0]]
    assert closed_us == 0.5


def test_what_only_touches_a_step_is_not_drawn_in_it() -> None:
    starts, ends = np.array([(0.0, 10.0), (5.0, 11.0), (15.0, 25.0), (20.0, 30.0)]).T
    events: Any = SimpleNamespace(start_us=starts, end_us=ends)
    assert timelines._within(events, np.ones(4, dtype=bool), (10.0, 20.0)).tolist() == [1, 2]
