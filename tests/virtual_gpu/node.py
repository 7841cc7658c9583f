"""A virtual node's description as typed records, the environment of programs that run on it, and
its truth as tables.

The README explains the clock, and every field where its meaning is not plain. Times are in
microseconds, bandwidths in GB/s (1e9 B/s), devices by their physical index, ranks as torchrun has
them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pandas as pd

from tests.helpers import fork_server
from tests.helpers.paths import ROOT
from tests.virtual_gpu.stubs import LIBRARIES, NVML

_DESCRIPTION = "VGPU_NODE"  # the environment variable that names the file
NOTHING: Mapping[str, str] = MappingProxyType({})
LIGHT_TORCHRUN = MappingProxyType({"DPSCOPE_TEST_LIGHT_TORCHRUN": "1"})
_LOADING = ("LD_LIBRARY_PATH", "LD_PRELOAD")


@dataclass(frozen=True, kw_only=True)
class Device:
    name: str = "dpscope virtual GPU"
    memory_mib: int = 16384
    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    teraflops: float = 10.0
    memory_gb_per_s: float = 500.0
    slowdown: float = 1.0  # factor of every kernel's time


@dataclass(frozen=True, kw_only=True)
class Link:
    kind: Literal["nvlink", "pcie"] = "nvlink"
    gb_per_s: float = 20.0
    latency_us: float = 1.5  # of a copy
    peer: bool = True  # whether the devices read each other's memory


@dataclass(frozen=True, kw_only=True)
class UnlikeLink(Link):
    """The link between two devices, where it differs from the node's others."""

    devices: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Links(Link):
    unlike: tuple[UnlikeLink, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """The time of every kernel whose mangled name contains `name`."""

    name: str
    us: float


@dataclass(frozen=True, kw_only=True)
class Kernels:
    us: float = 20.0  # of torch's own kernels, before what they take for each thread
    ps_per_thread: float = 0.0
    matrix_us: float = 5.0  # of cuBLAS's and cuDNN's, before what they take for each FLOP or byte
    by_name: tuple[KernelTime, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CollectiveTime:
    """Collectives of up to so many bytes take the latency, and the bytes that each link carries at
    the bandwidth.
    """

    up_to_bytes: float = 1e18
    latency_us: float = 15.0
    # None: of the slowest link between neighbours in the ring, which goes by rank
    gb_per_s: float | None = None
    algorithm: str = "RING_LL"  # in the kernel's name


@dataclass(frozen=True, kw_only=True)
class Collectives:
    by_size: tuple[CollectiveTime, ...] = (CollectiveTime(),)
    # of larger ones the data does not arrive: it takes the host's time
    largest_moved_bytes: float = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class HostDelay:
    """The host of a rank sleeps before it launches a kernel whose mangled name contains
    `kernel`.
    """

    rank: int
    kernel: str
    us: float


@dataclass(frozen=True, kw_only=True)
class Fault:
    """From the launch (or collective) of number `after` on, counted from 0 in each process.

    - launch: launches return the CUDA error; nothing else does.
    - sticky: every call that launches, waits or allocates returns the CUDA error.
    - lost: as sticky, and NVML has lost the device.
    - never_arrives: the rank does not arrive at its collectives.
    - async_error: neither does it then, and NCCL reports the error asynchronously.
    - corrupts: all-reduces give the rank a wrong last element.
    """

    kind: Literal["launch", "sticky", "lost", "never_arrives", "async_error", "corrupts"]
    rank: int | None = None  # None: any
    device: int | None = None
    after: int = 0
    error: int = 0


@dataclass(frozen=True, kw_only=True)
class Nvml:
    devices: int | None = None  # None: as many as the node has
    # functions that an older driver's library does not have: nvmlInitWithFlags,
    # nvmlDeviceGetComputeRunningProcesses_v3
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Node:
    devices: tuple[Device, ...] = (Device(),) * 4
    links: Links = Links()
    kernels: Kernels = Kernels()
    collectives: Collectives = Collectives()
    host_gb_per_s: float = 10.0
    copy_us: float = 1.5  # latency of copies with the host and within a device
    launch_us: float = 2.0  # from a call to the earliest start of its work
    host_delays: tuple[HostDelay, ...] = ()
    faults: tuple[Fault, ...] = ()
    nvml: Nvml = Nvml()
    cuda_devices: int | None = None  # CUDA sees at most so many


def healthy_node(count: int) -> Node:
    """For the checks of real GPUs: the data of doctor's all-reduce (4 MiB) arrives, that of
    gradients takes no host's time.
    """
    sleep = KernelTime(name="spin_kernel", us=200_000)  # a calibration's calls are queued meanwhile
    return Node(
        devices=(Device(),) * count,
        kernels=Kernels(by_name=(sleep,)),
        collectives=Collectives(largest_moved_bytes=4 * 2**20),
    )


@dataclass(frozen=True)
class Truth:
    """What the node did, in the order of the processes' numbers and, in each, of the work's
    resolution.
    """

    processes: pd.DataFrame  # pid, rank, command
    # _WORK_COLUMNS: kernels, copies and memsets; of a copy also its ends (-1: the host)
    work: pd.DataFrame
    # _COLLECTIVE_COLUMNS: one rank's part of a collective. `rank` is the communicator's, and
    # `arrivals_ns` are in the order of its ranks (of a message: the other side's); `late_ns` is how
    # much later than the last but one the last rank came.
    collectives: pd.DataFrame
    events: pd.DataFrame  # each record of a CUDA event with timing
    memory: pd.DataFrame  # what a process has of a device's memory after each change
    stubs: frozenset[str]  # functions that were called and are not there


@dataclass(frozen=True)
class PlantedNode:
    """A node whose description is written: programs with its environment run on it."""

    folder: Path
    truth_folder: Path
    changes: dict[str, str] = field(repr=False)  # of the environment

    @property
    def environment(self) -> dict[str, str]:
        """This process's, without what selects CUDA's devices here: commands run in it set their
        order.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return {**kept, **self.changes}

    def truth(self) -> Truth:
        return read_truth(self.truth_folder)

    def run(
        self,
        *arguments: str,
        timeout_s: float = 200,
        variables: Mapping[str, str] = NOTHING,
        status: int = 0,
    ) -> str:
        """What Python prints on this node with these arguments, its errors included;
        AssertionError: another exit status.
        """
        ran = self.start(*arguments, variables=variables)
        try:
            output, _ = ran.communicate(timeout=timeout_s)
        finally:
            ran.kill()
        assert ran.returncode == status, (
            f"exit status {ran.returncode}: {' '.join(arguments)}\n{output[-8000:]}"
        )
        return output

    def start(
        self, *arguments: str, variables: Mapping[str, str] = NOTHING
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            (sys.executable, *arguments),
            env={**self.environment, **variables},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def dpscope(
        self,
        *arguments: str,
        timeout_s: float = 280,
        variables: Mapping[str, str] = NOTHING,
        status: int = 0,
        torchrun: bool = False,
    ) -> str:
        """A command of dpscope, whose jobs run by torchrun or without
        (tests/helpers/light_torchrun.py).
        """
        command = ("-m", "dpscope.launch.cli", *arguments)
        started_by = NOTHING if torchrun else LIGHT_TORCHRUN
        all_variables = {"DPSCOPE_TEST_FORK_READERS": "1", **started_by, **variables}
        return self.run(*command, timeout_s=timeout_s, variables=all_variables, status=status)


@contextmanager
def planted(node: Node, libraries: Path, folder: Path) -> Iterator[PlantedNode]:
    """Write a node's description into a folder; meanwhile its ranks can meet."""
    meeting = Path(tempfile.mkdtemp(prefix="vgpu-", dir="/dev/shm"))
    truth = folder / "truth"
    truth.mkdir(parents=True)
    description = folder / "node.json"
    places = {"truth_folder": str(truth), "meeting_folder": str(meeting)}
    description.write_text(json.dumps(_without_none({**asdict(node), **places}), indent=2))
    # torch's own paths to these libraries come before LD_LIBRARY_PATH, but not before what is
    # loaded already.
    paths = os.pathsep.join(filter(None, [str(libraries), os.environ.get("LD_LIBRARY_PATH")]))
    names = " ".join(library.soname for library in (*LIBRARIES, NVML))
    loaded = dict(zip(_LOADING, (paths, names), strict=True))
    changes = {**loaded, "OMP_NUM_THREADS": "1", _DESCRIPTION: str(description)}
    # one for all nodes: it reads no description before it forks
    changes[fork_server.VARIABLE] = fork_server.server(*loaded.items())
    try:
        yield PlantedNode(folder, truth, changes)
    finally:
        shutil.rmtree(meeting, ignore_errors=True)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(field) for name, field in value.items() if field is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value


_WORK = ("kernel", "copy", "memset")
_TIMES = ["correlation", "device", "stream", "start_ns", "end_ns", "bytes"]
_WORK_COLUMNS = ["kind", "pid", "rank", "name", *_TIMES, "source", "target"]
_MEMORY_COLUMNS = ["pid", "rank", "device", "time_ns", "used_bytes"]
_EVENT_COLUMNS = ["pid", "rank", "device", "stream", "time_ns"]
_COLLECTIVE_COLUMNS = [
    *("pid", "name", "communicator", "sequence", "rank", "ranks", *_TIMES),
    *("transfer_ns", "arrivals_ns", "last_rank", "late_ns"),
]


def read_truth(folder: Path) -> Truth:
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in _lines(path)]
    of_kind: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        of_kind.setdefault(line["kind"], []).append(line)
    processes = pd.DataFrame(of_kind.get("process", []), columns=["pid", "rank", "command"])
    work = pd.DataFrame(
        [line for kind in _WORK for line in of_kind.get(kind, [])], columns=_WORK_COLUMNS
    )
    collectives = pd.DataFrame(
        map(_with_lateness, of_kind.get("collective", [])), columns=_COLLECTIVE_COLUMNS
    )
    stubs = frozenset(line["name"] for line in of_kind.get("stub", []))
    events = pd.DataFrame(of_kind.get("event", []), columns=_EVENT_COLUMNS)
    memory = pd.DataFrame(of_kind.get("memory", []), columns=_MEMORY_COLUMNS)
    return Truth(processes, work, collectives, events, memory, stubs)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of one process's file, with its number and rank."""
    process: dict[str, Any] = {}
    for text in path.read_text().splitlines():
        line: dict[str, Any] = json.loads(text)
        if line["kind"] == "process":
            process = {"pid": line["pid"], "rank": line["rank"]}
        yield {**process, **line}


def _with_lateness(line: dict[str, Any]) -> dict[str, Any]:
    arrivals = line["arrivals_ns"]
    before_last, last = sorted([min(arrivals), *arrivals])[-2:]
    return {**line, "last_rank": arrivals.index(last), "late_ns": last - before_last}
