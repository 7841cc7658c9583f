"""Tensor-parallel, fully sharded, DLRM and pipeline jobs: groups kept apart, each kind's factor,
and no false DDP.
"""

from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.generated_traces.generator import Job, parallel_trace
from tests.generated_traces.parallel_jobs import RANKS
from tests.helpers import made_traces
from tests.helpers.generated_checks import analyzed, check_job, parallelism
from tests.helpers.made_traces import Event, event, operator, record, step

NAMED = {
    "tensor_data_parallel": "DDP-like, and all-reduces of activations (tensor-parallel)",
    "tensor_parallel": "no DDP shown: nothing is all-reduced by the backward pass alone",
    "fully_sharded": "sharded (FSDP- or ZeRO-like); seen",
    "dlrm": "DDP-like, with all-to-alls",
    "pipeline": "not DDP: it all-reduces no gradients, but sends and receives",
}


@pytest.mark.parametrize("job", RANKS)
def test_every_number_of_the_job(tmp_path: Path, job: Job) -> None:
    ranks = [parallel_trace(job, rank) for rank in range(RANKS[job])]
    analysis = analyzed(tmp_path, *ranks)
    check_job(analysis, ranks)
    assert "collectives_unmatched" not in {finding.code for finding in analysis.findings}
    assert parallelism(analysis).startswith(NAMED[job])


@pytest.mark.parametrize("job", ["tensor_data_parallel", "fully_sharded", "dlrm"])
def test_order_matches_groups_that_number_nothing(tmp_path: Path, job: Job) -> None:
    """Without sequence numbers the order within each group and step gives the same transfers and
    waits.
    """
    ranks = [parallel_trace(job, rank) for rank in range(RANKS[job])]
    for generated in ranks:
        for one in generated.trace["traceEvents"]:
            one.get("args", {}).pop("Seq", None)
    table = analyzed(tmp_path, *ranks).collectives.sort_values(["rank", "start_us"])
    expected = [
        one
        for generated in ranks
        for one in sorted(generated.expected.collectives, key=lambda row: row.start_us)
    ]
    assert table["sequence"].isna().all()
    assert table["transfer_us"].tolist() == [one.transfer_us for one in expected]
    assert table["wait_us"].tolist() == pytest.approx([one.wait_us for one in expected])


def test_messages_have_a_lower_bound_alone(tmp_path: Path) -> None:
    """2,000,000 B: sent in 20 us; received in 120 us, most of them waiting."""
    table = analyzed(tmp_path, *(parallel_trace("pipeline", rank) for rank in range(2))).collectives
    own = table[table["step"] == 6].set_index(["rank", "kind"])["lower_bound_gb_per_s"]
    assert own[0, "send"] == pytest.approx(100.0)
    assert own[1, "recv"] == pytest.approx(16.6667, rel=1e-4)


NODE = "autograd::engine::evaluate_function: MmBackward0"
FORWARD, BACKWARD, AFTER = 10.0, 50.0, 90.0  # of a step of 100 us, whose nodes lie from 40 to 80


def requested(kind: str, *places: float, size: int = 4096, group: str = "0") -> list[Event]:
    """Two steps; each requests the collective at these times after its start."""
    recorded: dict[str, Any] = {
        "In msg nelems": size,
        "dtype": "Float",
        "Process Group Name": group,
        "Group size": 2,
    }
    return [record(kind, 100.0 * index + at, **recorded) for index in range(2) for at in places]


def named(folder: Path, *events: Event, nodes: bool = True, world_size: int = 2) -> str:
    """What a rank is called that asks for these; gloo carries out an all-reduce in each step."""
    made = [step(index + 1, 100.0 * index, 100.0) for index in range(2)]
    made += [operator(NODE, 100.0 * index + 40, 40.0) for index in range(2)] if nodes else []
    made += [
        event("user_annotation", "gloo:all_reduce", 100.0 * index + 60, 5.0, tid=9)
        for index in range(2)
    ]
    made_traces.write(folder, [*made, *events], world_size=world_size)
    found = [one.message for one in analyze_traces([folder]).findings if one.code == "parallelism"]
    return found[0] if found else ""


def test_equal_layers_whose_last_is_reduced_after_the_backward_pass(tmp_path: Path) -> None:
    """Composable replicate(): three reductions of one size a step, the last when the pass has
    ended.
    """
    message = named(tmp_path, *requested("allreduce", BACKWARD, BACKWARD + 10, AFTER))
    assert message.startswith("DDP-like; seen")
    assert "6 all-reduces started by the backward pass alone" in message


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (
            [*requested("allreduce", FORWARD, BACKWARD)],
            "no DDP shown: nothing is all-reduced by the backward pass alone",
        ),
        (
            [*requested("allreduce", AFTER, AFTER + 4)],
            "no DDP shown: nothing is all-reduced by the backward pass alone",
        ),
        (
            [*requested("allreduce", BACKWARD), *requested("allreduce", AFTER, size=1)],
            "DDP-like; seen",
        ),
        (  # metrics gathered and reduced to shards after the backward pass of a DDP job
            [
                event("user_annotation", "DistributedDataParallel.forward", FORWARD, 5.0),
                *requested("allreduce", BACKWARD),
                *requested("allgather", AFTER, size=1),
                *requested("reduce_scatter", AFTER + 2, size=1),
            ],
            "DDP-like; seen",
        ),
        (
            [*requested("reduce_scatter", BACKWARD), *requested("allgather", FORWARD)],
            "sharded (FSDP- or ZeRO-like); seen",
        ),
        (  # hybrid: the shards are reduced over the replicas
            [
                *requested("reduce_scatter", BACKWARD),
                *requested("allgather", FORWARD),
                *requested("allreduce", BACKWARD, group="1"),
            ],
            "sharded (FSDP- or ZeRO-like), with all-reduces of gradients in the backward pass; seen",
        ),
        (  # embeddings sharded by rows: their outputs are reduced forward, and gathered backward
            [
                *requested("reduce_scatter", FORWARD),
                *requested("allgather", BACKWARD),
                *requested("allreduce", BACKWARD),
            ],
            "DDP-like, and reduce-scatters that the forward pass asks for too",
        ),
        (  # sequence-parallel layers and an evaluation's gather
            [
                *requested("reduce_scatter", FORWARD, BACKWARD),
                *requested("allgather", FORWARD, AFTER),
                *requested("allreduce", 55.0),
            ],
            "DDP-like, and reduce-scatters that the forward pass asks for too",
        ),
    ],
)
def test_who_requests_collectives_determines_the_parallelism(
    tmp_path: Path, events: list[Event], message: str
) -> None:
    assert named(tmp_path, *events).startswith(message)
