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
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.runs.run_data import load_run
from tests.helpers import examples
from tests.helpers.known import known
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


def cut_short(run: Path) -> None:
    path = first_repeat(run) / "traces" / "0_1.pt.trace.json.gz"
    path.write_bytes(path.read_bytes()[:3000])


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "label", "reason", "copied"),
    [
        (
            lambda run: shutil.rmtree(first_repeat(run) / "traces"),
            "NO TRACE",
            "rank 0 has no trace in repeat 0",
            "/0_0.pt.trace.json.gz",
        ),
        (
            lambda run: (first_repeat(run) / "traces" / "0_1.pt.trace.json.gz").unlink(),
            "NO TRACE",
            "rank 1 has no trace in repeat 0",
            "/0_1.pt.trace.json.gz",
        ),
        (emptied, "NOT READ", "repeat 0: traces/0_0.pt.trace.json.gz is empty, not a trace", ""),
        (without_events, "NOT READ", "is not a torch.profiler trace", ""),
        (cut_short, "CUT", "rank 1's trace of repeat 0 is cut short", "/0_1.pt.trace.json.gz"),
    ],
)
def test_a_repeat_without_whole_traces_is_left_out_of_traced_values(
    run: Path, change: Change, label: str, reason: str, copied: str
) -> None:
    """The other repeat gives them; one error, one limit and one action name the lost file."""
    change(run)
    loaded = load_run(run)
    compared = compare(loaded)
    row = compared.rows[CELL]
    whole = examples.loaded().cells[CELL].critical_windows
    second = whole.take(whole["repeat"] == 1)
    for part in ("communication_us", "exposed_wait_us", "compute_us", "idle_us"):
        assert row.number(part) == pytest.approx(second.mean(part))
    assert row.step_us == examples.reported().comparison.rows[CELL].step_us
    (error,) = (one for one in conclusions(loaded, compared) if one.severity == "error")
    assert error.code == "trace_incomplete"
    assert reason in error.message
    verdict = run_verdict(loaded, compared)
    limit = verdict.limits[0]
    assert limit.label == label
    assert reason in limit.text
    assert limit.text.endswith("traced values are from 1 of 2 repeats")
    first = known(verdict.fact("next")).lines[0]
    assert f"Copy cells/{CELL}/repeat0/traces{copied} again, or delete" in first


@pytest.mark.long
def test_a_cell_of_which_every_repeat_is_left_out_keeps_its_times_and_has_the_reason(
    run: Path,
) -> None:
    before = examples.reported().comparison.rows[CELL]
    for trace in run.glob(f"cells/{CELL}/*/traces/0_1.pt.trace.json.gz"):
        trace.write_bytes(trace.read_bytes()[:3000])
    loaded = load_run(run)
    compared = compare(loaded)
    row = compared.rows[CELL]
    assert row.step_us == before.step_us
    for column in (
        "traced_step_us",
        "communication_us",
        "exposed_us",
        "exposed_wait_us",
        "idle_us",
    ):
        assert row.number(column) is None
        assert row.reasons[column].startswith("rank 1's trace of repeat 0 is cut short")
    (error,) = (one for one in conclusions(loaded, compared) if one.severity == "error")
    assert error.message.endswith("traced values are from 0 of 2 repeats")
    verdict = run_verdict(loaded, compared)
    (cost,) = known(verdict.fact("cost")).lines
    assert cost.startswith("not measured: rank 1's trace of repeat 0")
    assert known(verdict.fact("next")).lines[0].removeprefix("1. ").startswith("Copy cells/")


@pytest.mark.long
def test_communication_that_the_tracer_lost_is_unknown_not_none(run: Path) -> None:
    before = examples.reported().comparison.table.set_index("cell")
    without_gloo(run)
    loaded = load_run(run)
    after = compare(loaded).table.set_index("cell")
    assert after["step_us"].equals(before["step_us"])
    assert after["communication_us"].isna()[CELL]
    lost = [one for one in loaded.cells[CELL].findings if one.code == "trace_incomplete"]
    assert "rank 1" in " ".join(one.message for one in lost)
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
