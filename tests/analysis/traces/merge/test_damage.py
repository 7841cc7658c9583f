"""Damaged traces and events that viewers would drop: left out and counted, or moved to a lane; the
file is always sound.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpscope.analysis.traces.merge.merge_ranks import merge_traces
from dpscope.analysis.traces.merge.tracks import lanes
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import cut_file, ddp_trace, write_trace
from tests.helpers.trace_rules import violations

HEAD = '{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}, "traceEvents": [\n'
SOUND = '{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 8, "ts": 100.5, "dur": 2.25, "args": {}}'
BAD = (
    SOUND.replace("100.5", "NaN"),
    SOUND.replace("2.25", "-2.25"),
    SOUND.replace(', "ts": 100.5', ""),
    SOUND.replace(', "dur": 2.25', ""),
    SOUND.replace('"ph": "X", ', ""),
    SOUND.replace('"name": "aten::add"', '"name": "aten::"add""'),
)


def trace_file(folder: Path, *events: str) -> Path:
    path = folder / "rank0.json"
    path.write_text(HEAD + ",\n".join(events) + "\n]}", encoding="latin-1")
    return path


def strict(path: Path) -> dict[str, Any]:
    """As a viewer reads it: no NaN, no Infinity, only UTF-8."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    loaded = json.loads(path.read_bytes().decode("utf-8"), parse_constant=refuse)
    assert violations(loaded) == []
    assert isinstance(loaded, dict)
    return loaded


def complete(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_bad_events_are_left_out_and_counted(tmp_path: Path) -> None:
    made = merge_traces([trace_file(tmp_path, SOUND, *BAD, SOUND)], tmp_path / "merged.json")
    assert made.ranks[0].events == 2
    assert made.ranks[0].left_out == len(BAD)
    found = [finding for finding in made.findings if finding.code == "events_damaged"]
    assert found[0].message.startswith("6 events")
    assert [(event["name"], event["dur"]) for event in complete(strict(made.path))] == [
        ("aten::add", 2.25)
    ] * 2


def test_an_event_that_partly_overlaps_gets_a_lane_and_takes_its_flow_along(tmp_path: Path) -> None:
    first = '{"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 7, "tid": 8, "ts": 10, "dur": 20}'
    second = first.replace('"ts": 10', '"ts": 25').replace("all_reduce", "broadcast")
    inside = first.replace('"ts": 10, "dur": 20', '"ts": 12, "dur": 18').replace(
        "all_reduce", "inside"
    )
    flow = '{"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 3, "pid": 7, "tid": 8, "ts": 25}'
    path = trace_file(tmp_path, first, second, inside, flow)
    made = merge_traces([path], tmp_path / "merged.json")
    assert made.ranks[0].own_lanes == 1
    trace = strict(made.path)
    names = {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    where = {
        (event["ph"], event["name"]): names[event["tid"]]
        for event in trace["traceEvents"]
        if event["ph"] in "Xs"
    }
    assert where["X", "gloo:all_reduce"] == where["X", "gloo:inside"] == "thread 8"
    assert where["X", "gloo:broadcast"] == where["s", "ac2g"] == "thread 8 (lane 2)"


@pytest.mark.filterwarnings("error")
def test_lanes_by_hand() -> None:
    # Track 0: [0, 10), in it [2, 10); [5, 12) leaves the first, so lane 1; [10, 11) follows the
    # first. Track 1 is its own.
    track = np.array([0, 0, 0, 0, 1])
    start = np.array([0.0, 2.0, 5.0, 10.0, 6.0])
    duration = np.array([10.0, 8.0, 7.0, 1.0, 20.0])
    assert lanes(track, start, duration).tolist() == [0, 0, 1, 0, 0]
    assert lanes(track, start + 1.7e15, duration).tolist() == [0, 0, 1, 0, 0]
    assert lanes(track[:0], start[:0], duration[:0]).tolist() == []
    longest = np.array([-9e15, 9e15, 9e15]), np.array([1.0, 9e15, 1.0])
    assert lanes(np.zeros(3, dtype=np.int64), *longest).tolist() == [0, 0, 0]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    good = write_trace(ddp_trace(0, 2).trace, tmp_path / "rank0.json.gz")
    bad = tmp_path / "rank1.json"
    bad.write_text("no trace")
    output = tmp_path / "merged.json"
    merge_traces([good], output)
    older = output.read_bytes()
    with pytest.raises(DpscopeError, match=r"rank1\.json is not a torch\.profiler trace"):
        merge_traces([good, bad], output)
    assert output.read_bytes() == older
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "merged.json",
        "rank0.json.gz",
        "rank1.json",
    ]


@pytest.mark.parametrize("value", ['{"a": 1}', "[1]", "null", "3", "true", "1e300", "{}"])
@pytest.mark.parametrize(("field", "sound"), [("cat", '"cpu_op"'), ("name", '"aten::add"')])
def test_categories_and_names_of_any_type(
    tmp_path: Path, field: str, sound: str, value: str
) -> None:
    odd = SOUND.replace(f'"{field}": {sound}', f'"{field}": {value}')
    assert odd != SOUND
    made = merge_traces([trace_file(tmp_path, SOUND, odd)], tmp_path / "merged.json")
    assert len(complete(strict(made.path))) == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "time", ["1e16", "1e18", "-1e18", "1e19", "1e300", "-1e300", "1.7976931348623157e308"]
)
@pytest.mark.parametrize("field", ["100.5", "2.25"])
def test_times_out_of_range_are_left_out_without_a_warning(
    tmp_path: Path, field: str, time: str
) -> None:
    made = merge_traces(
        [trace_file(tmp_path, SOUND, SOUND.replace(field, time))], tmp_path / "merged.json"
    )
    assert [(event["ts"], event["dur"]) for event in complete(strict(made.path))] == [(0.0, 2.25)]
    assert made.ranks[0].left_out == 1


def test_a_file_cut_short_is_merged_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = write_trace(ddp_trace(0, 2).trace, tmp_path / "rank0.json.gz")
    cut = cut_file(write_trace(ddp_trace(1, 2).trace, tmp_path / "rank1.json.gz"), 0.6)
    made = merge_traces([whole, cut], tmp_path / "merged.json")
    assert {"trace_cut_short"} <= {finding.code for finding in made.findings}
    assert 0 < made.ranks[1].events < made.ranks[0].events
    strict(made.path)


def test_times_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    # No float holds 1711964646123456.789: differences must still be exact.
    starts = ("1711964646123456.789", "1711964646123456.790", "1711964646123999.001")
    path = trace_file(
        tmp_path, *(SOUND.replace("100.5", start).replace("2.25", "0.001") for start in starts)
    )
    trace = strict(merge_traces([path], tmp_path / "merged.json").path)
    assert [event["ts"] for event in complete(trace)] == [0.0, 0.001, 542.212]
    assert trace["baseTimeNanoseconds"] == 1711964646123456789
