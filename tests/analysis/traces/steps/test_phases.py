"""DataParallel's phases against the generator's literals, with and without named ranges; dp-host by
hand.
"""

from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.traces.ranks.frames import dp_phases
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.attribution import attribute
from dpscope.analysis.traces.steps.data_parallel import broadcast_chunks, reduce_chunks
from dpscope.profiling.records.run import TensorSize
from tests.generated_traces.builder import TraceBuilder
from tests.generated_traces.generator import (
    GeneratedTrace,
    Inputs,
    Trace,
    Transport,
    dp_trace,
    write_trace,
)
from tests.helpers.generated_checks import check_steps


def phases_of(tmp_path: Path, trace: Trace) -> pd.DataFrame:
    return dp_phases(attribute(read_trace(write_trace(trace, tmp_path / "0_0.pt.trace.json.gz"))))


def check(frame: pd.DataFrame, generated: GeneratedTrace) -> None:
    """Every phase; exposed communication adds up over phases."""
    for one in frame.groupby(["device", "step"], as_index=False)["exposed_us"].sum().itertuples():
        assert one.exposed_us == pytest.approx(
            generated.expected.steps[one.device, one.step].exposed_us
        )
    found = {
        (int(row["device"]), int(row["step"]), str(row["phase"])): row
        for row in frame.to_dict("records")
    }
    expected = {
        (device, step, phase): value
        for (device, step), row in generated.expected.steps.items()
        for phase, value in row.phases.items()
        if device is not None
    }
    assert set(found) == set(expected)
    assert len(expected) > 20
    for place, value in expected.items():
        row = found[place]
        assert row["time_us"] == pytest.approx(value.time_us, abs=1e-3), place
        assert row["copied_bytes"] == value.copied_bytes, place
        assert row["collective_count"] == value.collective_count, place
        if place[2] == "replicate" and value.collective_count:
            assert pd.isna(row["collective_bytes"])  # no operator records how large the buffers are
        else:
            assert row["collective_bytes"] == value.collective_bytes, place


def check_all(tmp_path: Path, generated: GeneratedTrace) -> None:
    """The phases and the steps."""
    check(phases_of(tmp_path, generated.trace), generated)
    steps = analyze_traces([tmp_path]).steps
    check_steps(steps, 0, generated)
    assert steps["forward_us"].isna().all() == (not generated.expected.steps[0, 5].range_us)


@pytest.mark.parametrize(
    ("devices", "transport"), [(2, "nccl"), (2, "peer_copy"), (4, "nccl"), (4, "peer_copy")]
)
@pytest.mark.parametrize(
    ("inputs", "named_ranges", "lag"),
    [
        ("host", True, False),
        ("host", False, True),
        ("device", True, True),
        ("device", False, False),
    ],
)
def test_phases_and_steps(
    tmp_path: Path,
    devices: int,
    transport: Transport,
    inputs: Inputs,
    named_ranges: bool,
    lag: bool,
) -> None:
    check_all(tmp_path, dp_trace(devices, transport, inputs, named_ranges, lag))


@pytest.mark.parametrize("transport", ["nccl", "peer_copy"])
def test_phases_without_the_forward_range(tmp_path: Path, transport: Transport) -> None:
    """Operators and threads alone must do: an own subclass may not leave `DataParallel.forward`."""
    generated = dp_trace(4, transport, named_ranges=False)
    events = [
        event for event in generated.trace["traceEvents"] if event["name"] != "DataParallel.forward"
    ]
    assert len(events) == len(generated.trace["traceEvents"]) - 3
    check(phases_of(tmp_path, {**generated.trace, "traceEvents": events}), generated)


def host_trace() -> Trace:
    """One step of 1000 us, two replicas on separate threads; all times by hand."""
    builder = TraceBuilder(pid=1)
    ranges = (
        ("ProfilerStep#3", 1, (0, 1000)),
        ("dpscope::host_to_device", 1, (5, 10)),
        ("dpscope::forward", 1, (10, 400)),
        ("dpscope::dp_scatter#0", 1, (20, 30)),
        ("dpscope::dp_scatter#1", 1, (30, 45)),
        ("dpscope::dp_replicate#0", 1, (50, 70)),
        ("dpscope::dp_replicate#1", 1, (70, 95)),
        ("dpscope::dp_parallel_apply#0", 2, (100, 300)),
        ("dpscope::dp_parallel_apply#1", 3, (110, 350)),
        ("dpscope::dp_gather#0", 1, (355, 360)),
        ("dpscope::dp_gather#1", 1, (360, 368)),
        ("dpscope::backward", 1, (400, 900)),
        ("dpscope::dp_scatter#0", 4, (410, 412)),
        ("dpscope::dp_scatter#1", 4, (412, 415)),
        ("dpscope::dp_parallel_apply#0", 5, (420, 800)),
        ("dpscope::dp_parallel_apply#1", 6, (425, 820)),
        ("dpscope::dp_gradient_reduce#0", 4, (830, 850)),
        ("dpscope::dp_gradient_reduce#1", 4, (850, 880)),
        ("dpscope::optimizer", 1, (910, 990)),
    )
    for name, thread, span in ranges:
        builder.at("user_annotation", name, thread, span)
    builder.at("cpu_op", "aten::conv2d", 2, (101, 299))
    builder.at("cpu_op", "aten::add", 3, (40, 60))
    return builder.trace([])


def test_dp_host(tmp_path: Path) -> None:
    frame = phases_of(tmp_path, host_trace())
    found = {
        (None if pd.isna(row["replica"]) else int(row["replica"]), row["phase"]): row["time_us"]
        for row in frame.to_dict("records")
    }
    assert found == pytest.approx(
        {
            (0, "scatter"): 10, (1, "scatter"): 15, (None, "scatter"): 25,
            (0, "replicate"): 20, (1, "replicate"): 25, (None, "replicate"): 45,
            (0, "parallel_apply"): 200, (1, "parallel_apply"): 240, (None, "parallel_apply"): 250,
            (0, "gather"): 5, (1, "gather"): 8, (None, "gather"): 13,
            (0, "loss_backward"): 2 + 380, (1, "loss_backward"): 3 + 395,
            (0, "gradient_reduce"): 20, (1, "gradient_reduce"): 30, (None, "gradient_reduce"): 50,
            (None, "optimizer"): 80, (None, "host_to_device"): 5,
            # forward and backward 390 + 500, less 25 + 45 + 250 + 13 + 50
            (None, "loss_backward"): 507,
        }
    )  # fmt: skip
    assert frame["device"].isna().all()
    together = frame[frame["replica"].isna()].set_index("phase")["exposed_us"]
    # replica 1's add at 40-60 hides 40-45 of scatter's 25 and 50-60 of replicate's 45; in backward
    # scatter 2 + 3
    exposed = {
        "scatter": 20,
        "replicate": 35,
        "gather": 13,
        "gradient_reduce": 50,
        "loss_backward": 5,
    }
    assert together[together > 0].to_dict() == exposed
    assert frame["copied_bytes"].isna().all()


MIB = 1 << 20


def tensors(*mebibytes: float, dtype: str = "float") -> tuple[TensorSize, ...]:
    return tuple(TensorSize(dtype=dtype, bytes=int(size * MIB)) for size in mebibytes)


def test_broadcast_chunks_close_once_they_hold_the_limit() -> None:
    # 6 + 6 >= 10 closes, 3 is left
    assert broadcast_chunks(tensors(6, 6, 3)) == [12 * MIB, 3 * MIB]
    assert broadcast_chunks(tensors(10, 3)) == [10 * MIB, 3 * MIB]
    assert broadcast_chunks(tensors(20, 1)) == [20 * MIB, 1 * MIB]
    assert broadcast_chunks(()) == []
    # one chunk for each dtype
    assert broadcast_chunks((*tensors(1, 1), *tensors(1, dtype="long"))) == [2 * MIB, 1 * MIB]


def test_reduce_chunks_close_before_they_exceed_the_limit() -> None:
    # 6 + 6 > 10: chunks of 6 and 6 + 3 MiB
    assert reduce_chunks(tensors(6, 6, 3)) == [6 * MIB, 9 * MIB]
    assert reduce_chunks(tensors(5, 5, 5)) == [10 * MIB, 5 * MIB]
    assert reduce_chunks(tensors(20, 1)) == [20 * MIB, 1 * MIB]
    assert reduce_chunks(()) == []
