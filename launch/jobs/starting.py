"""Starters of jobs: this host, or several nodes (launch/nodes). Imports no torch."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dpscope.launch.jobs.torchrun import JobWait, TorchrunJob
from dpscope.profiling.records.run import Environment, Host
from dpscope.profiling.store.folders import JobFolder, RunFolder


@dataclass(frozen=True)
class SeveralNodesJob:
    """A planned job over several nodes, as each of them derives it from the run folder."""

    title: str
    command: tuple[str, ...]  # of `torchrun_prefix`
    folder: JobFolder
    threads: int
    in_run: bool  # so that what is left of it can be found later

    @property
    def digest(self) -> str:
        """Of the command but for the interpreter's path, which is each node's own."""
        return hashlib.sha256("\0".join(self.command[1:]).encode()).hexdigest()


class RunningJob(Protocol):
    """A job that was started: `TorchrunJob`, or one over several nodes."""

    @property
    def folder(self) -> JobFolder:
        """Where it writes."""

    @property
    def lost(self) -> str | None:
        """Which of its nodes is lost and how that showed, where waiting ended so."""

    @property
    def memory_kills_before(self) -> int | None:
        """Processes that the kernel had killed on this host for lack of memory before the job began."""

    def wait(
        self, timeout_s: float, on_progress: Callable[[str | None], None], stop_requested: Callable[[], bool]
    ) -> tuple[JobWait, int | None]:
        """How waiting ended, and torchrun's exit status if it did."""

    def ask_to_end(self, grace_s: float) -> None:
        """Let it end by itself, for so long at most."""

    def end(self) -> list[int]:
        """End all of its processes; returns the ids of those of this host that are left."""

    def told_where(self, rank: int | None) -> str:
        """Where a rank ran, for whom several nodes are there; nothing on one."""


class JobStarter(Protocol):
    """Starts torchrun jobs, one at a time."""

    @property
    def count(self) -> int:
        """The nodes that jobs may span."""

    @property
    def lost(self) -> str | None:
        """Which node is lost, so that no further job can be started; None while all are there."""

    def start(self, command: Sequence[str], folder: JobFolder, threads: int, run: RunFolder | None) -> RunningJob:
        """Start a command of `torchrun_prefix`; with `run` what is left of it can be found later."""

    def hosts(self, environment: Environment) -> tuple[Host, ...]:
        """The nodes, where there are several; `environment` is this one's."""

    def clear(self) -> None:
        """Have the other nodes end what earlier commands left running in the run folder; this command holds its lock."""

    def check_gpus(self, per_node: int) -> None:
        """Raise DpscopeError where another node has fewer GPUs than a job over several needs there; nothing on the CPU."""

    def dismiss(self, exit_status: int, message: str = "") -> None:
        """Tell the other nodes that all is done, and how it ended."""


class OneHost:
    """Starts jobs on this host."""

    count = 1
    lost: str | None = None

    def start(self, command: Sequence[str], folder: JobFolder, threads: int, run: RunFolder | None) -> RunningJob:
        """As JobStarter has it."""
        return TorchrunJob(command, folder, threads, run)

    def clear(self) -> None:
        """As JobStarter has it."""

    def check_gpus(self, per_node: int) -> None:
        """As JobStarter has it."""

    def hosts(self, environment: Environment) -> tuple[Host, ...]:
        """As JobStarter has it."""
        return ()

    def dismiss(self, exit_status: int, message: str = "") -> None:
        """As JobStarter has it."""


THIS_HOST = OneHost()
