"""Tests on a virtual GPU node: its libraries, built once, and a node for each test."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.virtual_gpu.build import build, find_wheels, why_not
from tests.virtual_gpu.node import Node, PlantedNode, planted

Plant = Callable[[Node], PlantedNode]
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


@pytest.fixture
def plant(libraries: Path, tmp_path: Path) -> Iterator[Plant]:
    """Plants a node; programs run on it with the environment of what is returned."""
    with ExitStack() as nodes:
        made = iter(range(1000))
        yield lambda node: nodes.enter_context(planted(node, libraries, tmp_path / f"node{next(made)}"))


@pytest.fixture
def random_values(request: pytest.FixtureRequest) -> random.Random:
    """What a test plants at random, from a seed that is printed where the test fails; VGPU_SEED repeats it."""
    seed = os.environ.get("VGPU_SEED") or str(random.SystemRandom().randrange(10**6))
    print(f"VGPU_SEED={seed}")  # noqa: T201
    return random.Random(f"{seed} {request.node.name}")
