"""Merged traces: sound for Perfetto, nothing lost, clocks where they belong, the same measures read
from them.
"""

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpscope.analysis.traces.merge.merge_ranks import MergedTrace, merge_traces
from dpscope.analysis.traces.merge.tracks import lanes
from tests.generated_traces.generator import DdpOptions, ddp_trace, dp_trace, relabel, write_trace
from tests.helpers.paths import EXAMPLE_RUN, ROOT
from tests.helpers.trace_rules import violations

V100 = sorted((ROOT / "tests/data/v100x8_ddp_dlrm").glob("*.json.gz"))
A100 = [ROOT / "tests/data/a100x2_ddp_resnet50_rank0.json.gz"]
GLOO = sorted((EXAMPLE_RUN / "cells/ddp-d2-b8/repeat0/traces").glob("*.json.gz"))
Event = dict[str, Any]


Merged = tuple[dict[str, Any], MergedTrace]


def load(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def merged(files: Sequence[Path], folder: Path) -> Merged:
    made = merge_traces(files, folder / "merged.json.gz")
    trace = load(made.path)
    assert violations(trace) == []
    return trace, made


@pytest.fixture(scope="module")
def v100(tmp_path_factory: pytest.TempPathFactory) -> Merged:
    """The eight V100 ranks merged, named in the wrong order."""
    return merged(list(reversed(V100)), tmp_path_factory.mktemp("v100"))


def written(folder: Path, *traces: dict[str, Any]) -> list[Path]:
    return [write_trace(trace, folder / f"rank{rank}.json.gz") for rank, trace in enumerate(traces)]


def processes(trace: dict[str, Any]) -> dict[int, str]:
    return {
        one["pid"]: one["args"]["name"]
        for one in trace["traceEvents"]
        if one["name"] == "process_name"
    }


def in_order(trace: dict[str, Any]) -> list[str]:
    """The processes' names as a viewer sorts them."""
    order = {
        one["pid"]: one["args"]["sort_index"]
        for one in trace["traceEvents"]
        if one["name"] == "process_sort_index"
    }
    names = processes(trace)
    return [names[process] for process in sorted(order, key=order.__getitem__)]


def test_each_rank_stands_under_the_one_before_with_its_host_on_top(v100: Merged) -> None:
    parts = [("CPU", f"GPU {rank}", "profiler") for rank in range(8)]
    assert in_order(v100[0]) == [f"rank {rank} {x}" for rank, of in enumerate(parts) for x in of]


def added(trace: dict[str, Any], track: str) -> dict[str, list[Event]]:
    """The events of an added track, its further lanes among them, by the name of its process."""
    events, names = trace["traceEvents"], processes(trace)
    named = [event for event in events if event["name"] == "thread_name"]
    threads = {event["tid"] for event in named if event["args"]["name"].startswith(track)}
    found: dict[str, list[Event]] = {}
    for event in events:
        if event["ph"] == "X" and event["tid"] in threads and event["cat"] == "dpscope":
            found.setdefault(names[event["pid"]], []).append(event)
    return found


def contents(events: Sequence[Event]) -> Counter[tuple[object, ...]]:
    """What no merge may change of events: phase, category, name, duration and arguments that are no
    ids.
    """
    ids = {"correlation", "External id", "wait_on_cuda_event_record_corr_id"}
    found = Counter[tuple[object, ...]]()
    for event in events:
        if event["ph"] != "M" and event.get("cat") != "dpscope":
            args = {key: value for key, value in event.get("args", {}).items() if key not in ids}
            what = (
                event["ph"],
                event.get("cat"),
                event["name"],
                round(float(event.get("dur", 0)), 3),
            )
            found[*what, json.dumps(args, sort_keys=True)] += 1
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # two ranks of eight, whose collectives have no counterpart on the others
        pytest.param(V100[:2], {"collectives_unmatched", "clocks_as_recorded"}, id="v100"),
        pytest.param(A100, set(), id="a100"),
        pytest.param(GLOO, set(), id="gloo"),
    ],
)
def test_nothing_is_lost(files: list[Path], expected: set[str], tmp_path: Path) -> None:
    trace, made = merged(files, tmp_path)
    originals = [load(file)["traceEvents"] for file in files]
    assert contents(trace["traceEvents"]) == sum(
        (contents(events) for events in originals), Counter()
    )
    assert [rank.events for rank in made.ranks] == [
        sum(event["ph"] != "M" for event in events) for events in originals
    ]
    assert {finding.code for finding in made.findings} == expected
    for position, events in enumerate(originals):
        of_rank = [
            event for event in trace["traceEvents"] if event.get("id", -1) // 10**10 == position
        ]
        for phase in "sf":  # each with the rank's position before its digits
            ids = sorted((event["cat"], event["id"]) for event in events if event["ph"] == phase)
            assert (
                sorted((one["cat"], one["id"] % 10**10) for one in of_rank if one["ph"] == phase)
                == ids
            )


def test_collectives_show_size_and_bandwidth(v100: Merged) -> None:
    trace, _ = v100
    tracks = added(trace, "communication")
    assert sorted(tracks) == [f"rank {rank} GPU {rank}" for rank in range(8)]
    largest = [event for event in tracks["rank 0 GPU 0"] if event["name"] == "all_reduce 1.58 MB"]
    assert len(largest) == 1
    args = largest[0]["args"]
    # 394,241 floats; the shortest of the eight lasts 86 us: 1,576,964 / 86 / 1e3 = 18.337 GB/s,
    # times 2 x 7/8 = 32.089.
    assert (args["bytes"], args["transfer_us"], args["group_size"], args["step"]) == (
        1576964,
        86.0,
        8,
        10,
    )
    assert args["busbw_gb_per_s"] == pytest.approx(32.089, abs=5e-4)
    assert largest[0]["dur"] == args["transfer_us"] + args["wait_us"]


def test_ends_of_one_collective_agree_across_ranks(v100: Merged) -> None:
    trace, made = v100
    of_ranks = [events for _, events in sorted(added(trace, "communication").items())]
    ends = np.array([[event["ts"] + event["dur"] for event in events] for events in of_ranks])
    assert ends.shape == (8, 8)
    assert np.ptp(ends, axis=0).max() <= 7.0  # what tests/data/README.md found, without dpscope
    worst = [rank.clock.worst_us for rank in made.ranks[1:]]
    assert max(value for value in worst if value is not None) == np.abs(ends - ends[0]).max()


def test_a_shifted_clock_is_found_to_the_nanosecond(tmp_path: Path) -> None:
    # Rank 1 begins its backward 500 us late, and its clock is 1.234567891 s ahead.
    shift_us = 1_234_567.891
    late = relabel(ddp_trace(1, 2, DdpOptions(straggler=1)).trace, time_shift_us=shift_us)
    files = written(tmp_path, ddp_trace(0, 2, DdpOptions(straggler=1)).trace, late)
    trace, made = merged(files, tmp_path)
    clock = made.ranks[1].clock
    assert clock.moved_us == pytest.approx(-shift_us, abs=1e-6)
    assert (clock.residual_us, clock.worst_us) == (0.0, 0.0)
    # Three steps of three all-reduces each, of which all ends agree.
    assert clock.collectives == 9
    first = {name: events[0] for name, events in added(trace, "wait").items()}
    # Rank 0's first bucket runs from 490 to 1050 and rank 1's from 990: 500 us of waiting, 60 of
    # transfer.
    assert list(first) == ["rank 0 GPU 0"]
    assert first["rank 0 GPU 0"]["name"] == "wait all_reduce 6.00 MB"
    assert first["rank 0 GPU 0"]["dur"] == 500.0
    for events in added(trace, "transfer").values():
        assert events[0]["dur"] == 60.0
        assert events[0]["args"]["busbw_gb_per_s"] == 100.0  # 6e6 B / 60 us, times 2 x 1/2
    starts = {name: events[0]["ts"] for name, events in added(trace, "transfer").items()}
    assert starts["rank 0 GPU 0"] == pytest.approx(starts["rank 1 GPU 1"], abs=1e-3)
    wait = first["rank 0 GPU 0"]
    assert wait["ts"] + wait["dur"] == pytest.approx(starts["rank 0 GPU 0"], abs=1e-3)


def test_one_process_on_two_devices(tmp_path: Path) -> None:
    generated = dp_trace(devices=2, transport="peer_copy")
    trace, made = merged(written(tmp_path, generated.trace), tmp_path)
    assert in_order(trace)[:3] == ["rank 0 CPU", "rank 0 GPU 0", "rank 0 GPU 1"]
    assert made.ranks[0].clock.collectives == 0


def test_ranks_that_share_no_collective_stand_as_recorded(tmp_path: Path) -> None:
    options = DdpOptions(communication=False)
    shifted = relabel(ddp_trace(1, 2, options).trace, time_shift_us=2500.0)
    trace, made = merged(written(tmp_path, ddp_trace(0, 2, options).trace, shifted), tmp_path)
    assert "clocks_as_recorded" in [finding.code for finding in made.findings]
    assert made.ranks[1].clock.moved_us == 0.0
    steps = [event for event in trace["traceEvents"] if event["name"] == "ProfilerStep#5"]
    begins = {processes(trace)[event["pid"]]: event["ts"] for event in steps}
    assert begins["rank 1 CPU"] - begins["rank 0 CPU"] == pytest.approx(2500.0, abs=1e-3)


@pytest.mark.parametrize(("length_us", "lane"), [(10.0, 0), (10.003, 1)])
def test_events_that_overlap_by_nanoseconds_are_on_two_lanes(length_us: float, lane: int) -> None:
    track = np.zeros(2, dtype=np.int64)
    second = lanes(track, np.array([0.0, 10.0]), np.array([length_us, 5.0]))[1]
    assert second == lane
