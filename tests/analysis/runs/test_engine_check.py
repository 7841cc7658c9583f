"""A DDP cell of which nothing is hidden, by the engine that ran it; near misses beside it."""

from pathlib import Path

import msgspec
import pytest

from dpscope.analysis.runs.engine_check import engine_findings
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis, analyze_traces
from dpscope.profiling.records.run import Cell, CellOptions
from tests.helpers.made_traces import launch, on_device, step, write
from tests.helpers.run_cells import all_reduces, rank_result, windows

DDP = Cell(strategy="ddp", devices=2, batch_size=8)
TWO_BUCKETS = [(400.0, 0.0, 3_000.0), (900.0, 5_000.0, 7_000.0)]


def found(
    hidden_us: float,
    cell: Cell = DDP,
    engine: str | None = "ProcessGroupNCCL2",
    buckets: list[tuple[float, float, float]] = TWO_BUCKETS,
) -> list[str]:
    ranks = [msgspec.structs.replace(rank_result(rank, 2), nccl_engine=engine) for rank in range(2)]
    steps = windows(cell, 3, communication_us=10_000.0, hidden_us=hidden_us, exposed_us=10_000.0 - hidden_us)
    return [one.message for one in engine_findings(cell, ranks, steps, all_reduces(cell, 3, buckets))]


def test_nothing_hidden_on_the_second_engine_is_told() -> None:
    """0.4 of 10 ms are 4%: next to nothing."""
    (message,) = found(400.0)
    assert message.startswith(
        "ddp-d2-b8: 4% of its communication (10.0 ms a step) is hidden behind compute, and ProcessGroupNCCL2"
    )
    assert "not confirmed on hardware" in message


def serialised(folder: Path, behind_us: float) -> TraceAnalysis:
    """Three steps; in each a kernel 0-100 us, an all-reduce from 100 - `behind_us`, 100 us long, then both once more."""
    events = []
    for index in range(3):
        begin = 1_000.0 * index
        events.append(step(index + 1, begin, 1_000))
        for part in range(2):
            at, number = begin + 10 + 200 * part, 10 * index + 2 * part + 1
            events += [launch(number, begin + 1 + 2 * part), launch(number + 1, begin + 2 + 2 * part)]
            events.append(on_device("ampere_sgemm", at, 100, number))
            events.append(
                on_device("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 100 - behind_us, 100, number + 1, 20)
            )
    write(folder, events)
    return analyze_traces([folder])


@pytest.mark.parametrize(("behind_us", "hidden_us", "count"), [(0.0, 0.0, 1), (50.0, 100.0, 0)])
def test_a_trace_of_a_serialised_engine(tmp_path: Path, behind_us: float, hidden_us: float, count: int) -> None:
    """200 us of communication a step; of each all-reduce 50 us beside its kernel are 100 hidden."""
    analysis = serialised(tmp_path, behind_us)
    steps = analysis.steps.query("step > 1").assign(repeat=0)
    assert steps["communication_us"].tolist() == [200.0, 200.0]
    assert steps["hidden_us"].tolist() == [hidden_us, hidden_us]
    ranks = [msgspec.structs.replace(rank_result(0, 2), nccl_engine="ProcessGroupNCCL2")]
    assert len(engine_findings(DDP, ranks, steps, analysis.collectives.assign(repeat=0))) == count


@pytest.mark.parametrize(
    "near",
    [
        {"hidden_us": 600.0},  # 6% is hidden
        {"hidden_us": 0.0, "engine": "ProcessGroupNCCL"},
        {"hidden_us": 0.0, "engine": None},  # gloo
        {"hidden_us": 0.0, "buckets": TWO_BUCKETS[:1]},  # complete when backward is over, on any engine
        {"hidden_us": 0.0, "cell": msgspec.structs.replace(DDP, variant="", options=CellOptions(overlap="off"))},
    ],
)
def test_what_has_another_reason_is_not(near: dict[str, object]) -> None:
    assert found(**near) == []  # type: ignore[arg-type]
