"""Ranks that number or time the same steps differently, and the reason that is given where nothing is split."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.runs.traced_run import traced_run, traces_said
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis, analyze_traces
from dpscope.profiling.records.finding import Finding
from tests.generated_traces.generator import ddp_trace, write_trace
from tests.helpers.made_traces import launch, on_device, step, write
from tests.helpers.several_jobs import lengthened

WAIT_US = 100.0
TOLD: dict[str, Any] = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": 2}


def numbered(
    folder: Path, first_steps: Sequence[int], sequence: bool = True, kinds: Sequence[str] = ("AllReduce", "AllReduce")
) -> TraceAnalysis:
    """Two ranks of three steps of 1,000 us with an all-reduce each: rank 1 is 100 us late in each, both end at 700."""
    for rank, (first, kind) in enumerate(zip(first_steps, kinds, strict=True)):
        events = []
        for index in range(3):
            begin, start = 1_000.0 * index, 500.0 + WAIT_US * rank
            told = TOLD | ({"Seq": 40 + index} if sequence else {}) | {"Collective name": kind.lower()}
            events += [step(first + index, begin, 1_000), launch(index + 1, begin + 5)]
            events.append(on_device(f"ncclDevKernel_{kind}_Sum_f32", begin + start, 700 - start, index + 1, **told))
        write(folder, events, rank, 2, host_name="node")
    return analyze_traces([folder])


def finding(analysis: TraceAnalysis, code: str) -> Finding | None:
    return next((one for one in analysis.findings if one.code == code), None)


@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize("first_steps", [(5, 105), (5, 5)])
def test_step_numbers_are_labels_of_a_rank(tmp_path: Path, first_steps: tuple[int, int], sequence: bool) -> None:
    analysis = numbered(tmp_path, first_steps, sequence)
    assert analysis.collectives.groupby("rank")["wait_us"].sum().tolist() == [3 * WAIT_US, 0]
    (caused,) = analysis.waits_caused.to_dict("records")
    assert caused["wait_per_step_us"] == WAIT_US
    assert caused["steps"] == 3
    found = finding(analysis, "steps_numbered_differently")
    if first_steps == (5, 5):
        assert found is None
    else:
        assert found is not None
        assert "rank 0 5 to 7, rank 1 105 to 107" in found.message
        assert set(analysis.steps["step"]) == {5, 6, 7, 105, 106, 107}
    assert "2 whole steps of each" in traces_said(traced_run(analysis, [tmp_path]))  # the first one is partial


def test_steps_of_other_series_are_not_matched(tmp_path: Path) -> None:
    analysis = numbered(tmp_path, (5, 105), sequence=False, kinds=("AllReduce", "AllGather"))
    assert analysis.collectives["wait_us"].isna().all()
    assert finding(analysis, "steps_numbered_differently") is None
    unmatched = finding(analysis, "collectives_unmatched")
    assert unmatched is not None
    assert unmatched.next_step == "trace the same steps on every rank"
    assert analysis.not_split is not None
    assert analysis.not_split.reason == "the ranks' collectives differ in number, kind or size"
    assert "all ranks" not in analysis.not_split.next_step


def test_the_traces_of_all_ranks_are_asked_for_only_where_one_is_missing(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        write_trace(ddp_trace(rank, 4).trace, tmp_path / f"rank{rank}.json")
    analysis = analyze_traces(tmp_path)
    assert analysis.not_split is not None
    assert analysis.not_split.next_step == "read the traces of all ranks, rank 2 among them"


def test_the_action_names_why_waiting_is_unknown(tmp_path: Path) -> None:
    """One rank of two, in an all-reduce for 900 us of each step of 1,000 us."""
    events = []
    for index in range(3):
        begin = 1_000.0 * index
        events += [step(index + 1, begin, 1_000), launch(index + 1, begin + 5)]
        events.append(on_device("ncclDevKernel_AllReduce_Sum_f32", begin + 50, 900, index + 1, **TOLD))
    run = traced_run(analyze_traces([write(tmp_path, events, 0, 2)]), [tmp_path])
    action = run_verdict(run, compare(run)).action.text
    assert "Read the traces of all ranks" in action
    assert "because only one process was read" in action


def in_nanoseconds(folder: Path, factor: float) -> TraceAnalysis:
    write_trace(ddp_trace(0, 2).trace, folder / "rank0.json")
    write_trace(lengthened(ddp_trace(1, 2).trace, factor), folder / "rank1.json")
    return analyze_traces(folder)


def test_times_in_nanoseconds_are_an_error_and_no_wait(tmp_path: Path) -> None:
    analysis = in_nanoseconds(tmp_path, 1000.0)
    found = finding(analysis, "step_times_apart")
    assert found is not None
    assert found.severity == "error"
    assert analysis.collectives["wait_us"].isna().all()


def test_a_slow_rank_is_no_error(tmp_path: Path) -> None:
    analysis = in_nanoseconds(tmp_path, 20.0)
    assert finding(analysis, "step_times_apart") is None
    assert analysis.collectives["wait_us"].notna().any()
    assert not [one for one in analysis.findings if one.severity == "error"]


def test_a_rank_that_computes_twenty_times_longer_is_the_straggler(tmp_path: Path) -> None:
    """Ten steps of 2,000 us: rank 1 computes for 1,000 us, rank 0 for 50 us; it waits 950 us in an all-reduce."""
    for rank, compute_us in enumerate((50.0, 1000.0)):
        events = []
        for index in range(10):
            begin = 2_000.0 * index
            told = TOLD | {"Seq": index}
            events += [step(index, begin, 2_000), launch(2 * index + 1, begin + 1), launch(2 * index + 2, begin + 2)]
            events.append(on_device("ampere_sgemm", begin + 10, compute_us, 2 * index + 1))
            start = begin + 10 + compute_us
            events.append(
                on_device("ncclDevKernel_AllReduce_Sum_f32", start, begin + 1_110 - start, 2 * index + 2, 9, **told)
            )
        write(tmp_path, events, rank, 2, host_name="node")
    analysis = analyze_traces([tmp_path])
    assert not [one for one in analysis.findings if one.severity == "error"]
    run = traced_run(analysis, [tmp_path])
    late = run_verdict(run, compare(run)).late
    assert late is not None
    assert (late.rank, late.shown) == (1, True)
    assert late.wait_us == 475.0  # the mean over both ranks
