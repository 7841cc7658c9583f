"""Nodes that have met: node 0 starts jobs on all of them, watches them and ends them together; the
others run their parts.

Imports no torch.
"""

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from dpscope.launch.jobs.job_outcome import JobWait
from dpscope.launch.jobs.job_queue import JobStarter
from dpscope.launch.jobs.torchrun import Job, TorchrunJob, end_leftovers
from dpscope.launch.nodes.board import (
    Board,
    Node0,
    NodeInfo,
    NodeLostError,
    NodeStart,
    State,
    check_alike,
    found_meeting,
    opened_meeting,
)
from dpscope.profiling.machine.interfaces import free_port, host_at, interface_of
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Environment, Host
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder, RunFolder
from dpscope.profiling.store.shown_text import one_line

_CLEARED_S = 30.0  # ending processes that outlive SIGTERM takes ten
SEEN_WITHIN_S = 10.0  # a network's file system shows a new file of another host late
_LEAVE_S = 5.0  # for the others to read how the command ended, before the store ends with node 0
# in which torchrun ends by itself after another node's: its ranks notice that their peers are gone
_SELF_END_S = 8.0
_REPORT_S = 15.0  # for a node's report on its part of a job that has ended
_AT_SUCCESS_S = 60.0  # the same after success: no node is ended before it has ended by itself
_LOSS_SEEN_S = 17.0  # longer than a node may be silent
_LONGEST_JOB_S = 1e8  # on another node: node 0 keeps the time
_LOG_BYTES = 256 << 10  # of the end of another node's log
_POLL_S = 0.1


def _wait(wait_s: float, over: Callable[[], bool]) -> bool:
    """Wait until it is over; False if that takes longer."""
    deadline_s = time.monotonic() + wait_s
    while not over():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _digest(command: Sequence[str]) -> str:
    """A digest of a job's command without the interpreter's path, which differs between nodes."""
    return hashlib.sha256("\0".join(command[1:]).encode()).hexdigest()


class Team(JobStarter):
    """All nodes, led by this one; starts jobs on one node or on several."""

    def __init__(self, board: Board, start: NodeStart) -> None:
        self.others = sorted(board.states)
        self.count = 1 + len(self.others)
        self._board, self._start = board, start
        self._attempt = 0

    def gather(self) -> None:
        """Wait for all nodes; raises DpscopeError if one does not join, or cannot take part."""
        missing = list(self.others)

        def all_joined() -> bool:
            for node, state in self._board.states.items():
                if state.beat > 0 and (loss := self.loss(node)) is not None:
                    raise DpscopeError(loss)
            for node in [absent for absent in missing if absent in self._board.joined]:
                missing.remove(node)
                self._start.note(f"{self.name(node)} has joined.")
            return not missing

        if not _wait(self._start.wait_s, all_joined):
            raise DpscopeError(
                f"--nodes {self.count}: {', '.join(map(self.name, missing))} did not join within {self._start.wait_s:g} s; start "
                "the command there too, and check that this host can be reached from there and that all nodes share --out"
            )

    @property
    def lost(self) -> str | None:
        return next((loss for node in self.others if (loss := self.loss(node)) is not None), None)

    def loss(self, node: int) -> str | None:
        """The message that a node is lost, with the evidence; None while it is alive."""
        evidence = self._board.lost(node)
        return None if evidence is None else f"{self.name(node)} was lost: {evidence}"

    def name(self, node: int) -> str:
        """Such as ``node 1 (gpu07)``."""
        info = self._board.joined.get(node)
        return f"node {node}" if info is None else f"node {node} ({one_line(info.host.hostname)})"

    def hosts(self, environment: Environment) -> tuple[Host, ...]:
        # node 0's environment is in the manifest
        node0 = msgspec.structs.replace(host_at(0, self._address, environment), environment=None)
        return node0, *(self._board.joined[node].host for node in self.others)

    @property
    def _address(self) -> str:
        return self._board.joined[1].node0_address

    def start(self, job: Job) -> TorchrunJob:
        """Start a job on its nodes; raises NodeLostError if a node is lost."""
        if (lost := self.lost) is not None:
            raise NodeLostError(lost)
        if job.nodes == 1:
            return TorchrunJob(job)
        self.check_gpus([job])
        port, address = free_port(), self._address
        self._begin(job=_digest(job.command), port=port)
        part = replace(job, address=address, port=port)
        return NodesJob(self, self.others[: job.nodes - 1], part, interface_of(address))

    def _begin(self, **changes: Any) -> None:
        self._attempt += 1
        self._board.publish(attempt=self._attempt, must_end=False, **changes)

    def check_gpus(self, jobs: Sequence[Job]) -> None:
        per_node = max((job.per_node for job in jobs if job.nodes > 1), default=0)
        for node, info in self._board.joined.items():
            if info.gpus is not None and info.gpus < per_node:
                raise DpscopeError(
                    f"{self.name(node)} has {counted(info.gpus, 'GPU')} that torch can use, and {per_node} on each node are "
                    f"requested; request {info.gpus} at most, or start the command on nodes that have {per_node}"
                )

    def clear(self) -> None:
        self._begin(job=None)
        self.await_ends(self.others, _CLEARED_S)

    def end_on_others(self) -> None:
        """Have the other nodes end the job."""
        self._board.publish(must_end=True)

    def ended(self, node: int) -> bool:
        """Whether a node's part of the job is over."""
        state = self._board.states[node]
        return state.attempt == self._attempt and state.ended

    def failed(self, node: int) -> bool:
        """Whether its part is over, and did not end well by itself."""
        return self.ended(node) and self._board.states[node].exit_status != 0

    def await_ends(self, nodes: Sequence[int], wait_s: float) -> None:
        """Wait until the parts of these nodes are over, lost nodes excepted."""
        _wait(wait_s, lambda: all(self.ended(node) or self.loss(node) for node in nodes))

    def dismiss(self, exit_status: int, message: str = "") -> None:
        self._board.publish(left=message, exit_status=exit_status)
        states, joined = self._board.states, self._board.joined
        _wait(
            _LEAVE_S,
            lambda: all(states[node].left is not None or self.loss(node) for node in joined),
        )


class NodesJob(TorchrunJob):
    """Node 0's part of a job over several nodes, and the reports of the `others` on theirs."""

    def __init__(self, team: Team, others: Sequence[int], job: Job, interface: str | None) -> None:
        self._team, self._others = team, others
        self._failed_at_s: float | None = None  # when another node's torchrun failed
        self._exit_status: int | None = None
        super().__init__(job, interface)

    def wait(
        self,
        timeout_s: float,
        on_progress: Callable[[str | None], None],
        stop_requested: Callable[[], bool],
    ) -> tuple[JobWait, int | None]:
        """Wait for all nodes: once a node's torchrun has failed, the others have _SELF_END_S to end
        by themselves.
        """

        def over() -> bool:
            if self._failed_at_s is None and any(map(self._team.failed, self._others)):
                self._failed_at_s = time.monotonic()
            failed_at_s = self._failed_at_s
            failed = failed_at_s is not None and time.monotonic() - failed_at_s > _SELF_END_S
            return stop_requested() or self._is_lost() or failed

        how, self._exit_status = super().wait(timeout_s, on_progress, over)
        if how == "timed_out" or self._exit_status == 0:
            return how, self._exit_status
        if how == "stopped" and stop_requested():
            return how, None
        # A loss is noticed later than its consequences.
        _wait(_LOSS_SEEN_S, lambda: self._is_lost() or all(map(self._team.ended, self._others)))
        if self._is_lost():
            return "lost", None
        return "exited", self._exit_status or 1

    def end(self) -> list[int]:
        """End the job on all nodes, and add the output of the other nodes' processes to the log."""
        if self._exit_status == 0:
            self._team.await_ends(self._others, _AT_SUCCESS_S)
        self._team.end_on_others()
        left = super().end()
        self._team.await_ends(self._others, _REPORT_S)
        for node in self._others:
            with contextlib.suppress(OSError), open(self.folder.log_path, "a") as log:
                text = self.folder.node_log_path(node).read_text(errors="replace")
                log.write(f"--- {self._team.name(node)} ---\n{text}\n")
                self.folder.node_log_path(node).unlink()
        return left

    def rank_location(self, rank: int | None) -> str:
        if rank is None:
            return ""
        return f" on {self._team.name(rank // self.processes_per_node)}"

    def _is_lost(self) -> bool:
        losses = [loss for node in self._others if (loss := self._team.loss(node)) is not None]
        self.lost = losses[0] if losses else None
        return bool(losses)


@contextmanager
def led(start: NodeStart, on_gpus: bool) -> Iterator[Team]:
    """Node 0, once all nodes have joined; a DpscopeError of the block dismisses them with its
    message.
    """
    with opened_meeting(start, on_gpus) as board:
        team = Team(board, start)
        try:
            team.gather()
            yield team
        except DpscopeError as error:
            team.dismiss(error.exit_status, f"Node 0: {error}")
            raise


def follow(start: NodeStart, describe: Callable[[Node0], NodeInfo]) -> int:
    """Any other node: look for node 0 and take part until the end; returns node 0's exit status.

    `describe` gives this node. Raises NodeLostError if node 0 is lost, DpscopeError if it is not
    found, was started otherwise, or starts a job that is not planned.
    """
    node0 = found_meeting(start)
    board, reason = node0.board, ""
    try:
        info = describe(node0)
        check_alike(start, info, node0.meeting)
        with board.stop.listening():
            board.publish(info=info)
            return _Follower(start, info, board, node0.meeting.hostname).follow()
    except DpscopeError as error:
        reason = str(error)
        raise
    finally:
        board.publish(left=reason)
        board.close()


@dataclass(frozen=True)
class _Follower:
    """A node that runs its part of each planned job that node 0, on the host `leader`, starts."""

    start: NodeStart
    info: NodeInfo
    board: Board
    leader: str

    def follow(self) -> int:
        done = 0
        while (state := self.board.states[0]).left is None:
            if (lost := self.board.lost(0)) is not None:
                raise NodeLostError(f"node 0 ({self.leader}) was lost: {lost}")
            if state.attempt != done:
                done = state.attempt
                self.board.publish(attempt=done, ended=False)
                self.board.publish(ended=True, exit_status=self._run(state))
            time.sleep(_POLL_S)
        if state.left:
            self.start.note(one_line(state.left))
        return state.exit_status or 0

    def _run(self, begun: State) -> int | None:
        """Run this node's part of an attempt until it ends by itself or node 0 ends it.

        Returns torchrun's exit status if it ended by itself; leaves no process, and its log in the
        job's folder.
        """
        if begun.job is None:
            end_leftovers(RunFolder(self.start.out))
            return 0
        job, node = self._planned(begun.job), self.info.host.node
        if node >= job.nodes:
            return 0

        def over() -> bool:
            now = self.board.states[0]
            ended = now.attempt != begun.attempt or now.must_end or now.left is not None
            return ended or self.board.lost(0) is not None

        self.start.note(f"{job.name}: started")
        with tempfile.TemporaryDirectory(
            prefix="dpscope-node-", ignore_cleanup_errors=True
        ) as path:
            folder, address = JobFolder(Path(path)), self.info.node0_address
            part = replace(job, node=node, address=address, port=begun.port, folder=folder)
            running = TorchrunJob(part, self.info.host.interface)
            try:
                _, exit_status = running.wait(_LONGEST_JOB_S, lambda state: None, over)
            finally:
                running.end()
            with contextlib.suppress(OSError):
                log = folder.log_path.read_bytes()[-_LOG_BYTES:]
                job.folder.node_log_path(node).write_bytes(log)
        self.start.note(f"{job.name}: ended")
        return exit_status

    def _planned(self, digest: str) -> Job:
        """The job that node 0 means, as this node derives it."""
        deadline_s = time.monotonic() + SEEN_WITHIN_S
        while time.monotonic() < deadline_s:
            for job in self.start.plan():
                if _digest(job.command) == digest:
                    return job
            time.sleep(_POLL_S)
        raise DpscopeError(
            f"--out {self.start.out}: node 0 began a job that node {self.info.host.node} does not find in the plan; check "
            "that all nodes share the folder"
        )
