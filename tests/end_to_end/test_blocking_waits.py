"""Tensor parallelism, FSDP2 with clipped gradients and blocking all-reduces on two gloo ranks: waits are exposed, not hidden."""

import sys
from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.paths import ROOT
from tests.helpers.ranks import run_ranks
from tests.user_models.blocking_waits import LATE_S

# How often in a step rank 0 waits for rank 1, while nothing computes.
TIMES_LATE = {
    "tensor_parallel": 1,
    "tensor_parallel_clipped": 1,
    "fully_sharded_clipped": 1,
    "data_parallel_metric": 4,
    "reduced_in_hooks": 2,
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    run_ranks([sys.executable, "-m", "tests.user_models.blocking_waits", str(folder)], 2, cwd=ROOT)
    return folder


@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", TIMES_LATE)
def test_waiting_for_a_late_rank_is_exposed(traces: Path, way: str) -> None:
    steps = analyze_traces([traces / way]).steps
    own = steps[(steps["rank"] == 0) & ~steps["partial_window"]]
    late_us = TIMES_LATE[way] * LATE_S * 1e6
    assert len(own) >= 2
    assert (own["exposed_us"] >= 0.9 * late_us).all(), own
    assert (own["hidden_us"] <= 0.2 * own["communication_us"]).all(), own
    assert (own["step_us"] - own["compute_us"] >= 0.9 * late_us).all(), own
