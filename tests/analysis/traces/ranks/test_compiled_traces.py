"""A DDP job whose model inductor compiled, as its real traces show it: DDP's graph in parts, a bucket reduced behind each."""

import gzip
import json
from itertools import pairwise
from typing import Any

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis, analyze_traces
from tests.helpers.paths import DATA

TRACES = sorted((DATA / "compiled_ddp").iterdir())
FIRST, WIDE, LAST = 192 * 520 + 520, 520 * 520 + 520, 520 * 4 + 4
RANKS, STEPS, PARTS = 2, 3, 4


@pytest.fixture(scope="module")
def analysis() -> TraceAnalysis:
    return analyze_traces(TRACES)


def test_buckets_are_found_with_their_bytes(analysis: TraceAnalysis) -> None:
    assert set(analysis.collectives["kind"]) == {"all_reduce"}
    moved = analysis.collectives.groupby(["rank", "step"])["bytes"].agg(["sum", "count"])
    assert len(moved) == RANKS * STEPS
    assert moved["sum"].eq(4 * (FIRST + 3 * WIDE + LAST)).all()
    assert moved["count"].eq(PARTS).all()
    assert analysis.collectives["match"].notna().all()


def test_phases_hold_the_compiled_parts(analysis: TraceAnalysis) -> None:
    """Apart from `CompiledFunction` ranges and those of torch.compile around them, only loss and optimizer compute."""
    for rank, path in enumerate(TRACES):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        own = analysis.steps[analysis.steps["rank"] == rank].set_index("step")
        for step in (2, 3):
            begin, end = span(events, f"ProfilerStep#{step}")
            inside = [one for one in events if one.get("ph") == "X" and begin <= one["ts"] < end]
            forward = sum(one["dur"] for one in inside if one["name"].startswith("Torch-Compiled Region"))
            backward = sum(one["dur"] for one in inside if one["name"] == "CompiledFunctionBackward")
            measured = own.loc[step]
            assert 0 < forward <= measured["forward_us"] <= length(inside, "dpscope::forward")
            assert 0 < backward <= measured["backward_us"] <= length(inside, "dpscope::backward")
            assert 0 < measured["optimizer_us"] <= length(inside, "dpscope::optimizer")


def test_each_part_of_the_graph_ends_before_its_bucket_is_reduced_and_the_next_part_runs_after() -> None:
    for path in TRACES:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        begin, end = span(events, "ProfilerStep#3")
        names = {"CompiledFunctionBackward", "c10d::allreduce_"}
        order = sorted(
            (one["ts"], one["name"]) for one in events if one.get("name") in names and begin <= one["ts"] < end
        )
        assert len(order) == 2 * PARTS
        assert all(one[1] != other[1] for one, other in pairwise(order))
        assert order[0][1] == "CompiledFunctionBackward"


def span(events: list[dict[str, Any]], name: str) -> tuple[float, float]:
    (found,) = (one for one in events if one.get("name") == name and one.get("cat") == "user_annotation")
    return found["ts"], found["ts"] + found["dur"]


def length(events: list[dict[str, Any]], name: str) -> float:
    return float(sum(one["dur"] for one in events if one["name"] == name))
