"""Which tests `--quick` selects, the `process` marker, and how the garbage collector is set while
tests run.

`--quick` (make check) leaves out files that import torch, tests marked `long` and tests that start
a process, except those marked `core`, which follow one path from a command to its report.

Tests that start a process are marked `process`, in end_to_end/ by their folder and elsewhere by
hand; a test without the marker fails when it starts one. Processes that another package starts
while it is imported do not count: cuda.pathfinder runs ldconfig when torch is imported.

Commands and torchruns that tests start are forks of a process that has imported torch
(tests/helpers/fork_server.py), but not those of tests marked `core` or `real_processes`.

The garbage collector is off during collection and never visits the 700,000 objects that collection
creates (torch, pandas, the tests), which live as long as the process. This saves a quarter of the
time.
"""

import contextlib
import gc
import os
import platform
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import settings

from tests.helpers.disturbed import Disturbed
from tests.helpers.fork_server import forks
from tests.helpers.paths import ROOT
from tests.helpers.torch_files import imports_torch

CHILD_START = str(ROOT / "tests" / "helpers" / "child_start")
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (CHILD_START, os.environ.get("PYTHONPATH")))
)
# the user's own cache stays as it is
os.environ["DPSCOPE_CACHE"] = str(ROOT / ".pytest_cache" / "dpscope")

STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.system"}
OURS = tuple(
    ROOT / folder
    for folder in ("profiling", "launch", "analysis", "tests", "docs", "examples", "benchmarks")
)
running: list[pytest.Item] = []
# a shared machine pauses for longer than any deadline
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# Children would inherit that a shell's job in the background ignores Ctrl-C, and one of nohup
# SIGHUP; a handler they do not inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # some packages complain at exit of what was never freed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="only tests without torch, processes and the marker long",
    )
    parser.addoption(
        "--repeat-alone", type=Path, metavar="FILE", help="write failed tests marked timed to FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption("repeat_alone")
    is_worker = hasattr(config, "workerinput")
    if file is not None and not is_worker:
        config.pluginmanager.register(Disturbed(file))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    tested = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if tested and config.getoption("quick") and imports_torch(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in filter(in_end_to_end, items):
        item.add_marker("process")
    # the longest files first: nothing long is left for the end
    items.sort(key=lambda item: not takes_long(item))
    if config.getoption("quick"):
        config.hook.pytest_deselected(items=[item for item in items if not is_quick(item)])
        items[:] = filter(is_quick, items)


def is_quick(item: pytest.Item) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    return "core" in marks or marks.isdisjoint({"process", "long"})


def takes_long(item: pytest.Item) -> bool:
    return in_end_to_end(item) or item.path.is_relative_to(ROOT / "tests" / "virtual_gpu")


def in_end_to_end(item: pytest.Item) -> bool:
    return item.path.is_relative_to(ROOT / "tests" / "end_to_end")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    running[:] = [item]
    hook = sys.excepthook
    marks = {mark.name for mark in item.iter_markers()}
    forked = "process" in marks and marks.isdisjoint({"core", "real_processes"})
    try:
        with forks() if forked else contextlib.nullcontext():
            return (yield)
    finally:
        running.clear()
        # each process group that torch begins puts its rank before what the hook shows
        sys.excepthook = hook


def refuse_processes(event: str, arguments: tuple[object, ...]) -> None:
    if (
        event in STARTS
        and running
        and running[0].get_closest_marker("process") is None
        and not importing_others()
    ):
        raise AssertionError(
            f"{running[0].nodeid} starts a process ({event}): mark it @pytest.mark.process"
        )


def importing_others() -> bool:
    """Whether this is within an import of a module that is not of this repository."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        caller, code = frame.f_back, frame.f_code
        imported = (
            caller is not None and caller.f_code.co_filename == "<frozen importlib._bootstrap>"
        )
        if (
            imported
            and code.co_name == "<module>"
            and not any(map(Path(code.co_filename).resolve().is_relative_to, OURS))
        ):
            return True
        frame = caller
    return False


platform.processor()  # asks a process once and remembers: so no test is the first to ask
sys.addaudithook(refuse_processes)
