"""Tests on GPUs: which are run here, each with its limit; verdicts are written as they come. `make
gpu` runs them.

`@pytest.mark.gpu(least=2, expected_s=30, limit_s=100)`: the GPUs it needs, how long it usually
takes, and its time limit.
"""

import json
import os
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from dpscope.launch.jobs.devices import resolve_devices
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.gpu_bench import PATIENCE, Bench
from tests.helpers.gpu_checks import why_skipped
from tests.helpers.paths import ROOT

OUT_VARIABLE = "DPSCOPE_GPU_OUT"  # the folder of runs, verdicts and records; set by `make gpu`
ONE_GPU_S, SEVERAL_S = 600.0, 2100.0  # for all tests on one GPU, on several
_began_s = time.monotonic()


@cache
def usable_gpus() -> int:
    """GPUs that torch can use; ends the tests if there are GPUs that it cannot."""
    try:
        return resolve_devices("auto").count or 0
    except DpscopeError as error:
        pytest.exit(str(error), returncode=2)


def needs(item: pytest.Item) -> Mapping[str, Any]:
    marker = item.get_closest_marker("gpu")
    assert marker is not None, f"{item.nodeid} has no mark gpu(expected_s=..., limit_s=...)"
    return {"least": 1, **marker.kwargs}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(ROOT / "tests" / "gpu"):
            item.add_marker("process")
            item.add_marker(pytest.mark.timeout(PATIENCE * needs(item)["limit_s"]))


def pytest_runtest_setup(item: pytest.Item) -> None:
    wanted, gpus = needs(item), usable_gpus()
    left_s = PATIENCE * (SEVERAL_S if gpus > 1 else ONE_GPU_S) - (time.monotonic() - _began_s)
    if reason := why_skipped(gpus, wanted["least"], wanted["expected_s"], left_s):
        pytest.skip(reason)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A line of verdicts.jsonl for every test, as soon as it is over."""
    folder = os.environ.get(OUT_VARIABLE)
    if not folder or "tests/gpu" not in report.nodeid or (report.when != "call" and report.passed):
        return
    reason = (
        report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
    )
    line = {
        "test": report.nodeid.partition("::")[2],
        "outcome": report.outcome,
        "duration_s": round(report.duration, 1),
        "values": dict(report.user_properties),
        "reason": reason[-2000:],
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / "verdicts.jsonl", "a") as verdicts:
        verdicts.write(json.dumps(line) + "\n")


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs find the modules of tests.gpu from here."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = os.environ.get(OUT_VARIABLE)
    path = Path(folder).absolute() if folder else tmp_path_factory.mktemp("gpu")
    path.mkdir(parents=True, exist_ok=True)
    virtual = usable_gpus() > 0 and "dpscope virtual GPU" in torch.cuda.get_device_name(0)
    return Bench(path, usable_gpus(), virtual=virtual)


@pytest.fixture(scope="session")
def single_run(bench: Bench) -> Path:
    return bench.run("single")


@pytest.fixture(scope="session")
def ddp_run(bench: Bench) -> Path:
    return bench.run("ddp")


@pytest.fixture(scope="session")
def all_run(bench: Bench) -> Path:
    return bench.run("all")
