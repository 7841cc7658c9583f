"""This node's rank, the number of nodes and their rendezvous, from options, Slurm, MPI, PMI or
Kubernetes. Imports no torch.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dpscope.profiling.store.errors import DpscopeError

DEFAULT_PORT = 29500


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
    address: Address  # of node 0


@dataclass(frozen=True)
class _Launcher:
    """What a launcher sets for each of its processes; nothing without one."""

    name: str = ""
    count: int | None = None
    rank: int | None = None
    tasks_here: int | None = None  # processes that it started on this node
    address: Address | None = None


def node_place(
    nodes: str, node_rank: int | None, rendezvous: str | None, environment: Mapping[str, str]
) -> NodePlace | None:
    """The place from --nodes, --node-rank and --rendezvous, and the launcher; None for a single
    node.

    Raises DpscopeError for contradictory or missing values.
    """
    launcher = _launcher(environment)
    count = _count(launcher) if nodes == "auto" else _stated_count(nodes)
    if nodes == "auto" or (node_rank is None and count > 1):
        _check_launcher(launcher, nodes, count)
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
    if address is None:
        raise DpscopeError(
            f"--nodes {nodes}: no launcher sets the rendezvous; give --rendezvous HOST:PORT, with node 0's name or address"
        )
    return NodePlace(count, rank, address)


def _count(launcher: _Launcher) -> int:
    if launcher.count is None:
        raise DpscopeError(
            "--nodes auto: neither srun, MPI, PMI nor a Kubernetes job sets the number of nodes; give "
            "--nodes, --node-rank and --rendezvous"
        )
    return max(1, launcher.count)


def _stated_count(nodes: str) -> int:
    if not nodes.isdecimal() or int(nodes) < 1:
        raise DpscopeError(f"--nodes {nodes}: give auto, or a number of nodes")
    return int(nodes)


def _check_launcher(launcher: _Launcher, nodes: str, count: int) -> None:
    """Raises DpscopeError unless it started this once on each of `count` nodes."""
    if launcher.tasks_here not in (None, 1):
        raise DpscopeError(
            f"--nodes {nodes}: {launcher.name} has started {launcher.tasks_here} tasks on this node; start one per node "
            "(srun --ntasks-per-node=1): it starts a process per device itself"
        )
    if launcher.count not in (None, count):
        raise DpscopeError(
            f"--nodes {nodes}: {launcher.name} has started this on {launcher.count} nodes; give --nodes auto, or start it on "
            f"{nodes}"
        )


def launched_rank(environment: Mapping[str, str]) -> int | None:
    return _launcher(environment).rank


def parse_address(text: str) -> Address:
    """``host0:29500``, ``host0`` (at the usual port) or ``[::1]:29500``; raises DpscopeError."""
    parts = re.fullmatch(r"(\[[^\]]+\]|[^:\s]+)(?::(\d{1,5}))?", text.strip())
    port = int(parts[2] or DEFAULT_PORT) if parts is not None else 0
    if parts is None or not 0 < port < 65536:
        raise DpscopeError(
            f"--rendezvous {text}: give node 0's host and a port on it, such as host0:29500"
        )
    host = parts[1].strip("[]")
    try:
        host.encode("idna")  # as the look-up of a name does
    except UnicodeError as error:
        raise DpscopeError(
            f"--rendezvous {text}: {host} is no host's name or address; give one, such as host0:29500"
        ) from error
    return Address(host, port)


def _launcher(environment: Mapping[str, str]) -> _Launcher:
    """The first launcher that has set its variables."""
    for reader in (_slurm, _open_mpi, _pmi, _pytorch_job, _kubernetes):
        launcher = reader(environment)
        if launcher is not None:
            return launcher
    return _Launcher()


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else None


def _slurm(environment: Mapping[str, str]) -> _Launcher | None:
    """A task of srun; sbatch starts its script on one node only, without it."""
    nodes = _number(environment, "SLURM_STEP_NUM_NODES")
    if not nodes:
        return None
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    host = first_host(listed)
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS") or nodes
    return _Launcher(
        "Slurm",
        nodes,
        _number(environment, "SLURM_NODEID"),
        tasks_here=math.ceil(tasks / nodes),
        address=None if host is None else Address(host, _slurm_port(environment)),
    )


def _slurm_port(environment: Mapping[str, str]) -> int:
    """A port that differs between jobs, and steps of a job, which may share node 0; below those
    that systems give to outgoing connections.
    """
    job, step = (_number(environment, name) or 0 for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return 20_000 + (10 * job + step) % 10_000


def _open_mpi(environment: Mapping[str, str]) -> _Launcher | None:
    size = _number(environment, "OMPI_COMM_WORLD_SIZE")
    if size is None:
        return None
    rank = _number(environment, "OMPI_COMM_WORLD_RANK")
    return _Launcher("Open MPI", size, rank, _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"))


def _pmi(environment: Mapping[str, str]) -> _Launcher | None:
    """MPICH's and Intel's launchers."""
    size = _number(environment, "PMI_SIZE")
    if size is None:
        return None
    rank = _number(environment, "PMI_RANK")
    return _Launcher("PMI", size, rank, _number(environment, "MPI_LOCALNRANKS"))


def _pytorch_job(environment: Mapping[str, str]) -> _Launcher | None:
    """Kubeflow's PyTorchJob, one process per pod: its variables for torchrun, else those for a
    single process, which torchrun sets for its own processes, too.
    """
    names = [("PET_NNODES", "PET_NODE_RANK", "PET_MASTER")]
    if "LOCAL_RANK" not in environment:
        names.append(("WORLD_SIZE", "RANK", "MASTER"))
    for nodes_name, rank_name, master in names:
        nodes = _number(environment, nodes_name)
        rank = _number(environment, rank_name)
        if nodes is None or rank is None:
            continue
        host = environment.get(f"{master}_ADDR")
        port = _number(environment, f"{master}_PORT") or DEFAULT_PORT
        address = None if host is None else Address(host, port)
        return _Launcher("PyTorchJob", nodes, rank, address=address)
    return None


def _kubernetes(environment: Mapping[str, str]) -> _Launcher | None:
    """A job with completionMode Indexed, which does not say of how many processes."""
    index = _number(environment, "JOB_COMPLETION_INDEX")
    return None if index is None else _Launcher("Kubernetes", rank=index)


def first_host(node_list: str) -> str | None:
    """The first host of Slurm's compressed list.

    >>> first_host("gpu[017-018,040],login1"), first_host("n0"), first_host("")
    ('gpu017', 'n0', None)
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", node_list)
    return None if first is None else re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])
