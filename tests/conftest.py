"""Tests that start a process are marked `process`: those in end_to_end/ by their place, others by hand; others fail."""

import platform
import sys
from collections.abc import Iterator

import pytest

from tests.helpers.paths import ROOT

STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.system"}
running: list[pytest.Item] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(ROOT / "tests" / "end_to_end"):
            item.add_marker("process")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    running[:] = [item]
    try:
        return (yield)
    finally:
        running.clear()


def refuse_processes(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTS and running and running[0].get_closest_marker("process") is None:
        raise AssertionError(f"{running[0].nodeid} starts a process ({event}): mark it @pytest.mark.process")


platform.processor()  # asks a process once and remembers: so no test is the first to ask
sys.addaudithook(refuse_processes)
