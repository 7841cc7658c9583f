"""Nodes that have met: node 0 starts jobs on all of them, watches them and ends them together; the
others run their parts.

Imports no torch.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec

from dpscope.launch.jobs.job_outcome import JobWait
from dpscope.launch.jobs.job_queue import JobStarter
from dpscope.launch.jobs.torchrun import Job, TorchrunJob
from dpscope.launch.nodes.board import (
    Board,
    NodeInfo,
    NodeLostError,
    NodeStart,
    State,
    found_board,
    is_shared,
    opened_board,
)
from dpscope.profiling.machine.interfaces import free_port, host_at, interface_of
from dpscope.profiling.records.run import Environment, Host
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.shown_text import one_line

SEEN_WITHIN_S = 10.0  # a network's file system shows a new file of another host late
_LEAVE_S = 5.0  # for the others to read how the command ended, before the store ends with node 0
# After a node's torchrun has failed the others notice that their peers are gone, and a node that is
# silent is found lost: who failed first is known only then.
_CAUSE_KNOWN_S = 17.0
_ENDED_S = 60.0  # for the other nodes to end their parts of a job
_POLL_S = 0.1


def _wait(wait_s: float, over: Callable[[], bool]) -> bool:
    """Wait until it is over; False if that takes longer."""
    deadline_s = time.monotonic() + wait_s
    while not over():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


class Team(JobStarter):
    """All nodes, led by this one; starts jobs on one node or on several."""

    def __init__(self, board: Board, start: NodeStart, terms: Mapping[str, str]) -> None:
        """`terms` of the command must be the same on all nodes."""
        self.others = sorted(board.states)
        self.count = 1 + len(self.others)
        self._board = board
        self._start = start
        self._terms = terms
        self._attempt = 0

    def gather(self) -> None:
        """Wait for all nodes; raises DpscopeError if one does not join, or cannot take part."""

        def all_joined() -> bool:
            if (lost := self.lost) is not None:
                raise DpscopeError(lost)
            return len(self._board.joined) == len(self.others)

        if not _wait(self._start.wait_s, all_joined):
            missing = [self.name(node) for node in self.others if node not in self._board.joined]
            raise DpscopeError(
                f"--nodes {self.count}: {', '.join(missing)} did not join within {self._start.wait_s:g} s; start the command "
                "there too, and check that this host can be reached from there"
            )
        for node, info in self._board.joined.items():
            for name in dict.fromkeys((*self._terms, *info.terms)):
                here = self._terms.get(name, "unset")
                there = info.terms.get(name, "unset")
                if here != there:
                    raise DpscopeError(
                        f"{self.name(node)} was started with {name} {there}, node 0 with {here}: give the same command, of the "
                        "same version, on all nodes, which must all have GPUs or run on the CPU"
                    )

    @property
    def lost(self) -> str | None:
        for node in self.others:
            if (evidence := self._board.lost(node)) is not None:
                return f"{self.name(node)} was lost: {evidence}"
        return None

    def name(self, node: int) -> str:
        """Such as ``node 1 (gpu07)``."""
        info = self._board.joined.get(node)
        return f"node {node}" if info is None else f"node {node} ({one_line(info.host.hostname)})"

    def hosts(self, environment: Environment) -> tuple[Host, ...]:
        infos = [self._board.joined[node] for node in self.others]
        node0 = host_at(0, infos[0].node0_address, environment)
        # node 0's environment is in the manifest
        node0 = msgspec.structs.replace(node0, environment=None)
        return node0, *(info.host for info in infos)

    def start(self, job: Job) -> TorchrunJob:
        """Start a job on its nodes; raises NodeLostError if a node is lost."""
        if (lost := self.lost) is not None:
            raise NodeLostError(lost)
        if job.nodes == 1:
            return TorchrunJob(job)
        port = free_port()
        address = self._board.joined[1].node0_address
        self._attempt += 1
        self._board.publish(attempt=self._attempt, job=str(job.folder.path), port=port)
        part = replace(job, address=address, port=port)
        return NodesJob(self, part, interface_of(address))

    def end_on_others(self) -> None:
        """Have the other nodes end the job."""
        self._board.publish(job=None)

    @property
    def ended(self) -> bool:
        """Whether the job is over on all other nodes."""
        return all(state.attempt == self._attempt for state in self._board.states.values())

    @property
    def failed(self) -> bool:
        """Whether it is over on one of them and did not end well by itself."""
        ended = [node for node in self._board.states.values() if node.attempt == self._attempt]
        return any(state.exit_status != 0 for state in ended)

    def dismiss(self, exit_status: int, message: str = "") -> None:
        board = self._board
        board.publish(left=message, exit_status=exit_status)
        _wait(_LEAVE_S, lambda: all(board.states[node].left is not None for node in board.joined))


class NodesJob(TorchrunJob):
    """Node 0's part of a job over several nodes, which the others report to have ended."""

    def __init__(self, team: Team, job: Job, interface: str | None) -> None:
        self._team = team
        self._succeeded = False
        super().__init__(job, interface)

    def wait(
        self,
        timeout_s: float,
        on_progress: Callable[[str | None], None],
        stop_requested: Callable[[], bool],
    ) -> tuple[JobWait, int | None]:
        """Wait for all nodes; after a failure, until it is known which node's it was."""

        def stopped() -> bool:
            self.lost = self._team.lost
            return stop_requested() or self.lost is not None

        team = self._team
        how, exit_status = super().wait(timeout_s, on_progress, lambda: stopped() or team.failed)
        self._succeeded = exit_status == 0
        if self._succeeded or how == "timed_out" or stop_requested():
            return how, exit_status
        if how == "stopped":
            super().wait(_CAUSE_KNOWN_S, on_progress, stopped)
        _wait(_CAUSE_KNOWN_S, lambda: stopped() or team.ended)
        return ("exited", exit_status or 1) if self.lost is None else ("lost", None)

    def end(self) -> list[int]:
        """End the job on all nodes, and add the output of the other nodes' processes to the log."""
        team = self._team
        if not self._succeeded:
            team.end_on_others()
        left = super().end()
        _wait(_ENDED_S, lambda: team.ended or team.lost is not None)
        for node in team.others:
            folder = self.folder.of_node(node)
            with contextlib.suppress(OSError), open(self.folder.log_path, "a") as log:
                text = folder.log_path.read_text(errors="replace")
                log.write(f"--- {team.name(node)} ---\n{text}\n")
                folder.log_path.unlink()
                folder.path.rmdir()
        return left

    def rank_location(self, rank: int | None) -> str:
        if rank is None:
            return ""
        return f" on {self._team.name(rank // self.processes_per_node)}"


@contextmanager
def led(start: NodeStart, terms: Mapping[str, str]) -> Iterator[Team]:
    """Node 0, once all have joined; a DpscopeError of the block dismisses the others with it."""
    with opened_board(start) as board:
        team = Team(board, start, terms)
        try:
            team.gather()
            yield team
        except DpscopeError as error:
            team.dismiss(error.exit_status, f"Node 0: {error}")
            raise


def follow(start: NodeStart, describe: Callable[[], NodeInfo]) -> int:
    """Any other node: look for node 0 and take part until the end; returns node 0's exit status.

    `describe` gives this node once it is connected. Raises NodeLostError if node 0 is lost,
    DpscopeError if it is not found, has another run folder, or starts a job that is not planned.
    """
    board = found_board(start)
    reason = ""
    try:
        if not _wait(SEEN_WITHIN_S, lambda: is_shared(start.out)):
            raise DpscopeError(f"--out {start.out}: node 0 has another folder; all must share it")
        with board.stop.listening():
            return _Follower(start, describe(), board).follow()
    except DpscopeError as error:
        reason = str(error)
        raise
    finally:
        board.publish(left=reason)
        board.close()


@dataclass(frozen=True)
class _Follower:
    """A node that runs its part of each planned job that node 0 starts."""

    start: NodeStart
    info: NodeInfo
    board: Board

    def follow(self) -> int:
        board = self.board
        ended = 0
        board.publish(info=self.info)
        while (state := board.states[0]).left is None:
            if (lost := board.lost(0)) is not None:
                raise NodeLostError(f"node 0 ({self.start.place.address}) was lost: {lost}")
            if state.attempt != ended:
                exit_status = self._run(state)
                ended = state.attempt
                board.publish(attempt=ended, exit_status=exit_status)
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
            return None
        job = self._planned(begun.job)
        node = self.start.place.rank
        if node >= job.nodes:
            return 0

        def over() -> bool:
            now = self.board.states[0]
            is_current = now.attempt == begun.attempt and now.job is not None
            return not is_current or self.board.lost(0) is not None

        self.start.note(f"{job.name}: started")
        address = self.info.node0_address
        folder = job.folder.of_node(node)
        part = replace(job, node=node, address=address, port=begun.port, folder=folder)
        running = TorchrunJob(part, self.info.host.interface)
        try:
            return running.wait(math.inf, lambda state: None, over)[1]
        finally:
            running.end()
            self.start.note(f"{job.name}: ended")

    def _planned(self, folder: str) -> Job:
        """The job that node 0 means, as this node derives it."""

        def planned() -> dict[str, Job]:
            return {str(job.folder.path): job for job in self.start.plan()}

        if not _wait(SEEN_WITHIN_S, lambda: folder in planned()):
            raise DpscopeError(
                f"--out {self.start.out}: node 0 began a job that node {self.start.place.rank} does not find in the plan; check "
                "that all nodes share the folder"
            )
        return planned()[folder]
