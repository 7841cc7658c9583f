"""The tests on GPUs, without one: what they conclude from recorded and generated data, their
limits, and how they are skipped.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.launch.calibration.settings import calibration_settings
from dpscope.launch.contents import app
from dpscope.launch.jobs import devices
from dpscope.launch.jobs.job_outcome import read_failures
from dpscope.launch.jobs.torchrun import Job
from dpscope.profiling.instruments.step_timer import BatchArrived
from dpscope.profiling.records.calibration import (
    CalibratedChoices,
    Calibration,
    CalibrationPoint,
    Choice,
    NcclLog,
)
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.run import Cell, DdpCounters
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import JobFolder, RunFolder
from tests.generated_traces.generator import dp_trace
from tests.gpu import ranks, support
from tests.gpu.conftest import ONE_GPU_S, SEVERAL_S, pytest_runtest_logreport
from tests.helpers import gpu_checks
from tests.helpers.gpu_bench import CALIBRATION, LATE_RANK, RUNS, Bench, late_ranks
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.paths import DATA, ROOT

A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"


def finding(code: str, severity: str = "warning") -> dict[str, str]:
    return {"code": code, "severity": severity, "message": code}


def test_what_is_a_failure_and_what_a_healthy_gpus_warning() -> None:
    """The real A100 trace is idle for 76% of its steps, as small batches make a GPU."""
    found = [msgspec.to_builtins(one) for one in analyze_traces([A100]).findings]
    assert "device_idle" in {one["code"] for one in found}
    healthy = (
        "tracer_cost",
        "outliers",
        "repeats_differ",
        "no_overlap",
        "drift",
        "launch_bound",
        "wide_spread",
    )
    cells = [{"cell": "single-d1-b512", "status": "ok"}]
    assert gpu_checks.problems({"cells": cells, "findings": [*found, *map(finding, healthy)]}) == []
    wrong = [
        "events_of_no_step",
        "no_kernels",
        "trace_incomplete",
        "variant_not_kept",
        "counters_disagree",
    ]
    all_of_them = [finding("drift"), *map(finding, wrong), finding("cell_failed", "error")]
    cells.append({"cell": "b", "status": "crashed"})
    expected = ["b: crashed", *(f"{code}: {code}" for code in (*wrong, "cell_failed"))]
    assert sorted(gpu_checks.problems({"cells": cells, "findings": all_of_them})) == sorted(
        expected
    )


STEP = {"cell": "c", "repeat": 0, "rank": 0, "partial_window": False, "exposed_us": 0.0}


def test_busy_time_and_launches_by_hand() -> None:
    """Two steps of 100 us up to 300 us: kernels 110-160, 150-170 and 210-290 are busy for 60 + 80
    us; one before counts as 5.
    """
    spans = [(90.0, 15.0), (110.0, 50.0), (150.0, 20.0), (210.0, 80.0), (250.0, 50.0)]
    events: list[dict[str, Any]] = [
        {"cat": "kernel", "ts": start, "dur": length} for start, length in spans
    ]
    steps = [{**STEP, "step_us": 100.0, "compute_us": busy} for busy in (65.0, 90.0)]
    assert gpu_checks.busy_difference({"steps": steps}, "c", events) == 0.0
    off = [{**steps[0], "compute_us": 68.1}, steps[1]]  # 3.1 of 155
    assert gpu_checks.busy_difference({"steps": off}, "c", events) == pytest.approx(0.02)
    assert gpu_checks.busy_difference({"steps": steps}, "c", []) is None
    assert gpu_checks.union_us([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]) == 4.0
    step = {**STEP, "step_us": 100.0, "compute_us": 60.0, "exposed_us": 10.0}
    differences = [
        gpu_checks.step_difference({"steps": [{**step, "idle_us": idle}]}, "c")
        for idle in (30.0, 31.0, None)
    ]
    assert differences == [0.0, pytest.approx(0.01), None]
    kernels: list[dict[str, Any]] = [
        {"cat": "kernel", "args": {"correlation": number}} for number in (1, 2, 3, 4)
    ]
    calls: list[dict[str, Any]] = [
        {"cat": "cuda_runtime", "args": {"correlation": number}} for number in (1, 2, 3)
    ]
    shares = [
        gpu_checks.launched_share(one)
        for one in ([*kernels, *calls], calls, gpu_checks.trace_events(A100))
    ]
    assert shares == [0.75, None, 1.0]


def two_ranks(**first: Any) -> dict[str, Any]:
    """Two ranks, a whole step 3 each of buckets of 600 and 400 bytes; `first` changes rank 0's
    first bucket.
    """
    rows = [
        {
            "cell": "c", "repeat": 0, "rank": rank, "step": 3, "kind": "all_reduce", "bytes": size, "transfer_us": 5.0,
            "device": 0, "sequence": 7, "group_size": 2,
        }
        for rank in (0, 1)
        for size in (600, 400)
    ]  # fmt: skip
    rows[0] |= first
    steps = [
        {**STEP, "rank": rank, "step": number, "partial_window": number == 2}
        for rank in (0, 1)
        for number in (2, 3)
    ]
    return {"steps": steps, "collectives": rows}


def rates(cell: str, kind: str, busbw: float | None, **others: Any) -> dict[str, Any]:
    row = {"bytes": 1 << 20, "group_size": 8, "busbw_gb_per_s": busbw}
    return {"cell": cell, "kind": kind, **row, **others}


def test_rates_that_no_machine_has() -> None:
    """Links of 100 GB/s; a switch's all-reduce of 8 ranks may be 2 x 7 / 9 = 1.56 times as fast."""
    cells = [
        {"cell": "a", "mfu": 0.99, "link_gb_per_s": 100.0},
        {"cell": "b", "mfu": 1.2, "link_gb_per_s": 100.0},
        {"cell": "c", "mfu": None, "link_gb_per_s": None},
    ]
    possible = [
        rates("a", "all_gather", 104.0), rates("a", "all_reduce", 155.0), rates("b", "all_gather", 300.0, bytes=4096),
        *(rates("b", "reduce_scatter", rate) for rate in (90.0, 95.0, 300.0)), rates("c", "all_gather", 1e6),
        rates("a", "all_reduce", None),
    ]  # fmt: skip
    only_flops = ["b: an MFU of 1.20"]
    assert gpu_checks.impossible_rates({"cells": cells, "collectives": possible}) == only_flops
    too_fast = [rates("a", "reduce_scatter", 120.0), rates("b", "all_reduce", 170.0)]
    assert gpu_checks.impossible_rates({"cells": cells, "collectives": too_fast}) == [
        *only_flops,
        "a: reduce_scatter at 120 GB/s, over a link of 100 GB/s",
        "b: all_reduce at 170 GB/s, over a link of 100 GB/s",
    ]


def test_calibrated_rates_and_choices() -> None:
    """On two devices, over a link of 1 GB/s: 4 MB all-gathered in 2 ms carry 2 MB; the log has half
    of another's size.
    """
    link = LinkRate(1.0, "a link", "here")
    points = [
        CalibrationPoint("all_gather", 2, 4_000_000, 500_000, "float32", (2000.0,)),
        CalibrationPoint("all_reduce", 2, 4_000_000, 1_000_000, "float32", (2000.0,)),
    ]
    gathered = Choice("all_gather", 2_000_000, "ring", "simple", calls=1)
    reduced = Choice("all_reduce", 4_000_000, "ring", "simple", calls=1)
    log = CalibratedChoices(2, 1, NcclLog("NCCL 2.30.7", ("a",), (gathered, reduced)))
    calibration = Calibration(
        1, "", "", "measured", None, None, None, (), tuple(points), links={2: link}, nccl=(log,)
    )
    assert gpu_checks.calibration_problems(calibration) == [
        "all_reduce of 4000000 bytes at 2 GB/s, over a link",
        "NCCL's log has no all_gather of 4000000 bytes",
    ]


def test_collectives_that_are_not_matched() -> None:
    """Of whole steps, those between ranks; a broadcast waits for its root alone."""
    analysis = two_ranks(transfer_us=None)
    unmatched = analysis["collectives"][0]
    others: tuple[dict[str, Any], ...] = ({"kind": "broadcast"}, {"step": 2}, {"group_size": 1})
    analysis["collectives"] += [{**unmatched, **other} for other in others]
    assert gpu_checks.unmatched(analysis) == {"c": 1}
    assert gpu_checks.unmatched(two_ranks()) == {}


def test_warnings_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(
        "x.py:3: UserWarning: a\nx.py:4: UserWarning: b\nhost:1:1 [0] NCCL WARN c\nWARNING: no class\n"
    )
    found = [finding("drift"), finding("drift"), finding("cell_failed", "error")]
    counted = gpu_checks.counted_warnings({"findings": found}, [log])
    assert counted == {"drift": 2, "UserWarning": 2, "WARN": 1}


@pytest.mark.parametrize(
    ("first", "begins"),
    [
        ({}, []),
        ({"bytes": 500}, ["all-reduces move [900, 1000] bytes a step", "buckets of"]),
        ({"transfer_us": None}, ["1 of 4 all-reduces are not matched"]),
        ({"sequence": None}, ["1 of 4 all-reduces have no sequence number"]),
        ({"device": None}, ["not all all-reduces are on a device"]),
    ],
)
def test_all_reduces_of_two_ranks(first: dict[str, Any], begins: list[str]) -> None:
    counters = (DdpCounters(4, 0.0, 0.0, 0.0, 0.0, (600, 400)),)
    found = gpu_checks.ddp_problems(two_ranks(**first), "c", 1000, counters)
    assert [text.startswith(start) for text, start in zip(found, begins, strict=True)] == [
        True
    ] * len(begins)


def test_all_reduces_of_a_real_run(tmp_path: Path) -> None:
    """On the CPU: gradients of 268 parameters, gloo, DDP's own counters."""
    run = tmp_path / "run"
    shutil.copytree(DATA / "run_tiny", run)
    bench = Bench(tmp_path, 0)
    cell = Cell(strategy="ddp", devices=2, batch_size=8)
    measured = RunFolder(run).repeat(cell, 0)
    (first, *_) = measured.ranks()
    counters = measured.counters(first.node, first.rank)
    analysis = bench.analysis(run)
    gradients = first.model.gradient_bytes
    assert gpu_checks.ddp_problems(analysis, cell.name, gradients, counters, on_device=False) == []
    assert (
        len(gpu_checks.ddp_problems(analysis, cell.name, gradients + 4, counters, on_device=False))
        == 1
    )
    assert set(gpu_checks.hidden_shares(analysis)) == {"ddp-d2-b8", "dp-host-d2-b8"}


def test_data_parallel_traffic_per_device() -> None:
    """The generator's DataParallel: 2 broadcasts and 2 reduces a step on each of two devices,
    outputs from 1 to 0.
    """
    events = dp_trace(2, "nccl", "device").trace["traceEvents"]
    kernels = {
        kind: gpu_checks.nccl_kernels(events, kind) for kind in ("Broadcast", "Reduce", "AllReduce")
    }
    assert kernels["AllReduce"] == Counter()
    assert kernels["Broadcast"][0] == kernels["Broadcast"][1] > 0
    assert kernels["Reduce"][0] == kernels["Reduce"][1] > 0
    copies = gpu_checks.peer_copies(events)
    assert set(copies) == {(0, 1), (1, 0)}
    outputs = [
        one["args"]["bytes"]
        for one in events
        if one["name"].startswith("Memcpy PtoP") and one["pid"] == 1
    ]
    assert copies[1, 0] == sum(outputs)


def matmuls(side: int, products: int) -> Callable[[BatchArrived], int]:
    matrix = torch.ones(side, side)

    def step(batch_arrived: BatchArrived) -> int:
        batch_arrived()
        for _ in range(products):
            torch.mm(matrix, matrix)
        return 1

    return step


def test_step_times_against_the_wall_clock_of_this_cpu() -> None:
    """A clock that is off is seen: half of the time passes outside of the steps."""
    for side, products in ((256, 20), (8, 400)):
        assert (
            gpu_checks.events_over_wall(
                matmuls(side, products), 20, torch.device("cpu"), lambda: None
            )
            <= 0.02
        )
    assert (
        gpu_checks.events_over_wall(matmuls(8, 1), 5, torch.device("cpu"), lambda: time.sleep(0.05))
        > 0.5
    )


def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", uuid="aaaa", major=9, minor=0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "present_gpus", lambda: devices.PresentGpus(2, "NVML", "570.86"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


def test_every_run_and_calibration_is_planned_on_two_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No option is refused, and every cell is measured."""
    monkeypatch.chdir(ROOT)
    two_gpus(monkeypatch)
    for name in RUNS:
        command = Bench(tmp_path, 2).run_command(name, *(LATE_RANK if name == "late" else ()))
        ended = CliRunner().invoke(app, [*command, "--dry-run"])
        assert ended.exit_code == 0, ended.exception or ended.output
        assert "skipped" not in ended.output
        batches = {"single": ("b32", "b512"), "late": ("b32",)}.get(name, ("b128", "b512"))
        assert any(batch in ended.output for batch in batches)
    options: dict[str, Any] = dict(CALIBRATION)
    settings = calibration_settings(device="cuda", **options)
    assert (settings.devices, settings.sizes, settings.collectives) == (
        (2,),
        (64 << 20,),
        ("all_reduce",),
    )


def marks() -> list[dict[str, Any]]:
    """Of every test in order, with what parameters multiply."""
    modules = [
        importlib.import_module(f"tests.gpu.{name}")
        for name in ("test_on_gpus", "test_on_several_gpus")
    ]
    functions = [
        one for module in modules for name, one in vars(module).items() if name.startswith("test_")
    ]
    found = []
    for function in functions:
        (needed,) = (one.kwargs for one in function.pytestmark if one.name == "gpu")
        count = next(
            (len(one.args[1]) for one in function.pytestmark if one.name == "parametrize"), 1
        )
        found.append({"name": function.__name__, "least": 1, **needed, "count": count})
    return found


def test_tests_fit_into_their_time() -> None:
    every = marks()
    assert sum(one["expected_s"] * one["count"] for one in every if one["least"] == 1) <= ONE_GPU_S
    assert sum(one["expected_s"] * one["count"] for one in every) <= SEVERAL_S
    assert all(one["expected_s"] < one["limit_s"] <= 300 for one in every)


def test_verdicts_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that overruns later takes nothing of what was written."""
    monkeypatch.setenv("DPSCOPE_GPU_OUT", str(tmp_path / "new"))
    report: dict[str, Any] = {
        "when": "call",
        "passed": True,
        "outcome": "passed",
        "duration": 1.25,
        "longrepr": None,
    }
    for number in (1, 2):
        made: Any = SimpleNamespace(
            nodeid=f"tests/gpu/a.py::test_{number}", user_properties=[("x", number)], **report
        )
        pytest_runtest_logreport(made)
        lines = [
            json.loads(line)
            for line in (tmp_path / "new" / "verdicts.jsonl").read_text().splitlines()
        ]
        assert [line["test"] for line in lines] == [f"test_{one}" for one in range(1, number + 1)]
        assert lines[-1]["values"] == {"x": number}


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_without_a_gpu_every_test_is_skipped_with_its_reason(tmp_path: Path) -> None:
    """As `make gpu` runs them: exit status 0, JUnit, verdicts and the support bundle are there."""
    makefile = (ROOT / "Makefile").read_text()
    assert "pytest tests/gpu -vv --junit-xml=$(GPU_OUT)/junit.xml" in makefile
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/gpu",
        "-vv",
        f"--junit-xml={tmp_path / 'junit.xml'}",
    ]
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "DPSCOPE_GPU_OUT": str(tmp_path),
        "PYTEST_ADDOPTS": "",
    }
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stdout
    cases = list(ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase"))
    assert len(cases) == sum(one["count"] for one in marks())
    reasons = {skipped.get("message") for case in cases for skipped in case.iter("skipped")}
    assert reasons == {"no GPU that torch can use"}
    lines = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["skipped"] * len(cases)
    assert all("no GPU that torch can use" in line["reason"] for line in lines)
    with zipfile.ZipFile(support.pack(tmp_path)) as bundle:
        assert bundle.namelist() == ["verdicts.jsonl"]
    shutil.copytree(DATA / "run_tiny", tmp_path / "single")
    (tmp_path / "doctor.txt").write_text("torch ok\n")
    with zipfile.ZipFile(support.pack(tmp_path)) as bundle:
        assert sorted(bundle.namelist()) == ["doctor.txt", "single-bundle.zip", "verdicts.jsonl"]


def test_jobs_of_two_processes(tmp_path: Path) -> None:
    """On the CPU: all-reduces are timed; a rank without memory ends the job; a late rank is
    named.
    """
    statuses, folders = {}, {}
    for what in ("all_reduce", "memory"):
        (tmp_path / what).mkdir()
        folders[what] = JobFolder(tmp_path / what)
        program = ("-m", "tests.gpu.ranks", str(tmp_path / what), what, "cpu", str(1 << 20))
        job = Job(name=what, program=program, folder=folders[what], threads=1, processes=2)
        with light_jobs():
            ended = subprocess.run(
                job.command, cwd=ROOT, capture_output=True, timeout=120, check=False
            )
        statuses[what] = ended.returncode
    assert statuses["all_reduce"] == 0
    assert read_json(folders["all_reduce"].result_path, ranks.Timed).call_us > 0
    assert statuses["memory"] != 0
    assert "out_of_memory" in {note.kind for note in read_failures(folders["memory"].path)}
    with light_jobs():
        named = late_ranks(
            Bench(tmp_path, 0, kind="cpu"),
            "--model",
            "tests.gpu.models:late_tiny",
            "--batch-size",
            "4",
        )
    assert any("rank 1" in message for message in named), named


def test_the_plain_script(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.plain_script", "cpu", "2", "2"]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(ended.stdout)["step_us"] > 0
