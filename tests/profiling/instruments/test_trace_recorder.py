"""Timing and tracing of steps in this process, and dpscope's named ranges in traces."""

import dataclasses
import gc
import gzip
import json
import math
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from dpscope.profiling.instruments.step_timer import (
    SAMPLE_COLUMNS,
    StepTimer,
    save_samples,
    time_block,
)
from dpscope.profiling.instruments.trace_recorder import (
    WARMUP_STEPS,
    StepTrace,
    named_range,
    ranges_recorded,
)

HOST = torch.device("cpu")
STEP_S, WAIT_S = 0.02, 0.004


def step(batch_arrived: Callable[[], None]) -> int:
    time.sleep(WAIT_S)
    batch_arrived()
    time.sleep(STEP_S - WAIT_S)
    (torch.ones(8, 8) @ torch.ones(8, 8)).sum()
    return 4


def test_a_block_is_its_steps() -> None:
    synchronised = []
    block, samples = time_block(
        step, 4, HOST, lambda: synchronised.append(1), first_step=8, epoch=2
    )
    assert (block.steps, block.samples, block.epoch, len(synchronised)) == (4, 16, 2, 2)
    assert block.data_wait_s is not None
    assert block.data_wait_s == pytest.approx(sum(sample.data_wait_us for sample in samples) / 1e6)
    assert all(
        WAIT_S * 1e6 <= sample.data_wait_us <= sample.step_us - (STEP_S - WAIT_S) * 1e6
        for sample in samples
    )
    assert [sample.step for sample in samples] == [8, 9, 10, 11]
    assert all(sample.step_us >= STEP_S * 1e6 for sample in samples)
    assert sum(sample.step_us for sample in samples) <= block.duration_s * 1e6


def test_a_trace_holds_one_step_more_than_requested_and_matches_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "traces" / "0_0.pt.trace.json.gz"
    samples = StepTrace(2, path, HOST, all_threads=True, synchronise=lambda: None).record(step)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ranges = {
        event["name"]: event["dur"]
        for event in events
        if event.get("name", "").startswith("ProfilerStep#")
    }
    assert sorted(ranges) == [f"ProfilerStep#{sample.step}" for sample in samples]
    assert len(samples) == 3
    for sample in samples:
        # The sample also covers the tracer's own step change, not the writing of the trace.
        assert STEP_S * 1e6 <= ranges[f"ProfilerStep#{sample.step}"] <= sample.step_us + 2000
        assert sample.step_us < STEP_S * 1e6 + 200_000
        assert WAIT_S * 1e6 <= sample.data_wait_us < sample.step_us
    assert [path.name for path in path.parent.iterdir()] == ["0_0.pt.trace.json.gz"]


def test_a_device_finishes_before_steps_are_recorded_and_after_them(tmp_path: Path) -> None:
    """Two warm-up steps between waits, so that none of their work is recorded; then the steps."""
    order: list[str] = []

    def noted(batch_arrived: Callable[[], None]) -> int:
        order.append("step")
        batch_arrived()
        return 4

    path = tmp_path / "0_0.pt.trace.json.gz"
    StepTrace(1, path, HOST, False, lambda: order.append("wait")).record(noted)
    assert order == ["wait", "step", "step", "wait", "step", "step", "wait"]


def test_two_arrivals_within_a_step_are_not_attributed_to_two_steps() -> None:
    timer = StepTimer(HOST)
    for mark in (timer.boundary, timer.batch_arrived, timer.batch_arrived, timer.boundary):
        mark()
    with pytest.raises(ValueError, match="longer"):
        timer.data_waits_us()


def test_a_failing_step_leaves_no_trace(tmp_path: Path) -> None:
    def failing(batch_arrived: Callable[[], None]) -> int:
        raise ArithmeticError("on purpose")

    with pytest.raises(ArithmeticError):
        StepTrace(1, tmp_path / "a.pt.trace.json.gz", HOST, False, lambda: None).record(failing)
    assert list(tmp_path.rglob("*.gz")) == []
    # the recording has ended: the same context that does nothing
    assert named_range("one") is named_range("another")


def test_samples_are_saved_with_their_columns(tmp_path: Path) -> None:
    _, samples = time_block(step, 2, HOST, lambda: None)
    (nothing_awaited,) = time_block(step, 1, HOST, lambda: None, first_step=1 << 40, epoch=7)[1]
    samples.append(
        dataclasses.replace(nothing_awaited, measuring_pass="traced", data_wait_us=math.nan)
    )
    save_samples(tmp_path / "samples.parquet", samples)
    frame = pd.read_parquet(tmp_path / "samples.parquet")
    assert list(frame.columns) == list(SAMPLE_COLUMNS)
    assert [str(dtype) for dtype in frame.dtypes[1:]] == [
        "Int64",
        "int64",
        "float64",
        "float64",
        "int64",
    ]
    assert frame.epoch.tolist() == [pd.NA, pd.NA, 7]
    assert frame.measuring_pass.tolist() == ["timed", "timed", "traced"]
    assert frame.step.tolist() == [0, 1, 1 << 40]
    assert frame.step_us.tolist() == [one.step_us for one in samples]
    assert frame.samples.tolist() == [one.samples for one in samples]
    waits = pq.read_table(tmp_path / "samples.parquet")["data_wait_us"]
    # missing for other programs, too
    assert waits.to_pylist() == [*(one.data_wait_us for one in samples[:2]), None]
    save_samples(tmp_path / "none.parquet", [])
    assert pd.read_parquet(tmp_path / "none.parquet").dtypes.equals(frame.dtypes)


def test_a_trace_that_is_stopped_before_its_last_step_is_not_saved(tmp_path: Path) -> None:
    for steps in (0, WARMUP_STEPS + 1):
        path = tmp_path / f"{steps}.pt.trace.json.gz"
        trace = StepTrace(1, path, HOST, all_threads=False, synchronise=lambda: None)
        trace.start()
        assert not any(trace.step_ended(1) for _ in range(steps))
        trace.stop()
        assert not path.exists()
    trace = StepTrace(1, path, HOST, all_threads=False, synchronise=lambda: None)
    trace.start()
    ends = [trace.step_ended(3) for _ in range(WARMUP_STEPS + 2)]
    trace.stop()
    assert ends == [False, False, False, True]
    assert path.exists()
    assert [(sample.step, sample.samples) for sample in trace.samples()] == [(2, 3), (3, 3)]
    # no batch's arrival was marked
    assert all(math.isnan(sample.data_wait_us) for sample in trace.samples())


def test_a_finished_trace_holds_nothing(tmp_path: Path) -> None:
    """torch's profiler is in a reference cycle: objects that it held, such as loader workers, would
    stay alive.
    """

    class Process:
        def synchronise(self) -> None:
            pass

        def step(self, batch_arrived: Callable[[], None]) -> int:
            return 1

    first, process = Process(), Process()
    # torch keeps its frames
    StepTrace(1, tmp_path / "first.gz", HOST, False, first.synchronise).record(first.step)
    held = weakref.ref(process)
    gc.disable()
    try:
        StepTrace(1, tmp_path / "t.gz", HOST, False, process.synchronise).record(process.step)
        del process
        assert held() is None
    finally:
        gc.enable()


def enter(name: str) -> None:
    with named_range(name):
        torch.ones(1)


def test_a_range_is_entered_only_while_a_trace_is_recorded() -> None:
    every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=every_thread) as profiler:
        enter("before")
        with ranges_recorded(), ThreadPoolExecutor(1) as threads:
            enter("own thread")
            threads.submit(enter, "other thread").result()
        enter("after")
    names = {event.name for event in profiler.events() or ()}
    assert names & {"before", "own thread", "other thread", "after"} == {
        "own thread",
        "other thread",
    }
