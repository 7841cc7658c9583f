"""What every node but the first does: its part of each job, as node 0 says, until all is done. Imports torch for its version."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import JobWait, TorchrunJob, end_leftovers, on_node
from dpscope.launch.nodes.connection import Connection
from dpscope.launch.nodes.joining import refusal_reason
from dpscope.launch.nodes.messages import Begin, Clear, Cleared, Dismissed, End, Ended, Joined, Message, ToldToStop
from dpscope.launch.nodes.team import NodeLostError, gloo_variables
from dpscope.profiling.machine.environment import collect_environment
from dpscope.profiling.machine.interfaces import interface_of
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder, RunFolder

_LOG_BYTES = 256 << 10  # of its end
_POLL_S = 0.5
_STOP_S = 60.0  # after a signal: node 0 lets a job end by itself, and then dismisses
_LONGEST_JOB_S = 1e8  # node 0 keeps the time
_SAVING_GRACE_S = 35.0


class Follower:
    """One such node."""

    def __init__(
        self, node: int, out: Path, connection: Connection, leader: str, gpus: int | None, note: Callable[[str], None]
    ) -> None:
        """`leader` is what node 0 is called; `gpus` are those torch can use here, None on the CPU; `note` is told of each job."""
        self._node = node
        self._out = out
        self._connection = connection
        self._leader = leader
        self._gpus = gpus
        self._note = note
        self._stop = StopRequest()
        self._told = False
        self._next: list[Message] = []

    def follow(self) -> int:
        """Do what node 0 says to the end; returns the exit status that it tells.

        Raises NodeLostError where node 0 is lost, DpscopeError where it has nothing to do for this one.
        """
        with self._stop.listening():
            on_gpus = self._gpus is not None
            environment = collect_environment(open_nvml() if on_gpus else None, on_gpus=on_gpus)
            address = self._connection.own_address
            self._connection.send(Joined(environment, address, interface_of(address), self._gpus))
            self._note(f"{self._leader} leads.")
            while True:
                message = self._await()
                if isinstance(message, Dismissed):
                    if message.message:
                        self._note(message.message)
                    return message.exit_status
                if (reason := refusal_reason(message)) is not None:
                    raise DpscopeError(reason)
                if isinstance(message, Clear):
                    end_leftovers(RunFolder(self._out))
                    self._connection.send(Cleared())
                if isinstance(message, Begin):
                    self._run(message)

    def _await(self) -> Message:
        """The next message; raises NodeLostError, or after a signal to which node 0 does not answer."""
        stopped_at_s: float | None = None
        while True:
            if self._next:
                return self._next.pop(0)
            lost = self._connection.lost  # asked first: what it said last may come with its end
            if (message := self._connection.take(_POLL_S)) is not None:
                return message
            if lost is not None:
                raise self._leader_lost()
            self._pass_on_stop()
            if self._stop.requested:
                stopped_at_s = stopped_at_s or time.monotonic()
                if time.monotonic() - stopped_at_s > _STOP_S:
                    return Dismissed(self._stop.exit_status, f"{self._leader} does not respond to the signal to stop.")

    def _run(self, begin: Begin) -> None:
        """This node's part of a job."""
        run = RunFolder(self._out) if begin.in_run else None
        folder = JobFolder(Path(tempfile.mkdtemp(prefix="dpscope-node-")))
        try:
            command = on_node(begin.command, self._node, self._connection.other_address, begin.port, folder)
            variables = gloo_variables(interface_of(self._connection.own_address))
            self._note(f"{begin.title}: started")
            job = TorchrunJob(command, folder, begin.threads, run, variables)
            ended = self._watched(job, begin.job)
            self._connection.send(Ended(begin.job, ended, _end_of(folder.log_path)))
            self._note(f"{begin.title}: ended")
        finally:
            shutil.rmtree(folder.path, ignore_errors=True)
        if self._connection.lost is not None:
            raise self._leader_lost()

    def _watched(self, job: TorchrunJob, number: int) -> int | None:
        """Torchrun's exit status where it ended by itself; nothing of the job is left."""
        end: list[End] = []

        def over() -> bool:
            while (message := self._connection.take()) is not None:
                if isinstance(message, End) and message.job == number:
                    end.append(message)
                else:
                    self._next.append(message)
            self._pass_on_stop()
            return bool(end) or bool(self._next) or self._connection.lost is not None

        try:
            how: JobWait
            how, exit_status = job.wait(_LONGEST_JOB_S, lambda state: None, over)
            grace_s = end[0].grace_s if end else _SAVING_GRACE_S if self._stop.requested else 0.0
            if how == "stopped" and grace_s > 0:
                job.ask_to_end(grace_s)
        finally:
            job.end()
        return exit_status

    def _pass_on_stop(self) -> None:
        if self._stop.requested and not self._told:
            self._told = True
            self._connection.send(ToldToStop(self._stop.signal_number or 0))

    def _leader_lost(self) -> NodeLostError:
        return NodeLostError(
            f"{self._leader} was lost: {self._connection.lost}; to resume, give the same command on all nodes again"
        )


def _end_of(log: Path) -> str:
    """The last of a log, whole lines."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOG_BYTES))
            content = file.read().decode(errors="replace")
    except OSError:
        return ""
    return content if size <= _LOG_BYTES else content.partition("\n")[2]
