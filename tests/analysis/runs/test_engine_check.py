"""A DDP cell of which nothing is hidden, by the engine that ran it; near misses beside it."""

import msgspec
import pytest

from dpscope.analysis.runs.engine_check import engine_findings
from dpscope.profiling.records.run import Cell, CellOptions
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
