"""This node's rank and rendezvous from each launcher's variables, or from options; missing or
contradictory ones are refused.
"""

from typing import Any

import pytest

from dpscope.launch.jobs.node_place import (
    Address,
    NodePlace,
    first_host,
    launched_rank,
    node_place,
    parse_address,
)
from dpscope.profiling.store.errors import DpscopeError

SLURM = {  # of srun -N2 --ntasks-per-node=1, second task
    "SLURM_JOB_ID": "71", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_PROCID": "1",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}  # fmt: skip
PYTORCH_JOB = {
    "PET_NNODES": "3", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "train-master-0", "PET_MASTER_PORT": "23456",
    "WORLD_SIZE": "3", "RANK": "1", "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456",
}  # fmt: skip


def place(
    environment: dict[str, str],
    nodes: str = "auto",
    rank: int | None = None,
    rendezvous: str | None = None,
) -> NodePlace:
    found = node_place(nodes, rank, rendezvous, environment)
    assert found is not None
    return found


def test_slurm_gives_count_rank_and_address() -> None:
    assert place(SLURM) == NodePlace(2, 1, Address("gpu07", 20713))
    # Another for each step and job.
    others = [{**SLURM, "SLURM_STEP_ID": "4"}, {**SLURM, "SLURM_JOB_ID": "9999999"}]
    assert [place(other).address.port for other in others] == [20714, 29993]
    assert (launched_rank(SLURM), launched_rank({})) == (1, None)


PMI = {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "1"}
FOR_ONE_PROCESS = {
    name: value for name, value in PYTORCH_JOB.items() if not name.startswith("PET_")
}
INDEXED = {"JOB_COMPLETION_INDEX": "1"}


@pytest.mark.parametrize(
    ("environment", "options", "expected"),
    [
        (OPEN_MPI, ("auto", None, "host0"), NodePlace(4, 2, Address("host0", 29500))),
        (PMI, ("auto", None, "host0"), NodePlace(2, 1, Address("host0", 29500))),
        (PYTORCH_JOB, (), NodePlace(3, 1, Address("train-master-0", 23456))),
        (FOR_ONE_PROCESS, (), NodePlace(3, 1, Address("train-master-0", 23456))),
        (INDEXED, ("2", None, "job-0.svc:1234"), NodePlace(2, 1, Address("job-0.svc", 1234))),
        # Options take precedence over the launcher.
        ({}, ("2", 1, "[fe80::1]:2950"), NodePlace(2, 1, Address("fe80::1", 2950))),
        (SLURM, ("2", 0, "other:1"), NodePlace(2, 0, Address("other", 1))),
    ],
)
def test_places_by_launchers_and_options(
    environment: dict[str, str], options: tuple[Any, ...], expected: NodePlace
) -> None:
    assert place(environment, *options) == expected
    assert str(Address("fe80::1", 2950)) == "[fe80::1]:2950"


def test_a_single_node_has_no_place() -> None:
    assert node_place("1", None, None, {}) is None
    assert (
        node_place(
            "auto", None, None, {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}
        )
        is None
    )


@pytest.mark.parametrize(
    ("nodes", "rank", "environment", "message"),
    [
        ("auto", None, {}, "--nodes auto: neither srun, MPI, PMI nor"),
        ("auto", None, INDEXED, "--nodes auto: neither"),
        ("auto", None, PMI, "no launcher sets the rendezvous; give --rendezvous"),
        # sbatch starts its script on one node, outside any step.
        (
            "auto",
            None,
            {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_NODEID": "0"},
            "--nodes auto: neither",
        ),
        (
            "auto",
            None,
            {**SLURM, "SLURM_STEP_NUM_TASKS": "8"},
            "Slurm has started 4 tasks on this node; start one per",
        ),
        (
            "auto",
            None,
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            "Open MPI has started 2 tasks on this node",
        ),
        (
            "2",
            None,
            {**SLURM, "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NUM_TASKS": "4"},
            "Slurm has started this on 4 nodes",
        ),
        (
            "2",
            None,
            {**SLURM, "SLURM_STEP_NUM_TASKS": "8"},
            "--nodes 2: Slurm has started 4 tasks on this node",
        ),
        ("two", None, {}, "--nodes two: give auto, or a number"),
        ("0", None, {}, "--nodes 0: give auto, or a number"),
        ("2", None, {}, "no launcher sets this node's rank among the 2 nodes; give --node-rank"),
        ("2", 2, {}, "--node-rank 2: with 2 nodes, give a number from 0 to 1"),
        ("2", 0, {}, "no launcher sets the rendezvous; give --rendezvous HOST:PORT"),
    ],
)
def test_missing_or_contradictory_values_are_refused(
    nodes: str, rank: int | None, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(DpscopeError, match=message):
        node_place(nodes, rank, None, environment)


@pytest.mark.parametrize(
    "text", ["", "host:0", "host:99999", "a b", "host:port", "1:2:3", "a..b", "x" * 70]
)
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(DpscopeError, match="such as host0:29500"):
        parse_address(text)


def test_the_first_host_of_a_list() -> None:
    lists = [
        "n0",
        "n[0-1]",
        "gpu[017,019-020],x",
        "rack1-[03-04]-ib",
        "a,b",
        "rack[1-2]n[03-04],x",
        "",
    ]
    assert [first_host(one) for one in lists] == [
        "n0",
        "n0",
        "gpu017",
        "rack1-03-ib",
        "a",
        "rack1n03",
        None,
    ]
