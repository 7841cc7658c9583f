"""Tests on a virtual GPU node: its libraries, built once, and a node for each test."""

import os
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.virtual_gpu.build import build, find_wheels, why_not
from tests.virtual_gpu.node import Node, PlantedNode, planted

Plant = Callable[[Node], PlantedNode]
SEED = os.environ.get("VGPU_SEED") or str(random.SystemRandom().randrange(10**6))
_HERE = ROOT / "tests" / "virtual_gpu"
_MARKERS = ("virtual_gpu", "process", "real_processes")  # a fork has loaded the real libraries


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            for marker in _MARKERS:
                item.add_marker(marker)


@pytest.fixture(scope="session")
def libraries() -> Path:
    wheels = find_wheels()
    reason = why_not(wheels)
    if reason or wheels is None:
        pytest.skip(reason or "")
    return build(wheels)


@pytest.fixture(scope="module")
def plant(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    """Plants a node for the tests of a module; its `run` starts programs on it."""
    with ExitStack() as nodes:
        yield lambda node: nodes.enter_context(
            planted(node, libraries, tmp_path_factory.mktemp("node"))
        )


@pytest.fixture(scope="module")
def random_values(request: pytest.FixtureRequest) -> random.Random:
    """What a module's tests plant at random."""
    return random.Random(f"{SEED} {request.module.__name__}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and item.path.is_relative_to(_HERE):
        report.sections.append(("planted at random", f"VGPU_SEED={SEED} repeats it"))
    return report
