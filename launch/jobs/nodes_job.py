"""The parts of a torchrun job over several nodes: node 0's, which watches the others', and another node's. Imports no torch."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from dpscope.launch.jobs.starting import SeveralNodesJob
from dpscope.launch.jobs.torchrun import JobWait, TorchrunJob, on_node
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder, RunFolder

OWN_END_S = 8.0  # in which torchrun ends by itself once another node's has: its ranks see that their peers are gone
_REPORT_S = 15.0  # a node's report on its part of a job that has ended
_AT_SUCCESS_S = 60.0  # the same of a job that ended well: nothing is ended before it has ended by itself
_LOSS_SEEN_S = 17.0  # longer than a node may be silent
_LONGEST_JOB_S = 1e8  # node 0 keeps the time
_LOG_BYTES = 256 << 10  # of its end
_POLL_S = 0.1


class NodeLostError(DpscopeError):
    """A node of a command is gone."""

    exit_status = 1

    def __init__(self, loss: str) -> None:
        super().__init__(f"{loss}; to resume, give the same command on all nodes again")


class Peers(Protocol):
    """The other nodes, as launch/nodes knows them."""

    def name(self, node: int) -> str:
        """Such as ``node 1 (gpu07)``."""

    def loss(self, node: int) -> str | None:
        """That a node is lost, and how that showed; None while it is there."""

    def let_end(self, grace_s: float) -> None:
        """Have the others end the job, which has so long to end by itself."""

    def ended(self, node: int) -> tuple[int | None] | None:
        """Torchrun's exit status, None within where it did not end by itself, once a node's part of the job is over."""

    def relay_stops(self) -> None:
        """Where another node was asked to stop, all of them stop."""


class NodesJob(TorchrunJob):
    """Node 0's part, and what the `others` say of theirs; of a job of node 0 alone there are none."""

    def __init__(
        self,
        command: Sequence[str],
        folder: JobFolder,
        threads: int,
        run: RunFolder | None,
        interface: str | None,
        peers: Peers,
        others: Sequence[int],
    ) -> None:
        """Start it; gloo is given the `interface` by which the nodes reach each other."""
        self._peers = peers
        self._others = others
        self._failed_at_s: float | None = None  # when another node's torchrun failed
        self._exit_status: int | None = None
        super().__init__(command, folder, threads, run, _gloo_variables(interface))

    def wait(
        self, timeout_s: float, on_progress: Callable[[str | None], None], stop_requested: Callable[[], bool]
    ) -> tuple[JobWait, int | None]:
        """As a RunningJob has it; once a node's torchrun has failed the others' have OWN_END_S to see it."""

        def over() -> bool:
            self._peers.relay_stops()
            if self._failed_at_s is None and any(self._peers.ended(one) not in (None, (0,)) for one in self._others):
                self._failed_at_s = time.monotonic()
            failed = self._failed_at_s is not None and time.monotonic() - self._failed_at_s > OWN_END_S
            return stop_requested() or self._is_lost() or failed

        how, self._exit_status = super().wait(timeout_s, on_progress, over)
        if how == "stopped" and stop_requested():
            return how, None
        if how != "timed_out" and self._exit_status != 0 and self._turns_out_lost():
            return "lost", None
        return ("exited", 1) if how == "stopped" else (how, self._exit_status)

    def ask_to_end(self, grace_s: float) -> None:
        """As a RunningJob has it, on all nodes at once."""
        self._peers.let_end(grace_s)
        super().ask_to_end(grace_s)

    def end(self) -> list[int]:
        """As a RunningJob has it; what the other nodes' processes wrote is added to the log."""
        if self._exit_status == 0:
            await_ends(self._peers, self._others, _AT_SUCCESS_S)
        if self._others:
            self._peers.let_end(0.0)
        left = super().end()
        await_ends(self._peers, self._others, _REPORT_S)
        for node in self._others:
            with contextlib.suppress(OSError), open(self.folder.log_path, "a") as log:
                said = self.folder.node_log_path(node).read_text(errors="replace")
                log.write(f"--- {self._peers.name(node)} ---\n{said}\n")
                self.folder.node_log_path(node).unlink()
        return left

    def told_where(self, rank: int | None) -> str:
        """As a RunningJob has it."""
        return f" on {self._peers.name(rank // self.processes_here)}" if rank is not None and self._others else ""

    def _is_lost(self) -> bool:
        self.lost = next((how for one in self._others if (how := self._peers.loss(one)) is not None), None)
        return self.lost is not None

    def _turns_out_lost(self) -> bool:
        """Whether a node is lost: what it leaves behind is seen before that is."""
        deadline = time.monotonic() + _LOSS_SEEN_S
        while not self._is_lost() and any(self._peers.ended(one) is None for one in self._others):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        return self.lost is not None


def await_ends(peers: Peers, nodes: Sequence[int], wait_s: float) -> None:
    """Until the part of each node that is not lost is over."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and any(peers.ended(one) is None and peers.loss(one) is None for one in nodes):
        time.sleep(_POLL_S)


class Part(NamedTuple):
    """What another node than the first runs of a job."""

    job: SeveralNodesJob
    node: int
    node0_address: str
    port: int  # at which node 0's torchrun is met
    interface: str | None  # by which the nodes reach each other


def run_part(part: Part, run: RunFolder | None, over: Callable[[], bool], grace_s: Callable[[], float]) -> int | None:
    """Run it until it ends by itself or is `over`, when it has the grace to save what it has.

    Nothing of it is left, and its log lies in the job's folder. Returns torchrun's exit status where it ended by itself.
    """
    folder = JobFolder(Path(tempfile.mkdtemp(prefix="dpscope-node-")))
    command = on_node(part.job.command, part.node, part.node0_address, part.port, folder)
    try:
        own = TorchrunJob(command, folder, part.job.threads, run, _gloo_variables(part.interface))
        try:
            how, exit_status = own.wait(_LONGEST_JOB_S, lambda state: None, over)
            if how == "stopped" and grace_s() > 0:
                own.ask_to_end(grace_s())
        finally:
            own.end()
        with contextlib.suppress(OSError):
            part.job.folder.node_log_path(part.node).write_bytes(folder.log_path.read_bytes()[-_LOG_BYTES:])
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)
    return exit_status


def _gloo_variables(interface: str | None) -> dict[str, str]:
    """What gloo is given, unless the user chose: the interface by which the nodes reach each other."""
    return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}
