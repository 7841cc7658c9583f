"""Node 0 and the nodes that have joined it: jobs started on all of them, watched together, ended together. Imports no torch."""

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dpscope.launch.jobs.nodes_job import NodeLostError, NodesJob, await_ends
from dpscope.launch.jobs.starting import RunningJob, SeveralNodesJob
from dpscope.launch.jobs.torchrun import command_nodes, on_node, processes_on_a_node
from dpscope.launch.nodes.board import Board
from dpscope.launch.nodes.meeting import NOTE_EVERY_S
from dpscope.profiling.machine.interfaces import free_port, host_at, interface_of
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Environment, Host
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder, RunFolder

_CLEARED_S = 30.0  # ending what outlives SIGTERM takes ten
_LEAVE_S = 5.0  # for the others to read how the command ended, before the store ends with node 0
_POLL_S = 0.1


class Team:
    """All nodes, led by this one. A JobStarter for what is planned on one node or on several, and the Peers of each job."""

    def __init__(self, board: Board, plan: Callable[[], Sequence[SeveralNodesJob]]) -> None:
        """`plan` reads from the run folder what is planned over several nodes."""
        self.others = sorted(board.states)
        self.count = 1 + len(self.others)
        self._board = board
        self._plan = plan
        self._attempt = 0
        self._stopping = False

    def gather(self, note: Callable[[str], None], wait_s: float) -> None:
        """Wait for all; raises DpscopeError where one does not come, or cannot take part."""
        began_s = noted_s = time.monotonic()
        joined: set[int] = set()
        while len(joined) < len(self.others):
            self.relay_stops()
            for node in (one for one in self.others if self._board.states[one].beat > 0):
                if (loss := self._board.states[node].left or self.loss(node)) is not None:
                    raise DpscopeError(loss)
                if node in self._board.here and node not in joined:
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
        how = self._board.lost(node)
        return None if how is None else f"{self.name(node)} was lost: {how}"

    def name(self, node: int) -> str:
        hosts = {0: socket.gethostname()} | {one: here.host.hostname for one, here in self._board.here.items()}
        return f"node {node} ({hosts.get(node, 'not joined')})"

    def hosts(self, environment: Environment) -> tuple[Host, ...]:
        """As JobStarter has it; the manifest has this one's environment elsewhere."""
        own = msgspec.structs.replace(host_at(0, self._address, environment), environment=None)
        return own, *(self._board.here[node].host for node in self.others)

    @property
    def _address(self) -> str:
        return self._board.here[1].node0_address

    def start(self, command: Sequence[str], folder: JobFolder, threads: int, run: RunFolder | None) -> RunningJob:
        """As JobStarter has it; raises NodeLostError where a node is gone."""
        if (lost := self.lost) is not None:
            raise NodeLostError(lost)
        if (nodes := command_nodes(command)) == 1:
            return NodesJob(command, folder, threads, run, None, self, [])
        self.check_gpus(processes_on_a_node(command))
        plan, port, address = self._plan(), free_port(), self._address
        index = [job.command for job in plan].index(tuple(command))
        self._begin(job=index, digest=plan[index].digest, port=port)
        own = on_node(command, 0, address, port, folder)
        return NodesJob(own, folder, threads, run, interface_of(address), self, self.others[: nodes - 1])

    def _begin(self, **what: Any) -> None:
        self._attempt += 1
        self._board.tell(attempt=self._attempt, grace_s=None, **what)

    def check_gpus(self, per_node: int) -> None:
        for node in self.others:
            has = self._board.here[node].gpus
            if has is not None and has < per_node:
                raise DpscopeError(
                    f"{self.name(node)} has {counted(has, 'GPU')} that torch can use, and {per_node} on each node are asked for; "
                    f"ask for {has} at most, or start the command on nodes that have {per_node}"
                )

    def clear(self) -> None:
        self._begin(job=None)
        await_ends(self, self.others, _CLEARED_S)

    def let_end(self, grace_s: float) -> None:
        self._board.tell(grace_s=grace_s)

    def ended(self, node: int) -> tuple[int | None] | None:
        state = self._board.states[node]
        return (state.exit_status,) if state.attempt == self._attempt and state.ended else None

    def relay_stops(self) -> None:
        """As Peers has it: this process gets the same signal, once."""
        asked = {state.signal for state in self._board.states.values()} & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        if asked and not self._stopping:
            self._stopping = True
            os.kill(os.getpid(), asked.pop())

    def dismiss(self, exit_status: int, message: str = "") -> None:
        self._board.tell(left=message, exit_status=exit_status)
        deadline = time.monotonic() + _LEAVE_S
        while time.monotonic() < deadline and any(
            self._board.states[one].left is None and self.loss(one) is None for one in self._board.here
        ):
            time.sleep(_POLL_S)
