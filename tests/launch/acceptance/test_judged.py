"""What checks conclude of answers that were recorded or made by hand: comparisons and limits, each with its near miss."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dpscope.launch.acceptance.cells import judged
from dpscope.launch.acceptance.machine import replayed
from dpscope.launch.acceptance.measures import busy_difference, step_difference, union_us, without_launch
from dpscope.launch.acceptance.ranks import judged_calibration, judged_traces
from dpscope.launch.acceptance.replicas import missing_phases
from dpscope.launch.acceptance.several import average_bus_gb_per_s, bonded, busbw_gb_per_s
from dpscope.launch.acceptance.verdict import CheckVerdict, at_most, equals, none_of
from dpscope.launch.acceptance.workplace import Workplace
from dpscope.launch.calibration.worker import TimedCollectives
from dpscope.profiling.records.calibration import CalibrationPoint, Contention
from dpscope.profiling.records.range_names import GATHER, PARALLEL_APPLY, REPLICATE, SCATTER
from dpscope.profiling.records.run import DdpCounters
from tests.helpers.nvml_records import TwoGpuNvml


def failing(verdicts: list[CheckVerdict]) -> list[str]:
    return [one.name for one in verdicts if one.status == "FAIL"]


def test_a_line_holds_status_name_value_and_limit() -> None:
    assert at_most("d.x", 0.0196, 0.02, "%").line == "PASS d.x 1.96% 2%"
    assert at_most("d.x", 0.021, 0.02, "%", "why").line == "FAIL d.x 2.1% 2% (why)"
    assert at_most("d.x", None, 60.0, "s").line == "FAIL d.x - 60s (no value was measured)"
    assert equals("k.y", "timed out", "ok").line == "FAIL k.y timed_out ok"
    assert none_of("b.z", ["one", "two", "one"]).line == "FAIL b.z one,two none"
    assert none_of("b.z", []).line == "PASS b.z none none"


def finding(code: str, severity: str) -> dict[str, str]:
    return {"code": code, "severity": severity, "message": code}


def test_a_run_s_findings_are_none_but_those_that_speak_of_the_machine() -> None:
    cells = [{"status": "ok"}, {"status": "ok"}]
    allowed = [finding("wide_spread", "warning"), finding("single_repeat", "warning"), finding("estimates", "info")]
    assert failing(judged("b", {"cells": cells, "findings": allowed})) == []
    assert failing(judged("b", {"cells": cells, "findings": [finding("span_mismatch", "error")]})) == ["b.findings"]
    crashed = {"cells": [*cells, {"status": "crashed"}], "findings": []}
    assert failing(judged("b", crashed)) == ["b.cells"]


STEP = {"cell": "c", "repeat": 0, "partial_window": False, "exposed_us": 0.0}


def test_busy_time_is_held_against_the_kernels_by_hand() -> None:
    """Two steps of 100 us up to 300 us: kernels 110-160, 150-170 and 210-290 are busy for 60 + 80 us; one before counts as 5."""
    spans = [(90.0, 15.0), (110.0, 50.0), (150.0, 20.0), (210.0, 80.0), (250.0, 50.0)]
    events = [{"cat": "kernel", "ts": start, "dur": length} for start, length in spans]
    steps = [{**STEP, "step_us": 100.0, "compute_us": busy} for busy in (65.0, 90.0)]
    assert busy_difference({"steps": steps}, "c", events) == 0.0
    off = [{**steps[0], "compute_us": 68.1}, steps[1]]  # 3.1 of 155
    assert busy_difference({"steps": off}, "c", events) == pytest.approx(0.02)
    assert busy_difference({"steps": steps}, "c", []) is None
    assert union_us([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]) == 4.0


def test_parts_of_a_step_add_up_and_kernels_have_launches() -> None:
    steps = [{**STEP, "step_us": 100.0, "compute_us": 60.0, "exposed_us": 10.0, "idle_us": 30.0}]
    assert step_difference({"steps": steps}, "c") == 0.0
    assert step_difference({"steps": [{**steps[0], "idle_us": 31.0}]}, "c") == pytest.approx(0.01)
    assert step_difference({"steps": [{**steps[0], "idle_us": None}]}, "c") is None
    kernels: list[dict[str, Any]] = [{"cat": "kernel", "args": {"correlation": number}} for number in (1, 2, 3, 4)]
    calls: list[dict[str, Any]] = [{"cat": "cuda_runtime", "args": {"correlation": number}} for number in (1, 2, 3)]
    assert without_launch([*kernels, *calls]) == 0.25
    assert without_launch(calls) is None


def counted(step_number: int, *sizes: int) -> DdpCounters:
    return DdpCounters(step_number, 0.0, 0.0, 0.0, 0.0, sizes)


def two_ranks(**first: Any) -> dict[str, Any]:
    """Two ranks, a whole step 3 each of buckets of 600 and 400 bytes; `first` changes rank 0's first bucket."""
    rows = [
        {"rank": rank, "step": 3, "kind": "all_reduce", "bytes": size, "transfer_us": 5.0, "device": 0}
        for rank in (0, 1)
        for size in (600, 400)
    ]
    rows[0] |= first
    steps = [{"rank": rank, "step": number, "partial_window": number == 2} for rank in (0, 1) for number in (2, 3)]
    return {"steps": steps, "collectives": rows, "findings": []}


@pytest.mark.parametrize(
    ("analysis", "wrong"),
    [
        (two_ranks(), []),
        (two_ranks(bytes=500), ["g.bytes_against_gradients", "g.buckets_as_counted"]),
        (two_ranks(transfer_us=None), ["g.unmatched"]),
        (two_ranks(device=None), ["g.on_device"]),
        (two_ranks() | {"findings": [finding("trace_incomplete", "error")]}, ["g.findings"]),
        (two_ranks() | {"findings": [finding("wide_spread", "warning")]}, []),
    ],
)
def test_all_reduces_of_two_ranks(analysis: dict[str, Any], wrong: list[str]) -> None:
    verdicts = judged_traces("g", analysis, 1000, (counted(2, 1, 2), counted(3, 600, 400)), on_device=True)
    assert failing(verdicts) == wrong
    assert len(verdicts) == 6


def timed(small_us: float, large_us: float, two_us: float, beside_us: float) -> TimedCollectives:
    points = tuple(
        CalibrationPoint("all_reduce", 2, size, size // 4, "float32", (time_us,) * 3)
        for size, time_us in ((65_536, small_us), (1 << 20, large_us))
    )
    contention = Contention("all_reduce", 2, 1 << 20, (large_us,), (two_us,), (large_us,), (100.0,), (beside_us,))
    return TimedCollectives(
        backend="nccl", device_names=(), device_uuids=(), points=points, left_out=(), contention=(contention,)
    )


def test_a_calibration_that_makes_no_sense_fails() -> None:
    assert failing(judged_calibration(timed(20.0, 200.0, 390.0, 130.0))) == []
    assert failing(judged_calibration(timed(200.0, 20.0, 39.0, 130.0))) == ["m.larger_takes_longer"]
    assert failing(judged_calibration(timed(20.0, 200.0, 150.0, 130.0))) == ["m.one_of_two_at_once"]
    assert failing(judged_calibration(timed(20.0, 200.0, 390.0, 58.0))) == ["m.compute_alone_of_beside"]


def test_nvml_is_recorded_and_replayed_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    place = Workplace(tmp_path)
    monkeypatch.setattr("dpscope.launch.acceptance.machine.open_nvml", TwoGpuNvml)
    assert replayed(place).line == "PASS a.nvml_replayed equal equal"
    monkeypatch.setattr("dpscope.launch.acceptance.machine.open_nvml", lambda: None)
    assert replayed(place).status == "SKIP"


def test_data_parallel_s_phases_are_looked_for_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    there = [{"name": SCATTER}, {"name": REPLICATE}, {"name": PARALLEL_APPLY}]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": there}).encode()))
    assert missing_phases(path) == [GATHER]


def test_other_tools_answers_are_read() -> None:
    topology = "GPU0  X  NV12  SYS\nGPU1 NV12  X  SYS\n"
    assert (bonded(topology), bonded("GPU0 X PHB\n")) == (12, None)
    log = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 231.5\n"
    assert (average_bus_gb_per_s(log), average_bus_gb_per_s("")) == (231.5, None)
    points = [
        {"collective": "all_reduce", "devices": 2, "size_bytes": size, "times_us": [time_us] * 3}
        for size, time_us in ((1_000, 10.0), (64_000_000, 320.0))
    ]
    assert busbw_gb_per_s({"points": points}) == pytest.approx(200.0)  # 64 MB in 320 us
    assert busbw_gb_per_s({"points": []}) is None
