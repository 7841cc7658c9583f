"""A file that holds several ranks is refused; one rank with two process ids is none."""

from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import Trace, ddp_trace, write_trace
from tests.helpers.generated_checks import check_steps


def joined(ranks: list[Trace]) -> Trace:
    """All events in the first rank's file."""
    return {**ranks[0], "traceEvents": [event for one in ranks for event in one["traceEvents"]]}


@pytest.mark.parametrize("named", [True, False])
def test_a_file_of_several_ranks_is_refused(tmp_path: Path, named: bool) -> None:
    """Whether its events name their rank, in containers all of one process id, or only their
    process.
    """
    ranks = [ddp_trace(rank, 2).trace for rank in range(2)]
    for rank, trace in enumerate(ranks):
        for event in trace["traceEvents"]:
            if event.get("ph") == "X" and named:
                event.update(pid=1, args={**event.get("args", {}), "rank": rank})
            elif event.get("ph") == "X":
                event["pid"] = 5000 + rank
    path = write_trace(joined(ranks), tmp_path / "all.json")
    with pytest.raises(DpscopeError, match=r"all\.json holds the events of several ranks"):
        read_trace(path)


def test_one_launch_that_names_another_process_is_damage_and_no_rank(tmp_path: Path) -> None:
    generated, path = ddp_trace(0, 2), tmp_path / "0_0.pt.trace.json"
    events = generated.trace["traceEvents"]
    for category in ("cuda_runtime", "cpu_op"):
        next(event for event in events if event.get("cat") == category)["pid"] = 51000
    assert read_trace(write_trace(generated.trace, path)).rank == 0


def test_a_process_that_only_calls_the_runtime_is_no_rank(tmp_path: Path) -> None:
    """MTIA's tracer gives a rank's calls of its runtime another process id than its operators."""
    generated = ddp_trace(0, 2)
    calls = [
        event for event in generated.trace["traceEvents"] if event.get("cat") == "cuda_runtime"
    ]
    assert len(calls) > 4
    for call in calls[: len(calls) // 2]:
        call["pid"] = 4711
    analysis = analyze_traces([write_trace(generated.trace, tmp_path / "0_0.pt.trace.json")])
    assert len(analysis.summaries) == 1
    check_steps(analysis.steps, 0, generated)
