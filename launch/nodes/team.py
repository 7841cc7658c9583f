"""Node 0 and the nodes that have joined it: jobs started on all of them, watched together, ended together. Imports no torch."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Literal

from dpscope.launch.jobs.starting import RunningJob
from dpscope.launch.jobs.torchrun import JobWait, TorchrunJob, command_nodes, on_node, processes_on_a_node
from dpscope.launch.nodes.meeting import JoinedNode, node_name
from dpscope.launch.nodes.messages import Begin, Clear, Cleared, Dismissed, End, Ended, Message, ToldToStop
from dpscope.profiling.machine.interfaces import free_port, interface_of
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Environment, Host
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder, RunFolder

OWN_END_S = 8.0  # in which torchrun ends by itself once another node's has: its ranks see that their peers are gone
_REPORT_S = 15.0  # a node's report on its part of a job that has ended
_AT_SUCCESS_S = 60.0  # the same of a job that ended well: nothing is ended before it has ended by itself
_CLEARED_S = 30.0  # ending what outlives SIGTERM takes ten
_POLL_S = 0.1


class NodeLostError(DpscopeError):
    """A node of a command is gone."""

    exit_status = 1


class Team:
    """All nodes, led by this one. As a JobStarter it starts what is planned on one node here, and the rest on as many."""

    def __init__(self, hostname: str, members: Sequence[JoinedNode]) -> None:
        self.hostname = hostname
        self.members = tuple(members)
        self._job = 0

    @property
    def count(self) -> int:
        """Nodes, this one included."""
        return 1 + len(self.members)

    @property
    def lost(self) -> str | None:
        """The first node that is gone, and how that showed."""
        gone = (
            f"{one.name} was lost: {one.connection.lost}" for one in self.members if one.connection.lost is not None
        )
        return next(gone, None)

    def hosts(self, environment: Environment) -> tuple[Host, ...]:
        """All nodes as a manifest has them; `environment` is this one's, which stands elsewhere."""
        first = self.members[0].connection
        own = Host(0, self.hostname, first.own_address, *_network(interface_of(first.own_address), environment))
        others = (
            Host(
                member.node,
                member.hostname,
                member.joined.address,
                *_network(member.joined.interface, member.joined.environment),
                member.joined.environment,
            )
            for member in self.members
            if member.joined is not None
        )
        return (own, *others)

    def start(self, command: Sequence[str], folder: JobFolder, threads: int, run: RunFolder | None) -> RunningJob:
        """As JobStarter has it; raises NodeLostError where a node is gone."""
        if self.lost is not None:
            raise NodeLostError(f"{self.lost}; to resume, give the same command on all nodes again")
        nodes = command_nodes(command)
        self.check_gpus(processes_on_a_node(command) if nodes > 1 else 0)
        if nodes == 1:
            return _OnNode0(command, folder, threads, run, self)
        self._job += 1
        members = self.members[: nodes - 1]
        address, port = members[0].connection.own_address, free_port()
        for member in members:
            member.connection.send(Begin(self._job, str(folder.path), tuple(command), threads, port, run is not None))
        own = interface_of(address)
        local = TorchrunJob(on_node(command, 0, address, port, folder), folder, threads, run, gloo_variables(own))
        return NodesJob(local, self._job, members, self)

    def check_alike(self, kind: Literal["cuda", "cpu"]) -> None:
        """Raise DpscopeError where another node runs on the CPU and this one on GPUs, or the other way round."""
        for member in self.members:
            on_gpus = member.joined is not None and member.joined.gpus is not None
            if on_gpus != (kind == "cuda"):
                own = node_name(0, self.hostname)
                (has, lacks) = (member.name, own) if on_gpus else (own, member.name)
                raise DpscopeError(
                    f"--device: {has} has GPUs and {lacks} has none; start the command on nodes that all have them, or give "
                    "--device cpu"
                )

    def check_gpus(self, per_node: int) -> None:
        """As JobStarter has it."""
        for member in self.members:
            has = None if member.joined is None else member.joined.gpus
            if has is not None and has < per_node:
                raise DpscopeError(
                    f"{member.name} has {counted(has, 'GPU')} that torch can use, and {per_node} on each node are asked for; "
                    f"ask for {has} at most, or start the command on nodes that have {per_node}"
                )

    def clear(self) -> None:
        """As JobStarter has it."""
        for member in self.members:
            member.connection.send(Clear())
        deadline = time.monotonic() + _CLEARED_S
        for member in self.members:
            said: Message | None = None
            while not isinstance(said, Cleared) and time.monotonic() < deadline and member.connection.lost is None:
                said = member.connection.take(_POLL_S)
                if isinstance(said, ToldToStop):
                    os.kill(os.getpid(), said.signal)

    def relay_stops(self) -> None:
        """A node that was told to stop has all of them stop: this process gets the same signal."""
        for member in self.members:
            message = member.connection.take()
            if isinstance(message, ToldToStop):
                os.kill(os.getpid(), message.signal)

    def dismiss(self, exit_status: int, message: str = "") -> None:
        """All is done."""
        for member in self.members:
            member.connection.send(Dismissed(exit_status, message))


class _OnNode0(TorchrunJob):
    """A job of node 0 alone, while the others wait and may be lost or told to stop."""

    def __init__(
        self, command: Sequence[str], folder: JobFolder, threads: int, run: RunFolder | None, team: Team
    ) -> None:
        self._team = team
        super().__init__(command, folder, threads, run)

    def wait(
        self, timeout_s: float, on_progress: Callable[[str | None], None], stop_requested: Callable[[], bool]
    ) -> tuple[JobWait, int | None]:
        """As a RunningJob has it; that a node is lost ends no job that it has no part in."""

        def told() -> bool:
            self._team.relay_stops()
            return stop_requested()

        return super().wait(timeout_s, on_progress, told)


class NodesJob:
    """A torchrun on each of some nodes, together one job."""

    def __init__(self, local: TorchrunJob, number: int, members: Sequence[JoinedNode], team: Team) -> None:
        self.lost: str | None = None
        self.memory_kills_before = local.memory_kills_before
        self._local = local
        self._number = number
        self._members = tuple(members)
        self._team = team
        self._ended: dict[int, Ended] = {}
        self._failed_at_s: float | None = None  # when the first node's torchrun failed
        self._exit_status: int | None = None

    @property
    def folder(self) -> JobFolder:
        """Where it writes."""
        return self._local.folder

    def wait(
        self, timeout_s: float, on_progress: Callable[[str | None], None], stop_requested: Callable[[], bool]
    ) -> tuple[JobWait, int | None]:
        """As a RunningJob has it; once a node's torchrun has failed the others' have OWN_END_S to see it."""

        def over() -> bool:
            self._take()
            failed = self._failed_at_s is not None and time.monotonic() - self._failed_at_s > OWN_END_S
            return stop_requested() or self._lost_member() is not None or failed

        how, self._exit_status = self._local.wait(timeout_s, on_progress, over)
        if how == "stopped" and stop_requested():
            return how, None
        if how != "timed_out" and self._exit_status != 0 and self._lost_within(2.0):
            return "lost", None
        return ("exited", 1) if how == "stopped" else (how, self._exit_status)

    def ask_to_end(self, grace_s: float) -> None:
        """As a RunningJob has it, on all nodes at once."""
        self._tell_end(grace_s)
        self._local.ask_to_end(grace_s)

    def end(self) -> list[int]:
        """As a RunningJob has it; what the other nodes' processes said is added to the log."""
        if self._exit_status == 0:
            self._wait_for_reports(_AT_SUCCESS_S)
        self._tell_end(0.0)
        left = self._local.end()
        self._wait_for_reports(_REPORT_S)
        with contextlib.suppress(OSError), open(self.folder.log_path, "a") as log:
            for member in self._members:
                if (ended := self._ended.get(member.node)) is not None:
                    log.write(f"--- {member.name} ---\n{ended.log}\n")
        return left

    def told_where(self, rank: int | None) -> str:
        """As a RunningJob has it."""
        if rank is None:
            return ""
        node = rank // self._local.processes_here
        name = node_name(0, self._team.hostname) if node == 0 else self._members[node - 1].name
        return f" on {name}"

    def _take(self) -> None:
        for member in self._members:
            while (message := member.connection.take()) is not None:
                if isinstance(message, ToldToStop):
                    os.kill(os.getpid(), message.signal or signal.SIGTERM)
                elif isinstance(message, Ended) and message.job == self._number:
                    self._ended[member.node] = message
                    if message.exit_status != 0 and self._failed_at_s is None:
                        self._failed_at_s = time.monotonic()

    def _lost_member(self) -> str | None:
        for member in self._members:
            if member.connection.lost is not None:
                self.lost = f"{member.name} was lost: {member.connection.lost}"
                return self.lost
        return None

    def _lost_within(self, wait_s: float) -> bool:
        """Whether a node turns out to be lost: what it leaves behind may be seen before that is."""
        deadline = time.monotonic() + wait_s
        while (lost := self._lost_member()) is None and time.monotonic() < deadline and not self._ended:
            time.sleep(_POLL_S)
            self._take()
        return lost is not None

    def _tell_end(self, grace_s: float) -> None:
        for member in self._members:
            if member.node not in self._ended:
                member.connection.send(End(self._number, grace_s))

    def _wait_for_reports(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            self._take()
            if all(one.node in self._ended or one.connection.lost is not None for one in self._members):
                return
            time.sleep(_POLL_S)


def gloo_variables(interface: str | None) -> dict[str, str]:
    """What a job over several nodes has gloo told unless the user has: the interface by which the nodes reach each other.

    By itself gloo takes the address that the host's own name has, which on many systems is a loopback one.
    """
    return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}


def _network(interface: str | None, environment: Environment) -> tuple[str | None, str]:
    """The interface that gloo uses, and who chose it."""
    own = environment.settings.get("GLOO_SOCKET_IFNAME")
    return (own, "GLOO_SOCKET_IFNAME") if own is not None else (interface, "the route between the nodes")
