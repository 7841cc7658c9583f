"""One torchrun job: its command, its log, its time limit, its end. Leaves no process behind.
Imports no torch.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpscope.launch.jobs.job_outcome import (
    STARTED_AT_VARIABLE,
    JobOutcome,
    JobWait,
    memory_kills,
    read_progress,
)
from dpscope.launch.jobs.parent_death import (
    JOB_TOKEN_VARIABLE,
    RUN_TOKEN_VARIABLE,
    dying_with_process,
    has_token,
)
from dpscope.profiling.store.folders import JobFolder, RunFolder, remove_torchrun_logs

TORCHRUN_MODULE = "dpscope.launch.torchrun"
_POLL_S = 0.1
_GRACE_S = 3.0  # between SIGTERM and SIGKILL
# after SIGKILL: a process that is still there waits inside the kernel and cannot be ended
_KILL_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """A torchrun job. Those over several nodes are derived by each node from the run folder.

    A subclass says what of it is stored, and what follows from its failure.
    """

    name: str
    program: tuple[str, ...]  # of each process, with its arguments: -m, a module, ...
    folder: JobFolder
    threads: int  # of each process
    processes: int = 1
    nodes: int = 1  # among which the processes are divided
    run: RunFolder | None = None  # by which its leftover processes can be found
    timeout_s: float = math.inf  # its time limit
    done: bool = False  # its result was there when it was planned
    alike: str = ""  # jobs with the same name here take equally long
    estimate_s: float | None = None  # of its duration, before one like it has run
    estimate_bytes: int = 0  # of disk
    node: int = 0  # of several nodes, the one that runs the command
    address: str = "HOST0"  # of node 0; this one is a placeholder
    port: int = 29501

    @property
    def finished(self) -> bool:
        """Whether its result is stored, also by a job started by hand since it was planned."""
        return False

    def prepare(self) -> None:
        """Clear its folder of an earlier attempt's files."""

    def store_failure(self, outcome: JobOutcome, took_s: float) -> str:
        """Store how it failed; returns the message to show."""
        return outcome.message

    def fails_like(self, failed: "Job", outcome: JobOutcome) -> str | None:
        """Why it would fail as another job of the queue did; None if it may succeed."""
        return None

    @property
    def per_node(self) -> int:
        """Processes on each node."""
        return self.processes // self.nodes

    @property
    def command(self) -> tuple[str, ...]:
        """torchrun with dpscope's settings, and the program; it also works by hand, with node 0's
        address.
        """
        meeting = (
            f"--node-rank={self.node}",
            f"--master-addr={self.address}",
            f"--master-port={self.port}",
        )
        return (
            *(
                sys.executable,
                "-m",
                TORCHRUN_MODULE,
                f"--nnodes={self.nodes}",
                *(meeting if self.nodes > 1 else ()),
            ),
            f"--nproc-per-node={self.per_node}",
            *("--max-restarts=0", "--role=rank", "--tee=3"),
            f"--log-dir={self.folder.torchrun_path}",
            *self.program,
        )


class TorchrunJob:
    """A running torchrun with all its processes, found by a token in their environment.

    torchrun puts every worker into a separate session, and workers have children (data loaders):
    neither a process group nor the tree under a dead torchrun would reach them all. Where processes
    cannot be listed (without /proc) its process group is signalled: torchrun then ends its workers.
    """

    lost: str | None = None  # why waiting ended with "lost": which node, and the evidence

    def __init__(self, job: Job, interface: str | None = None) -> None:
        """Start it.

        gloo uses `interface`, by which the nodes reach each other, unless the user chooses another.
        """
        self.folder = job.folder
        self.processes_per_node = job.per_node
        # processes that the kernel had killed on this host before
        self.memory_kills_before = memory_kills()
        token = uuid.uuid4().hex
        self._token = f"{JOB_TOKEN_VARIABLE}={token}"
        environment = {
            "OMP_NUM_THREADS": str(job.threads),
            **({} if interface is None else {"GLOO_SOCKET_IFNAME": interface}),
            **os.environ,
            **({} if job.run is None else {RUN_TOKEN_VARIABLE: str(job.run.path.resolve())}),
            JOB_TOKEN_VARIABLE: token,
            STARTED_AT_VARIABLE: str(time.time()),
        }
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self._log = open(self.folder.log_path, "wb")  # noqa: SIM115 (closed by end)
        self._process = subprocess.Popen(
            dying_with_process(os.getpid(), job.command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is the sweep's to handle
        )

    def wait(
        self,
        timeout_s: float,
        on_progress: Callable[[str | None], None],
        stop_requested: Callable[[], bool],
    ) -> tuple[JobWait, int | None]:
        """How waiting ended, and torchrun's exit status if it did; `on_progress` gets the job's
        pass.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if stop_requested():
                return "stopped", None
            on_progress(read_progress(self.folder.path))
            try:
                return "exited", self._process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                continue
        return "timed_out", None

    def end(self) -> list[int]:
        """End every process of the job that is still there, and remove torchrun's own files.

        Returns the ids of this host's processes that outlive even SIGKILL because they wait for a
        device or a file system.
        """
        left = end_processes(self._token, self._process)
        self._log.close()
        with contextlib.suppress(OSError):
            remove_torchrun_logs(self.folder.torchrun_path)
        return left

    def rank_location(self, rank: int | None) -> str:
        """The node on which a rank ran, such as `` on node 1 (gpu07)``; empty if there is only one
        node.
        """
        return ""


def end_leftovers(run: RunFolder) -> list[int]:
    """End processes that earlier sweeps of this run folder left on this host; returns the ids of
    those that survive.
    """
    return end_processes(f"{RUN_TOKEN_VARIABLE}={run.path.resolve()}")


def end_processes(token: str, started: subprocess.Popen[bytes] | None = None) -> list[int]:
    """End all processes with the token, and the group of `started`; returns those that survive."""
    # once: a second one would cut torchrun's own end short
    _signal(_alive(token, started), started, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while _alive(token, started) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    deadline = time.monotonic() + _KILL_S
    while (left := _alive(token, started)) and time.monotonic() < deadline:
        _signal(left, started, signal.SIGKILL)
        time.sleep(_POLL_S)
    return left


def _alive(token: str, started: subprocess.Popen[bytes] | None) -> list[int]:
    running = [] if started is None or started.poll() is not None else [started.pid]
    return sorted({*running, *processes_with(token)})


def _signal(
    processes: Sequence[int], started: subprocess.Popen[bytes] | None, number: signal.Signals
) -> None:
    if started is not None and started.pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(started.pid, number)
    for process_id in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, number)


def processes_with(token: str) -> list[int]:
    """Ids of the live processes that have `token` (NAME=value) in their environment, this one
    excepted.
    """
    ids = {int(folder.name) for folder in Path("/proc").glob("[0-9]*")} - {os.getpid()}
    return [process_id for process_id in sorted(ids) if has_token(process_id, token)]
