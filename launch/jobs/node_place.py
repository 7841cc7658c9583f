"""This node's rank, the number of nodes and their rendezvous, from options, Slurm, MPI, PMI or
Kubernetes. Imports no torch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from dpscope.profiling.store.errors import DpscopeError

DEFAULT_PORT = 29500
# derived from a scheduler's job number: two jobs on one host rarely collide
_FIRST_PORT, _PORTS = 20_000, 10_000


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class NodePlace:
    """This node of a command that was started on several."""

    count: int
    rank: int
    address: Address | None  # of node 0; None: only the run folder has it
    job: str | None = None  # identifier of this start, equal on all its nodes; None if unknown
    port_stated: bool = True  # by the user or the launcher: it must not be replaced


@dataclass(frozen=True)
class _Launcher:
    """What a launcher sets for each of its processes; nothing without one."""

    name: str = ""
    count: int | None = None
    rank: int | None = None
    tasks_here: int | None = None  # processes that it started on this node
    address: Address | None = None
    job: str | None = None
    port_stated: bool = True


def node_place(
    nodes: str, node_rank: int | None, rendezvous: str | None, environment: Mapping[str, str]
) -> NodePlace | None:
    """The place from --nodes, --node-rank and --rendezvous, and the launcher; None for a single
    node.

    Raises DpscopeError for contradictory or missing values.
    """
    launcher = _launcher(environment)
    if nodes == "auto" and launcher.count is None:
        raise DpscopeError(
            "--nodes auto: neither srun, MPI, PMI nor a Kubernetes job sets the number of nodes; give "
            "--nodes, --node-rank and --rendezvous"
        )
    if nodes != "auto" and (not nodes.isdecimal() or int(nodes) < 1):
        raise DpscopeError(f"--nodes {nodes}: give auto, or a number of nodes")
    count = launcher.count or 1 if nodes == "auto" else int(nodes)
    by_launcher = nodes == "auto" or (node_rank is None and count > 1)
    if by_launcher and launcher.tasks_here not in (None, 1):
        raise DpscopeError(
            f"--nodes {nodes}: {launcher.name} has started {launcher.tasks_here} tasks on this node; start one per node "
            "(srun --ntasks-per-node=1): it starts a process per device itself"
        )
    if by_launcher and launcher.count not in (None, count):
        raise DpscopeError(
            f"--nodes {nodes}: {launcher.name} has started this on {launcher.count} nodes; give --nodes auto, or start it on "
            f"{nodes}"
        )
    if count == 1:
        return None
    rank = launcher.rank if node_rank is None else node_rank
    if rank is None:
        raise DpscopeError(
            f"--nodes {nodes}: no launcher sets this node's rank among the {count} nodes; give --node-rank, 0 to {count - 1}"
        )
    if not 0 <= rank < count:
        raise DpscopeError(
            f"--node-rank {rank}: with {count} nodes, give a number from 0 to {count - 1}"
        )
    address = launcher.address if rendezvous is None else parse_address(rendezvous)
    if address is None and launcher.job is None:
        raise DpscopeError(
            f"--nodes {nodes}: no launcher sets the rendezvous; give --rendezvous HOST:PORT, with node 0's name or address"
        )
    return NodePlace(
        count, rank, address, launcher.job, launcher.port_stated or rendezvous is not None
    )


def launched_rank(environment: Mapping[str, str]) -> int | None:
    return _launcher(environment).rank


def parse_address(text: str) -> Address:
    """``host0:29500``, ``host0`` (at the usual port) or ``[::1]:29500``; raises DpscopeError."""
    found = re.fullmatch(r"(\[[^\]]+\]|[^:\s]+)(?::(\d{1,5}))?", text.strip())
    port = int(found[2] or DEFAULT_PORT) if found is not None else 0
    if found is None or not 0 < port < 65536:
        raise DpscopeError(
            f"--rendezvous {text}: give node 0's host and a port on it, such as host0:29500"
        )
    host = found[1].strip("[]")
    try:
        host.encode("idna")  # as the look-up of a name does
    except UnicodeError as error:
        raise DpscopeError(
            f"--rendezvous {text}: {host} is no host's name or address; give one, such as host0:29500"
        ) from error
    return Address(host, port)


def _launcher(environment: Mapping[str, str]) -> _Launcher:
    """The first launcher that has set its variables."""
    text = environment.get

    def number(name: str) -> int | None:
        value = text(name, "")
        return int(value) if value.isdecimal() else None

    # a task of srun; sbatch starts its script on one node only, without it
    if nodes := number("SLURM_STEP_NUM_NODES"):
        job = "slurm-" + "-".join(
            text(f"SLURM_{name}", "0") for name in ("JOB_ID", "STEP_ID", "RESTART_COUNT")
        )
        first = first_host(text("SLURM_STEP_NODELIST") or text("SLURM_JOB_NODELIST", ""))
        address = (
            None if first is None else Address(first, _FIRST_PORT + crc32(job.encode()) % _PORTS)
        )
        tasks_here = -(-(number("SLURM_STEP_NUM_TASKS") or nodes) // nodes)
        return _Launcher(
            "Slurm", nodes, number("SLURM_NODEID"), tasks_here, address, job, port_stated=False
        )
    if (size := number("OMPI_COMM_WORLD_SIZE")) is not None:
        start = text("PMIX_NAMESPACE") or text("OMPI_MCA_ess_base_jobid")
        rank, here = (number(f"OMPI_COMM_WORLD_{name}") for name in ("RANK", "LOCAL_SIZE"))
        return _Launcher(
            "Open MPI", size, rank, here, job=None if start is None else f"mpi-{start}"
        )
    # MPICH's and Intel's launchers, which set no common job name
    if (size := number("PMI_SIZE")) is not None:
        return _Launcher("PMI", size, number("PMI_RANK"), number("MPI_LOCALNRANKS"))
    # Kubeflow's PyTorchJob, one process per pod: its variables for torchrun, else those for a
    # single process.
    for nodes_name, rank_name, master in (
        ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER"),
        ("WORLD_SIZE", "RANK", "MASTER"),
    ):
        if master == "MASTER" and "LOCAL_RANK" in environment:
            break  # a process started by torchrun
        if (nodes := number(nodes_name)) is not None and (rank := number(rank_name)) is not None:
            host = text(f"{master}_ADDR")
            address = (
                None if host is None else Address(host, number(f"{master}_PORT") or DEFAULT_PORT)
            )
            return _Launcher("PyTorchJob", nodes, rank, address=address)
    # a Kubernetes job with completionMode Indexed
    if (index := number("JOB_COMPLETION_INDEX")) is not None:
        return _Launcher("Kubernetes", rank=index)
    return _Launcher()


def first_host(node_list: str) -> str | None:
    """The first host of Slurm's compressed list.

    >>> first_host("gpu[017-018,040],login1"), first_host("n0"), first_host("")
    ('gpu017', 'n0', None)
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", node_list)
    return None if first is None else re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])
