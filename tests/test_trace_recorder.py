"""Timing and tracing of steps in this process."""

import gzip
import json
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from dpscope.profiling.run_types import SAMPLE_COLUMNS
from dpscope.profiling.step_timer import StepCounts, save_samples, time_block
from dpscope.profiling.trace_recorder import record_trace

HOST = torch.device("cpu")
STEP_S = 0.02


def step() -> StepCounts:
    time.sleep(STEP_S)
    (torch.ones(8, 8) @ torch.ones(8, 8)).sum()
    return StepCounts(data_wait_us=5.0, samples=4)


def test_a_block_is_its_steps() -> None:
    synchronised = []
    block, samples = time_block(step, 4, HOST, lambda: synchronised.append(1), first_step=8, epoch=2)
    assert (block.steps, block.samples, block.epoch, len(synchronised)) == (4, 16, 2, 2)
    assert block.data_wait_s == pytest.approx(2e-5)
    assert [sample.step for sample in samples] == [8, 9, 10, 11]
    assert all(sample.step_us >= STEP_S * 1e6 for sample in samples)
    assert sum(sample.step_us for sample in samples) <= block.duration_s * 1e6


def test_a_trace_holds_one_step_more_than_asked_and_matches_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "traces" / "0_0.pt.trace.json.gz"
    samples = record_trace(step, 2, path, HOST, all_threads=True, synchronise=lambda: None)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ranges = {event["name"]: event["dur"] for event in events if event.get("name", "").startswith("ProfilerStep#")}
    assert sorted(ranges) == [f"ProfilerStep#{sample.step}" for sample in samples]
    assert len(samples) == 3
    for sample in samples:
        # The sample also covers the tracer's own step change, not the writing of the trace.
        assert STEP_S * 1e6 <= ranges[f"ProfilerStep#{sample.step}"] <= sample.step_us + 2000
        assert sample.step_us < STEP_S * 1e6 + 200_000
    assert [path.name for path in path.parent.iterdir()] == ["0_0.pt.trace.json.gz"]


def test_a_failing_step_leaves_no_trace(tmp_path: Path) -> None:
    def failing() -> StepCounts:
        raise ArithmeticError("on purpose")

    with pytest.raises(ArithmeticError):
        record_trace(failing, 1, tmp_path / "a.pt.trace.json.gz", HOST, False, lambda: None)
    assert list(tmp_path.rglob("*.gz")) == []


def test_samples_are_saved_with_their_columns(tmp_path: Path) -> None:
    _, samples = time_block(step, 2, HOST, lambda: None)
    save_samples(tmp_path / "samples.parquet", samples)
    frame = pd.read_parquet(tmp_path / "samples.parquet")
    assert list(frame.columns) == list(SAMPLE_COLUMNS)
    assert len(frame) == 2
    assert frame.epoch.isna().all()
    assert (frame.measuring_pass == "timed").all()
