"""Groups: of one rank, which move nothing, by the ratio of shapes where none is recorded, and
HSDP's two under gloo.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpscope.analysis.traces.reading.event_table import CommunicationArgs, ProcessGroup
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.collectives import NamedCollective, in_mesh
from tests.helpers.known import codes
from tests.helpers.made_traces import Event, analyzed_events, event, launch, on_device, record, step


def gathered_by_copy(sizes: dict[str, Any]) -> list[Event]:
    """An all-gather of 300 us that a copy carries out, launched in its `nccl:` range, after a
    kernel of 200 us.
    """
    events = [step(1, 0, 100), step(2, 100, 100), launch(1, 10), on_device("gemm", 20, 70, 1)]
    events += [launch(2, 110), on_device("gemm", 120, 200, 2)]
    events += [
        record("_allgather_base", 130, **sizes),
        event("user_annotation", "nccl:_all_gather_base", 130, 10),
    ]
    events += [
        launch(3, 131, "cudaMemcpyAsync"),
        on_device("Memcpy DtoD", 320, 300, 3, category="gpu_memcpy"),
    ]
    return events


def elements(sent: int, received: int) -> dict[str, Any]:
    return {"In msg nelems": sent, "Out msg nelems": received, "dtype": "Float"}


@pytest.mark.parametrize(
    ("sizes", "communication_us"),
    [
        ({"Group size": 2}, 300),
        ({"Group size": 1}, 0),
        (elements(4096, 8192), 300),
        (elements(4096, 4096), 0),
    ],
)
def test_a_copy_within_one_rank_is_no_communication(
    tmp_path: Path, sizes: dict[str, Any], communication_us: float
) -> None:
    """Its window runs from 90 to 620: 530 us, 200 of compute, the copy's 300 on either side."""
    analysis = analyzed_events(tmp_path, gathered_by_copy(sizes), world_size=4)
    row = analysis.steps.iloc[1]
    assert [row[name] for name in ("step_us", "compute_us", "communication_us")] == [
        530,
        200,
        communication_us,
    ]
    assert row["device_copy_us"] == 300 - communication_us
    assert row["host_copy_us"] == 0
    assert "trace_incomplete" not in codes(analysis)


@pytest.mark.parametrize(
    ("name", "args", "size", "bytes_moved"),
    [
        # by the ratio, and not 16; 4 B each
        ("ReduceScatter", elements(65_536, 8_192), 8, 262_144),
        ("AllGather", elements(8_192, 32_768), 4, 131_072),
        ("AllGather", elements(8_192, 32_768) | {"Group size": 16}, 16, 131_072),  # recorded
        ("AllGather", elements(8_192, 8_192), 1, 32_768),  # its own
        ("ReduceScatter", elements(8_191, 1_000), 16, 32_764),  # unequal parts: taken for the job
        ("AllReduce", elements(8_192, 8_192), 16, 32_768),  # no evidence
        ("ReduceScatter", {}, 16, None),
    ],
)
def test_evidence_of_the_size_of_the_group(
    tmp_path: Path, name: str, args: dict[str, Any], size: int, bytes_moved: int | None
) -> None:
    """One collective of rank 3 of 16, with these arguments on its kernel."""
    events = [step(1, 0, 100), launch(1, 10), on_device(f"ncclDevKernel_{name}", 20, 70, 1, **args)]
    one = analyzed_events(tmp_path, events, rank=3, world_size=16).collectives.iloc[0]
    assert (one["group_size"], None if pd.isna(one["bytes"]) else one["bytes"]) == (
        size,
        bytes_moved,
    )


ALL = ProcessGroup("0", "default_pg", (0, 1, 2, 3))
ACROSS = ProcessGroup("1", "mesh_replicate", (0, 2))
WITHIN = ProcessGroup("3", "mesh_shard", (0, 1))
GROUPS = (ALL, ACROSS, WITHIN)
GATHER = NamedCollective(CommunicationArgs(input_elements=35, output_elements=70), "all_gather")
SCATTER = NamedCollective(
    CommunicationArgs(input_elements=88, output_elements=44), "reduce_scatter"
)
REDUCE = NamedCollective(CommunicationArgs(input_elements=44), "all_reduce")


def places(
    named: list[NamedCollective], groups: tuple[ProcessGroup, ...] = GROUPS
) -> list[tuple[str | None, str | None, int | None]]:
    return [(args.group, args.group_ranks, args.group_size) for args, _ in in_mesh(named, groups)]


def test_shards_move_within_a_group_and_their_sums_between_groups() -> None:
    within, across = ("3", "[0, 1]", 2), ("1", "[0, 2]", 2)
    assert places([GATHER, SCATTER, REDUCE]) == [within, within, across]


def test_groups_are_read_from_the_header_but_for_those_that_are_cut_or_broken(
    tmp_path: Path,
) -> None:
    listed = [
        {"pg_name": "3", "pg_desc": "mesh_shard", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "4", "pg_desc": "long", "pg_size": 9000, "ranks": [0, 1]},
        {"pg_name": "5", "pg_size": 1, "ranks": [0]},
        {"pg_name": "6", "pg_size": 1, "ranks": ["0"]},
        {"pg_name": 7, "pg_size": 1, "ranks": [0]},
        "none",
    ]
    header = {"distributedInfo": {"rank": 0, "world_size": 2, "pg_config": listed}}
    event = {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 1, "pid": 1, "tid": 1}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**header, "traceEvents": [event]}))
    assert read_trace(path).process_groups == (WITHIN, ProcessGroup("5", None, (0,)))
