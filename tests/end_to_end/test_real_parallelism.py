"""Real traces on gloo of DDP, replicate(), FSDP, HSDP and tensor parallelism: what each is called, sizes recorded or not."""

import sys
from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.generated_checks import parallelism
from tests.helpers.paths import USER_MODELS
from tests.helpers.ranks import run_ranks

PROGRAM = USER_MODELS / "parallel_training.py"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    run_ranks([sys.executable, str(PROGRAM), str(folder)], 4)
    return folder


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("way", "shapes", "named"),
    [
        ("data_parallel", "shapes", "DDP-like; seen"),
        ("data_parallel", "plain", "DDP-like; seen"),
        ("tensor_parallel", "shapes", "not DDP: its backward pass all-reduces what others do too"),
        ("tensor_parallel", "plain", "DDP-like or tensor-parallel: the sizes"),
        ("fully_sharded", "shapes", "sharded (FSDP- or ZeRO-like); seen"),
        ("fully_sharded", "plain", "sharded (FSDP- or ZeRO-like); seen"),
        ("hybrid", "shapes", "sharded (FSDP- or ZeRO-like), with all-reduces of gradients in the backward pass; seen"),
        ("replicated_equal", "shapes", "DDP-like; seen"),
        ("replicated_unequal", "shapes", "DDP-like; seen"),
        ("layers_equal", "shapes", "DDP-like; seen"),
        ("layers_equal", "plain", "DDP-like; seen"),
        ("layers_unequal", "shapes", "DDP-like; seen"),
        ("averaged_by_hand", "shapes", "unknown: it all-reduces after the backward pass"),
    ],
)
def test_each_way_has_its_name(traces: Path, way: str, shapes: str, named: str) -> None:
    analysis = analyze_traces([traces / way / shapes])
    assert parallelism(analysis).startswith(named)
    # gloo's all-reduces of both ranks are matched, the loss among them: 2 steps, 4 ranks, one or more each
    reduced = analysis.collectives[analysis.collectives["kind"] == "all_reduce"]
    assert len(reduced) >= 8
    if shapes == "shapes":
        assert reduced["bytes"].notna().all()
