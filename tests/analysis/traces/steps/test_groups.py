"""Groups: of one rank, which move nothing, and by the ratio of shapes where none is recorded."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis, analyze_traces
from tests.helpers.made_traces import Event, event, launch, on_device, operator, record, step, write

FLOATS: dict[str, Any] = {"dtype": "Float"}


def codes(analysis: TraceAnalysis) -> set[str]:
    return {finding.code for finding in analysis.findings}


def gathered_by_copy(sizes: dict[str, Any]) -> list[Event]:
    """An all-gather of 300 us that a copy carries out, launched in its `nccl:` range, after a kernel of 200 us."""
    events = [step(1, 0, 100), step(2, 100, 100), launch(1, 10), on_device("gemm", 20, 70, 1)]
    events += [launch(2, 110), on_device("gemm", 120, 200, 2)]
    events += [record("_allgather_base", 130, **sizes), event("user_annotation", "nccl:_all_gather_base", 130, 10)]
    events += [launch(3, 131, "cudaMemcpyAsync"), on_device("Memcpy DtoD", 320, 300, 3, category="gpu_memcpy")]
    return events


@pytest.mark.parametrize(
    ("sizes", "communication_us"),
    [
        ({"Group size": 2}, 300),
        ({"Group size": 1}, 0),
        ({"In msg nelems": 4096, "Out msg nelems": 8192, **FLOATS}, 300),
        ({"In msg nelems": 4096, "Out msg nelems": 4096, **FLOATS}, 0),
    ],
)
def test_a_copy_within_one_rank_is_no_communication(
    tmp_path: Path, sizes: dict[str, Any], communication_us: float
) -> None:
    """Its window runs from 90 to 620: 530 us, 200 of compute, the copy's 300 on either side."""
    write(tmp_path, gathered_by_copy(sizes), world_size=4)
    analysis = analyze_traces([tmp_path])
    row = analysis.steps.iloc[1]
    assert [row[name] for name in ("step_us", "compute_us", "communication_us")] == [530, 200, communication_us]
    assert row["device_copy_us"] == 300 - communication_us
    assert row["host_copy_us"] == 0
    assert "trace_incomplete" not in codes(analysis)


@pytest.mark.parametrize(("size", "incomplete"), [(1, False), (2, True)])
def test_all_reduces_within_one_rank_need_no_kernel(tmp_path: Path, size: int, incomplete: bool) -> None:
    events = [step(1, 0, 100), launch(1, 10), on_device("gemm", 20, 70, 1), operator("c10d::allreduce_", 30, 9)]
    events += [record("allreduce", 31, **{"Group size": size}), record("wait", 35, **{"Group size": 4})]
    write(tmp_path, events, world_size=4)
    assert ("trace_incomplete" in codes(analyze_traces([tmp_path]))) is incomplete


def of_kernel(folder: Path, name: str, **args: Any) -> pd.Series:
    """The one collective of rank 3 of 16, with these arguments on its kernel."""
    events = [step(1, 0, 100), launch(1, 10), on_device(f"ncclDevKernel_{name}", 20, 70, 1, **args)]
    write(folder, events, rank=3, world_size=16)
    return analyze_traces([folder]).collectives.iloc[0]


def test_the_ratio_of_shapes_is_the_size_of_the_group(tmp_path: Path) -> None:
    """65,536 / 8,192 = 8 ranks, not 16; 4 B each: 262,144 B."""
    one = of_kernel(tmp_path, "ReduceScatter", **{"In msg nelems": 65_536, "Out msg nelems": 8_192, **FLOATS})
    assert (one["kind"], one["group_size"], one["bytes"]) == ("reduce_scatter", 8, 262_144)


@pytest.mark.parametrize(
    ("name", "args", "size"),
    [
        ("AllGather", {"In msg nelems": 8_192, "Out msg nelems": 32_768}, 4),
        ("AllGather", {"In msg nelems": 8_192, "Out msg nelems": 32_768, "Group size": 16}, 16),  # recorded
        ("ReduceScatter", {"In msg nelems": 8_191, "Out msg nelems": 1_000}, 16),  # unequal parts: taken for the job
        ("AllReduce", {"In msg nelems": 8_192, "Out msg nelems": 8_192}, 16),  # tells nothing
        ("ReduceScatter", {}, 16),
    ],
)
def test_what_else_tells_the_size_of_the_group(tmp_path: Path, name: str, args: dict[str, Any], size: int) -> None:
    assert of_kernel(tmp_path, name, **FLOATS, **args)["group_size"] == size


def test_beside_smaller_groups_an_untold_one_is_not_taken_for_the_job(tmp_path: Path) -> None:
    events = [step(1, 0, 100), launch(1, 10), launch(2, 12)]
    sizes: dict[str, Any] = {"In msg nelems": 65_536, "Out msg nelems": 8_192, **FLOATS}
    events += [
        on_device("ncclDevKernel_ReduceScatter", 20, 30, 1, **sizes),
        on_device("ncclDevKernel_AllReduce", 60, 9, 2),
    ]
    write(tmp_path, events, world_size=16)
    assert analyze_traces([tmp_path]).collectives["group_size"].tolist() == [8, pd.NA]
