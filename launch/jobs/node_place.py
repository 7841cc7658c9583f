"""This node's rank, the number of nodes and their rendezvous, from options, Slurm, MPI, PMI or Kubernetes. Imports no torch."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from zlib import crc32

from dpscope.profiling.store.errors import DpscopeError

DEFAULT_PORT = 29500
_FIRST_PORT, _PORTS = 20_000, 10_000  # derived from a scheduler's job number: two jobs on one host rarely collide


@dataclass(frozen=True)
class Address:
    """A host and a port on it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class NodePlace:
    """This node of a command that was started on several."""

    count: int
    rank: int
    source: str  # such as "Slurm"
    address: Address | None  # of node 0; None: only the run folder has it
    job: str | None = None  # identifier of this start, equal on all its nodes; None if unknown
    port_stated: bool = True  # by the user or the launcher: it must not be replaced


@dataclass(frozen=True)
class _Launcher:
    """What a launcher sets for each of its processes."""

    name: str
    count: int | None
    rank: int | None
    on_this_node: int | None = None  # of the processes it started
    address: Address | None = None
    job: str | None = None
    port_stated: bool = True


def node_place(
    nodes: str | None, node_rank: int | None, rendezvous: str | None, environment: Mapping[str, str]
) -> NodePlace | None:
    """The place from --nodes, --node-rank and --rendezvous, and the launcher; None for a single node.

    Raises DpscopeError for contradictory or missing values.
    """
    if nodes is None:
        return None
    launcher = _launcher(environment)
    count = _count(nodes, launcher, node_rank)
    if count == 1:
        return None
    rank = node_rank if node_rank is not None else launcher.rank if launcher is not None else None
    if rank is None:
        raise DpscopeError(
            f"--nodes {nodes}: no launcher sets this node's rank among the {count} nodes; give --node-rank, 0 to {count - 1}"
        )
    if not 0 <= rank < count:
        raise DpscopeError(f"--node-rank {rank}: with {count} nodes, give a number from 0 to {count - 1}")
    address = launcher.address if launcher is not None else None
    if rendezvous is not None:
        address = parse_address(rendezvous)
    job = launcher.job if launcher is not None else None
    stated = rendezvous is not None or launcher is None or launcher.port_stated
    if address is None and job is None:
        raise DpscopeError(
            f"--nodes {nodes}: no launcher sets the rendezvous; give --rendezvous HOST:PORT, with node 0's name or address"
        )
    return NodePlace(count, rank, launcher.name if launcher is not None else "options", address, job, stated)


def launched_rank(environment: Mapping[str, str]) -> int | None:
    """The number of this node, if a launcher sets it."""
    launcher = _launcher(environment)
    return None if launcher is None else launcher.rank


def parse_address(text: str) -> Address:
    """``host0:29500``, ``host0`` (at the usual port) or ``[::1]:29500``; raises DpscopeError."""
    found = re.fullmatch(r"(\[[^\]]+\]|[^:\s]+)(?::(\d+))?", text.strip())
    port = int(found[2] or DEFAULT_PORT) if found is not None else 0
    if found is None or not 0 < port < 65536:
        raise DpscopeError(f"--rendezvous {text}: give node 0's host and a port on it, such as host0:29500")
    host = found[1].strip("[]")
    try:
        host.encode("idna")  # as the look-up of a name does
    except UnicodeError as error:
        raise DpscopeError(
            f"--rendezvous {text}: {host} is no host's name or address; give one, such as host0:29500"
        ) from error
    return Address(host, port)


def _count(nodes: str, launcher: _Launcher | None, node_rank: int | None) -> int:
    if nodes == "auto":
        if launcher is None or launcher.count is None:
            raise DpscopeError(
                "--nodes auto: neither srun, MPI, PMI nor a Kubernetes job sets the number of nodes; give "
                "--nodes, --node-rank and --rendezvous"
            )
        _check_one_task(nodes, launcher)
        return launcher.count
    if not nodes.isdecimal() or int(nodes) < 1:
        raise DpscopeError(f"--nodes {nodes}: give auto, or a number of nodes")
    count = int(nodes)
    if launcher is not None and node_rank is None and count > 1:
        _check_one_task(nodes, launcher)
        if launcher.count not in (None, count):
            raise DpscopeError(
                f"--nodes {nodes}: {launcher.name} has started this on {launcher.count} nodes; give --nodes auto, or start it on "
                f"{nodes}"
            )
    return count


def _check_one_task(nodes: str, launcher: _Launcher) -> None:
    if launcher.on_this_node not in (None, 1):
        raise DpscopeError(
            f"--nodes {nodes}: {launcher.name} has started {launcher.on_this_node} tasks on this node; start one per node "
            "(srun --ntasks-per-node=1): it starts a process per device itself"
        )


def _launcher(environment: Mapping[str, str]) -> _Launcher | None:
    """The first launcher that has set its variables."""
    for detect in (_slurm, _open_mpi, _pmi, _pytorch_job, _indexed_job):
        if (found := detect(environment)) is not None:
            return found
    return None


def _slurm(environment: Mapping[str, str]) -> _Launcher | None:
    """A task of srun. sbatch starts its script on one node only, without SLURM_STEP_NUM_NODES."""
    number = _numbers(environment)
    nodes = number("SLURM_STEP_NUM_NODES")
    if nodes is None:
        return None
    tasks = number("SLURM_STEP_NUM_TASKS") or nodes
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID")
    job = "slurm-" + "-".join(environment.get(name, "0") for name in (*names, "SLURM_RESTART_COUNT"))
    first = first_host(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", ""))
    return _Launcher(
        "Slurm",
        count=nodes,
        rank=number("SLURM_NODEID"),
        on_this_node=1 if tasks == nodes else -(-tasks // nodes),
        address=None if first is None else Address(first, _FIRST_PORT + crc32(job.encode()) % _PORTS),
        job=job,
        port_stated=False,
    )


def _open_mpi(environment: Mapping[str, str]) -> _Launcher | None:
    number = _numbers(environment)
    if (size := number("OMPI_COMM_WORLD_SIZE")) is None:
        return None
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid")
    return _Launcher(
        "Open MPI",
        count=size,
        rank=number("OMPI_COMM_WORLD_RANK"),
        on_this_node=number("OMPI_COMM_WORLD_LOCAL_SIZE"),
        job=None if job is None else f"mpi-{job}",
    )


def _pmi(environment: Mapping[str, str]) -> _Launcher | None:
    """MPICH's and Intel's launchers, which set no common job name."""
    number = _numbers(environment)
    if (size := number("PMI_SIZE")) is None:
        return None
    return _Launcher("PMI", count=size, rank=number("PMI_RANK"), on_this_node=number("MPI_LOCALNRANKS"))


def _pytorch_job(environment: Mapping[str, str]) -> _Launcher | None:
    """Kubeflow's PyTorchJob, one process per pod: its variables for torchrun, else those for a single process."""
    number = _numbers(environment)
    for count, rank, host, port in (
        ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
        ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"),
    ):
        if "LOCAL_RANK" in environment and count == "WORLD_SIZE":
            return None  # a process started by torchrun
        if (nodes := number(count)) is not None and (node := number(rank)) is not None:
            master = environment.get(host)
            address = None if master is None else Address(master, number(port) or DEFAULT_PORT)
            return _Launcher("PyTorchJob", count=nodes, rank=node, address=address)
    return None


def _indexed_job(environment: Mapping[str, str]) -> _Launcher | None:
    """A Kubernetes job with completionMode Indexed, which sets each pod's number but not their count."""
    index = _numbers(environment)("JOB_COMPLETION_INDEX")
    return None if index is None else _Launcher("Kubernetes", count=None, rank=index)


def _numbers(environment: Mapping[str, str]) -> Callable[[str], int | None]:
    def number(name: str) -> int | None:
        value = environment.get(name, "")
        return int(value) if value.isdecimal() else None

    return number


def first_host(node_list: str) -> str | None:
    """The first host of Slurm's compressed list.

    >>> first_host("gpu[017-018,040],login1"), first_host("n0"), first_host("")
    ('gpu017', 'n0', None)
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", node_list)
    return None if first is None else re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])
