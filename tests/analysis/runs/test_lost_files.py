"""Files of a run that were deleted or damaged since: what is left is shown, and what is missing has
its reason.
"""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dpscope.analysis.bundle.write import collect
from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.runs.run_data import load_run
from tests.helpers.paths import EXAMPLE_RUN

CELL = "ddp-d2-b8"
Change = Callable[[Path], object]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The example, two repeats of each of three cells."""
    path = tmp_path / "run"
    shutil.copytree(EXAMPLE_RUN, path)
    return path


def first_repeat(run: Path) -> Path:
    return run / "cells" / CELL / "repeat0"


def emptied(run: Path) -> None:
    for path in (first_repeat(run) / "traces").iterdir():
        path.write_bytes(b"")


def without_events(run: Path) -> None:
    for path in (first_repeat(run) / "traces").iterdir():
        path.write_bytes(gzip.compress(b"{}"))


def without_gloo(run: Path) -> None:
    """Of one rank's two: its communication is unknown then, not none."""
    path = first_repeat(run) / "traces" / "0_1.pt.trace.json.gz"
    trace = json.loads(gzip.decompress(path.read_bytes()))
    events = trace["traceEvents"]
    trace["traceEvents"] = [one for one in events if "gloo:" not in str(one.get("name"))]
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda run: shutil.rmtree(first_repeat(run) / "traces"),
            "repeat0: there is no trace; its communication",
        ),
        (
            lambda run: (first_repeat(run) / "traces" / "0_1.pt.trace.json.gz").unlink(),
            "expected traces of 2 ranks",
        ),
        (emptied, "is empty, not a trace"),
        (without_events, "is not a torch.profiler trace"),
        (without_gloo, "rank 1"),
    ],
)
def test_a_cell_without_its_traces_keeps_its_times(run: Path, change: Change, reason: str) -> None:
    before = compare(load_run(run)).table.set_index("cell")
    change(run)
    loaded = load_run(run)
    after = compare(loaded).table.set_index("cell")
    assert after["step_us"].equals(before["step_us"])
    assert after["communication_us"].isna()[CELL]
    assert reason in " ".join(
        one.message for one in loaded.cells[CELL].findings if one.code == "trace_incomplete"
    )
    others = [name for name in before.index if name != CELL]
    assert after.loc[others, "compute_us"].equals(before.loc[others, "compute_us"])


@pytest.mark.long
def test_damaged_counters_and_results_are_named_and_the_rest_is_read(run: Path) -> None:
    """The counters of one repeat and the result of the other end in the middle."""
    counters, result = (
        first_repeat(run) / "counters" / "0_0.json",
        run / "cells" / CELL / "repeat1" / "result.json",
    )
    for path in (counters, result):
        path.write_bytes(path.read_bytes()[:40])
    data = load_run(run).cells[CELL]
    assert {repeat for repeat, _ in data.ranks} == {0}
    of_counters, *_ = (one.message for one in data.findings if one.code == "counters_not_compared")
    (of_repeat,) = (one.message for one in data.findings if one.code == "repeats_missing")
    assert "counters/0_0.json is not a list" in of_counters
    assert "repeat 1 is left out" in of_repeat
    assert "result.json is not a CellResult" in of_repeat
    members = {one.name: one for one in collect(run, [], {}, most_bytes=2_000_000).members}
    damaged = f"cells/{CELL}/repeat1/result.json"
    assert (members[damaged].kind, members[damaged].content) == (
        "damaged files, whose content is left out",
        b"",
    )
