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

from dpscope.launch.contents import app
from dpscope.launch.jobs import devices
from dpscope.launch.measuring.calibration_settings import calibration_settings
from tests.gpu import support
from tests.helpers.gpu_bench import CALIBRATION, LATE_RANK, RUNS, Bench
from tests.helpers.paths import DATA, ROOT


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
