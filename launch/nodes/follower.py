"""Every node except the first: runs its part of each planned job that node 0 starts, until the end. Imports no torch."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dpscope.launch.jobs.nodes_job import NodeLostError, Part, run_part
from dpscope.launch.jobs.starting import SeveralNodesJob
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import command_nodes, end_leftovers
from dpscope.launch.nodes.board import Board
from dpscope.launch.nodes.meeting import SEEN_WITHIN_S
from dpscope.profiling.records.nodes import Here, State
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RunFolder

_POLL_S = 0.1
_STOP_S = 60.0  # after a signal: node 0 lets a job end by itself first


class Follower:
    """One such node: `leader` is node 0's name, `plan` reads from the folder what is planned over several nodes."""

    def __init__(
        self,
        out: Path,
        here: Here,
        board: Board,
        leader: str,
        plan: Callable[[], Sequence[SeveralNodesJob]],
        note: Callable[[str], None],
    ) -> None:
        self._out, self._here, self._board = out, here, board
        self._leader, self._plan, self._note = leader, plan, note
        self._stop = StopRequest()
        self._stopped_at_s: float | None = None

    def follow(self) -> int:
        """Take part until the end; returns node 0's exit status.

        Raises NodeLostError if node 0 is lost, DpscopeError for a job that is not planned.
        """
        done = 0
        with self._stop.listening():
            self._board.tell(self._here)
            while (state := self._board.states[0]).left is None:
                if (lost := self._board.lost(0)) is not None:
                    raise NodeLostError(f"{self._leader} was lost: {lost}")
                if self._stop_ignored():
                    self._note(f"{self._leader} does not respond to the signal to stop.")
                    return self._stop.exit_status
                if state.attempt != done:
                    done = state.attempt
                    self._board.tell(attempt=done, ended=False)
                    self._board.tell(ended=True, exit_status=self._run(state))
                time.sleep(_POLL_S)
            if state.left:
                self._note(state.left)
            return state.exit_status or 0

    def _run(self, begun: State) -> int | None:
        """This node's part of an attempt; torchrun's exit status where it ended by itself."""
        if begun.job is None:
            end_leftovers(RunFolder(self._out))
            return 0
        job, node = self._planned(begun.job, begun.digest), self._here.host.node
        if node >= command_nodes(job.command):
            return 0

        def over() -> bool:
            now = self._board.states[0]
            ended = now.attempt != begun.attempt or now.grace_s is not None or now.left is not None
            return ended or self._stop_ignored() or self._board.lost(0) is not None

        self._note(f"{job.title}: started")
        part = Part(job, node, self._here.node0_address, begun.port, self._here.host.interface)
        run = RunFolder(self._out) if job.in_run else None
        exit_status = run_part(
            part, run, over, lambda: 0.0 if self._board.lost(0) else self._board.states[0].grace_s or 0.0
        )
        self._note(f"{job.title}: ended")
        return exit_status

    def _planned(self, index: int, digest: str) -> SeveralNodesJob:
        """The job that node 0 means, as this node derives it; the folder may show late what node 0 wrote."""
        deadline = time.monotonic() + SEEN_WITHIN_S
        while time.monotonic() < deadline:
            plan = self._plan()
            if 0 <= index < len(plan) and plan[index].digest == digest:
                return plan[index]
            time.sleep(_POLL_S)
        raise DpscopeError(
            f"--out {self._out}: node 0 began job {index}, which node {self._here.host.node} does not find in the plan there; "
            "check that all nodes share the folder"
        )

    def _stop_ignored(self) -> bool:
        """Whether this node was asked to stop, has notified node 0, and got no response."""
        if self._stop.requested and self._stopped_at_s is None:
            self._stopped_at_s = time.monotonic()
            self._board.tell(signal=self._stop.signal_number or 0)
        return self._stopped_at_s is not None and time.monotonic() - self._stopped_at_s > _STOP_S
