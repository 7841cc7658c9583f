"""Several ranks in one file give what their own files give."""

from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis, analyze_traces
from dpscope.analysis.traces.reading.reader import read_trace, read_traces
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.fusing import Marking, fused_trace
from tests.generated_traces.generator import DdpOptions, ddp_trace, gloo_trace, write_trace
from tests.helpers.generated_checks import check_collectives, check_steps


def codes(analysis: TraceAnalysis) -> set[str]:
    return {finding.code for finding in analysis.findings}


@pytest.mark.parametrize("marking", ["args_rank", "process", "label", "plain"])
@pytest.mark.parametrize("options", [DdpOptions(), DdpOptions(straggler=1), DdpOptions(metadata="none")])
def test_each_rank_is_read_by_itself(tmp_path: Path, marking: Marking, options: DdpOptions) -> None:
    ranks = [ddp_trace(rank, 4, options) for rank in range(4)]
    path = write_trace(fused_trace([rank.trace for rank in ranks], marking), tmp_path / "all.json.gz")
    analysis = analyze_traces([path])
    for rank, generated in enumerate(ranks):
        check_steps(analysis.steps, rank, generated)
    check_collectives(analysis, ranks)
    assert "fused_ranks" in codes(analysis)
    assert [summary.rank for summary in analysis.summaries] == [0, 1, 2, 3]
    assert [one.severity for one in analysis.findings if one.code == "fused_ranks"] == [
        "warning" if marking == "plain" else "info"
    ]


def test_chunks_may_be_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [ddp_trace(rank, 2) for rank in range(2)]
    path = write_trace(fused_trace([rank.trace for rank in ranks], "label"), tmp_path / "all.json")
    monkeypatch.setattr("dpscope.analysis.traces.reading.chunks.CHUNK_BYTES", 3000)
    analysis = analyze_traces([path])
    for rank, generated in enumerate(ranks):
        check_steps(analysis.steps, rank, generated)


def test_ranks_without_devices(tmp_path: Path) -> None:
    ranks = [gloo_trace(rank, 2) for rank in range(2)]
    fused = fused_trace([rank.trace for rank in ranks], "plain")
    fused["distributedInfo"]["backend"] = "gloo"
    analysis = analyze_traces([write_trace(fused, tmp_path / "all.json")])
    for rank, generated in enumerate(ranks):
        check_steps(analysis.steps, rank, generated)
    check_collectives(analysis, ranks)


def test_launches_that_could_be_anybodys_are_left_out_and_told(tmp_path: Path) -> None:
    ranks = [ddp_trace(rank, 2).trace for rank in range(2)]
    analysis = analyze_traces([write_trace(fused_trace(ranks, "same_launches"), tmp_path / "all.json")])
    assert {"fused_ranks", "fused_events_unowned"} <= codes(analysis)
    assert analysis.steps.empty or analysis.steps["communication_us"].isna().all()


def test_read_trace_names_the_function_for_it(tmp_path: Path) -> None:
    ranks = [ddp_trace(rank, 2).trace for rank in range(2)]
    path = write_trace(fused_trace(ranks, "args_rank"), tmp_path / "all.json")
    with pytest.raises(DpscopeError, match=r"holds the traces of 2 ranks; read it with read_traces"):
        read_trace(path)
    assert [trace.rank for trace in read_traces(path)] == [0, 1]
    assert all(isinstance(trace.events.start_us.min(), float) for trace in read_traces(path))


def test_one_rank_is_not_fused(tmp_path: Path) -> None:
    analysis = analyze_traces([write_trace(ddp_trace(0, 2).trace, tmp_path / "0_0.pt.trace.json")])
    assert "fused_ranks" not in codes(analysis)
    assert isinstance(analysis.steps, pd.DataFrame)


def test_one_launch_that_names_another_process_is_damage_and_no_rank(tmp_path: Path) -> None:
    trace = ddp_trace(0, 2).trace
    calls = [event for event in trace["traceEvents"] if event.get("cat") == "cuda_runtime"]
    calls[5]["pid"] = 51000
    assert len(read_traces(write_trace(trace, tmp_path / "one.json"))) == 1
    calls[6]["pid"] = 51000
    assert len(read_traces(write_trace(trace, tmp_path / "two.json"))) == 2
