"""The structure of the generated traces, and how they are relabelled."""

import ast
from itertools import pairwise

import pytest

from tests.generated_traces.generator import dp_trace, relabel
from tests.generated_traces.grid import ALL_TRACES, DEVICE_TRACES
from tests.generated_traces.raster import DEVICE_CATEGORIES, by_step, complete_events, launch_calls, span, step_ranges
from tests.helpers.paths import ROOT


@pytest.mark.parametrize("name", ALL_TRACES)
def test_launches_come_first_threads_nest_and_streams_run_one_thing_at_a_time(name: str) -> None:
    trace = ALL_TRACES[name].trace
    calls, unlaunched = launch_calls(trace), 0
    streams: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in complete_events(trace, *DEVICE_CATEGORIES):
        call = calls.get(event["args"]["correlation"])
        unlaunched += call is None
        assert call is None or call["ts"] <= event["ts"]
        assert event["tid"] == event["args"]["stream"]
        streams.setdefault((event["pid"], event["tid"]), []).append(span(event))
    assert unlaunched == ALL_TRACES[name].expected.unlaunched_count
    for spans in streams.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(sorted(spans)))
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in complete_events(trace, "cpu_op", "user_annotation", "cuda_runtime"):
        if "gloo:" not in event["name"]:  # these overlap: they begin when the work is created
            threads.setdefault((event["pid"], event["tid"]), []).append(span(event))
    for spans in threads.values():
        open_ends: list[float] = []
        for start, end in sorted(spans, key=lambda times: (times[0], -times[1])):
            open_ends = [other for other in open_ends if other > start]
            assert all(end <= other for other in open_ends)
            open_ends.append(end)


@pytest.mark.parametrize("name", [name for name in DEVICE_TRACES if "-lag" in name])
def test_lagging_devices_are_more_than_a_step_behind(name: str) -> None:
    trace = DEVICE_TRACES[name].trace
    steps, calls = by_step(trace), launch_calls(trace)
    last_launch = max(calls[event["args"]["correlation"]]["ts"] for event in steps[7])
    assert last_launch < max(span(event)[1] for event in steps[5])


def test_relabel_moves_everything_there_and_back() -> None:
    trace = dp_trace(2).trace
    moved = relabel(trace, -1234567890.5, 700000, 13, 30, 99)
    assert set(step_ranges(moved)) == {35, 36, 37}
    for event, other in zip(by_step(trace)[5], by_step(moved)[35], strict=True):
        assert other["ts"] == event["ts"] - 1234567890.5
        assert other["tid"] == other["args"]["stream"] == event["tid"] + 13
        assert other["args"]["correlation"] == event["args"]["correlation"] + 700000
    assert relabel(moved, 1234567890.5, -700000, -13, -30, -99) == trace


def test_the_generator_shares_no_code_with_dpscope() -> None:
    for source in (ROOT / "tests" / "generated_traces").glob("[!t]*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(module.startswith("dpscope") for module in modules), source
