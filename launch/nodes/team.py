"""Node 0 and the nodes that have joined it: starts jobs on all of them, watches them and ends them together. Imports no torch."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dpscope.launch.jobs.attended_job import JobStarter, SeveralNodesJob
from dpscope.launch.jobs.job_outcome import JobWait
from dpscope.launch.jobs.torchrun import TorchrunJob, command_nodes, on_node, processes_on_a_node
from dpscope.launch.nodes.board import Board, NodeLostError
from dpscope.launch.nodes.meeting import NOTE_EVERY_S
from dpscope.profiling.machine.interfaces import free_port, host_at, interface_of
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Environment, Host
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder, RunFolder

_CLEARED_S = 30.0  # ending processes that outlive SIGTERM takes ten
_LEAVE_S = 5.0  # for the others to read how the command ended, before the store ends with node 0
_SELF_END_S = 8.0  # in which torchrun ends by itself after another node's: its ranks notice that their peers are gone
_REPORT_S = 15.0  # for a node's report on its part of a job that has ended
_AT_SUCCESS_S = 60.0  # the same after success: no node is ended before it has ended by itself
_LOSS_SEEN_S = 17.0  # longer than a node may be silent
_POLL_S = 0.1


class Team(JobStarter):
    """All nodes, led by this one; starts jobs on one node or on several."""

    def __init__(self, board: Board, plan: Callable[[], Sequence[SeveralNodesJob]]) -> None:
        """`plan` reads the jobs planned over several nodes from the run folder."""
        self.others = sorted(board.states)
        self.count = 1 + len(self.others)
        self._board = board
        self._plan = plan
        self._attempt = 0
        self._stopping = False

    def gather(self, note: Callable[[str], None], wait_s: float) -> None:
        """Wait for all nodes; raises DpscopeError if one does not join, or cannot take part."""
        began_s = noted_s = time.monotonic()
        joined: set[int] = set()
        while len(joined) < len(self.others):
            self.relay_stops()
            for node in (one for one in self.others if self._board.states[one].beat > 0):
                if (loss := self._board.states[node].left or self.loss(node)) is not None:
                    raise DpscopeError(loss)
                if node in self._board.joined and node not in joined:
                    joined.add(node)
                    note(f"{self.name(node)} has joined.")
            now_s = time.monotonic()
            missing = ", ".join(str(one) for one in self.others if one not in joined)
            if now_s - began_s > wait_s:
                here = ", ".join(self.name(node) for node in (0, *sorted(joined)))
                raise DpscopeError(
                    f"--nodes {self.count}: node{'s' * (',' in missing)} {missing} did not join within {wait_s:g} s ({here} "
                    f"{'are' if joined else 'is'} here); start the command there too, and check that this host can be reached "
                    "from there and that all nodes share --out"
                )
            if now_s - noted_s > NOTE_EVERY_S:
                noted_s = now_s
                note(f"Waiting for node{'s' * (',' in missing)} {missing}, {now_s - began_s:.0f} s of {wait_s:g} s.")
            time.sleep(_POLL_S)

    @property
    def lost(self) -> str | None:
        return next((loss for one in self.others if (loss := self.loss(one)) is not None), None)

    def loss(self, node: int) -> str | None:
        """The message that a node is lost, with the evidence; None while it is alive."""
        evidence = self._board.lost(node)
        return None if evidence is None else f"{self.name(node)} was lost: {evidence}"

    def name(self, node: int) -> str:
        """Such as ``node 1 (gpu07)``."""
        hosts = {0: socket.gethostname()} | {one: info.host.hostname for one, info in self._board.joined.items()}
        return f"node {node} ({hosts.get(node, 'not joined')})"

    def hosts(self, environment: Environment) -> tuple[Host, ...]:
        node0 = msgspec.structs.replace(
            host_at(0, self._address, environment), environment=None
        )  # it is the manifest's
        return node0, *(self._board.joined[node].host for node in self.others)

    @property
    def _address(self) -> str:
        return self._board.joined[1].node0_address

    def start(self, command: Sequence[str], folder: JobFolder, threads: int, run: RunFolder | None) -> TorchrunJob:
        """Start a job on its nodes; raises NodeLostError if a node is lost."""
        if (lost := self.lost) is not None:
            raise NodeLostError(lost)
        if (nodes := command_nodes(command)) == 1:
            return NodesJob(command, folder, threads, run, None, self, [])
        self.check_gpus(processes_on_a_node(command))
        plan, port, address = self._plan(), free_port(), self._address
        index = [job.command for job in plan].index(tuple(command))
        self._begin(job=index, digest=plan[index].digest, port=port)
        part = on_node(command, 0, address, port, folder)
        return NodesJob(part, folder, threads, run, interface_of(address), self, self.others[: nodes - 1])

    def _begin(self, **changes: Any) -> None:
        self._attempt += 1
        self._board.publish(attempt=self._attempt, grace_s=None, **changes)

    def check_gpus(self, per_node: int) -> None:
        for node in self.others:
            has = self._board.joined[node].gpus
            if has is not None and has < per_node:
                raise DpscopeError(
                    f"{self.name(node)} has {counted(has, 'GPU')} that torch can use, and {per_node} on each node are requested; "
                    f"request {has} at most, or start the command on nodes that have {per_node}"
                )

    def clear(self) -> None:
        self._begin(job=None)
        self.await_ends(self.others, _CLEARED_S)

    def let_end(self, grace_s: float) -> None:
        """Have the other nodes end the job, which has `grace_s` to end by itself."""
        self._board.publish(grace_s=grace_s)

    def ended(self, node: int) -> tuple[int | None] | None:
        """torchrun's exit status once a node's part of the job is over; None within if it did not end by itself."""
        state = self._board.states[node]
        return (state.exit_status,) if state.attempt == self._attempt and state.ended else None

    def await_ends(self, nodes: Sequence[int], wait_s: float) -> None:
        """Wait until the parts of these nodes are over, lost nodes excepted."""
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and any(self.ended(one) is None and self.loss(one) is None for one in nodes):
            time.sleep(_POLL_S)

    def relay_stops(self) -> None:
        """If another node was requested to stop, send this process the same signal, once."""
        numbers = {state.signal for state in self._board.states.values()}
        requested = numbers & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        if requested and not self._stopping:
            self._stopping = True
            os.kill(os.getpid(), requested.pop())

    def dismiss(self, exit_status: int, message: str = "") -> None:
        self._board.publish(left=message, exit_status=exit_status)
        deadline = time.monotonic() + _LEAVE_S
        while time.monotonic() < deadline and any(
            self._board.states[one].left is None and self.loss(one) is None for one in self._board.joined
        ):
            time.sleep(_POLL_S)


class NodesJob(TorchrunJob):
    """Node 0's part of a job, and the reports of the `others` on theirs; a job of node 0 alone has no others."""

    def __init__(
        self,
        command: Sequence[str],
        folder: JobFolder,
        threads: int,
        run: RunFolder | None,
        interface: str | None,
        team: Team,
        others: Sequence[int],
    ) -> None:
        self._team = team
        self._others = others
        self._failed_at_s: float | None = None  # when another node's torchrun failed
        self._exit_status: int | None = None
        super().__init__(command, folder, threads, run, interface)

    def wait(
        self, timeout_s: float, on_progress: Callable[[str | None], None], stop_requested: Callable[[], bool]
    ) -> tuple[JobWait, int | None]:
        """Wait for all nodes: once a node's torchrun has failed, the others have _SELF_END_S to end by themselves."""

        def over() -> bool:
            self._team.relay_stops()
            if self._failed_at_s is None and any(self._team.ended(one) not in (None, (0,)) for one in self._others):
                self._failed_at_s = time.monotonic()
            failed = self._failed_at_s is not None and time.monotonic() - self._failed_at_s > _SELF_END_S
            return stop_requested() or self._is_lost() or failed

        how, self._exit_status = super().wait(timeout_s, on_progress, over)
        if how == "stopped" and stop_requested():
            return how, None
        if how != "timed_out" and self._exit_status != 0 and self._turns_out_lost():
            return "lost", None
        return ("exited", 1) if how == "stopped" else (how, self._exit_status)

    def ask_to_end(self, grace_s: float) -> None:
        """Ask all nodes at once."""
        self._team.let_end(grace_s)
        super().ask_to_end(grace_s)

    def end(self) -> list[int]:
        """End the job on all nodes, and add the output of the other nodes' processes to the log."""
        if self._exit_status == 0:
            self._team.await_ends(self._others, _AT_SUCCESS_S)
        if self._others:
            self._team.let_end(0.0)
        left = super().end()
        self._team.await_ends(self._others, _REPORT_S)
        for node in self._others:
            with contextlib.suppress(OSError), open(self.folder.log_path, "a") as log:
                text = self.folder.node_log_path(node).read_text(errors="replace")
                log.write(f"--- {self._team.name(node)} ---\n{text}\n")
                self.folder.node_log_path(node).unlink()
        return left

    def rank_location(self, rank: int | None) -> str:
        return f" on {self._team.name(rank // self.processes_per_node)}" if rank is not None and self._others else ""

    def _is_lost(self) -> bool:
        self.lost = next((loss for one in self._others if (loss := self._team.loss(one)) is not None), None)
        return self.lost is not None

    def _turns_out_lost(self) -> bool:
        """Whether a node is lost, which is noticed later than the consequences of its loss."""
        deadline = time.monotonic() + _LOSS_SEEN_S
        while not self._is_lost() and any(self._team.ended(one) is None for one in self._others):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        return self.lost is not None
