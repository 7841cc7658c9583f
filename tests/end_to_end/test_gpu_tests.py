"""The tests on GPUs, without one: what they conclude from recorded and generated data, their
limits, and how they are skipped.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dpscope.launch.calibration.settings import calibration_settings
from dpscope.launch.contents import app
from dpscope.launch.jobs import devices
from dpscope.profiling.records.run import DdpCounters
from tests.gpu import support
from tests.helpers import gpu_checks
from tests.helpers.gpu_bench import CALIBRATION, LATE_RANK, RUNS, Bench
from tests.helpers.paths import DATA, ROOT

A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"


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
