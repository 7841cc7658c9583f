"""Every node except the first: runs its part of each planned job that node 0 starts, until the end. Imports no torch."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dpscope.launch.jobs.attended_job import SeveralNodesJob
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import TorchrunJob, command_nodes, end_leftovers, on_node
from dpscope.launch.nodes.board import Board, NodeInfo, NodeLostError, State
from dpscope.launch.nodes.meeting import SEEN_WITHIN_S
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder, RunFolder

_POLL_S = 0.1
_STOP_S = 60.0  # after a signal: node 0 lets a job end by itself first
_LONGEST_JOB_S = 1e8  # node 0 keeps the time
_LOG_BYTES = 256 << 10  # of the log's end


class Follower:
    """One such node; `leader` is node 0's name, `plan` reads the jobs planned over several nodes from the run folder."""

    def __init__(
        self,
        out: Path,
        info: NodeInfo,
        board: Board,
        leader: str,
        plan: Callable[[], Sequence[SeveralNodesJob]],
        note: Callable[[str], None],
    ) -> None:
        self._out, self._info, self._board = out, info, board
        self._leader, self._plan, self._note = leader, plan, note
        self._stop = StopRequest()
        self._stopped_at_s: float | None = None

    def follow(self) -> int:
        """Take part until the end; returns node 0's exit status.

        Raises NodeLostError if node 0 is lost, DpscopeError for a job that is not planned.
        """
        done = 0
        with self._stop.listening():
            self._board.publish(self._info)
            while (state := self._board.states[0]).left is None:
                if (lost := self._board.lost(0)) is not None:
                    raise NodeLostError(f"{self._leader} was lost: {lost}")
                if self._stop_ignored():
                    self._note(f"{self._leader} does not respond to the signal to stop.")
                    return self._stop.exit_status
                if state.attempt != done:
                    done = state.attempt
                    self._board.publish(attempt=done, ended=False)
                    self._board.publish(ended=True, exit_status=self._run(state))
                time.sleep(_POLL_S)
            if state.left:
                self._note(state.left)
            return state.exit_status or 0

    def _run(self, begun: State) -> int | None:
        """Run this node's part of an attempt; returns torchrun's exit status if it ended by itself."""
        if begun.job is None:
            end_leftovers(RunFolder(self._out))
            return 0
        job, node = self._planned(begun.job, begun.digest), self._info.host.node
        if node >= command_nodes(job.command):
            return 0
        self._note(f"{job.title}: started")
        exit_status = self._run_part(job, node, begun)
        self._note(f"{job.title}: ended")
        return exit_status

    def _run_part(self, job: SeveralNodesJob, node: int, begun: State) -> int | None:
        """Run torchrun until it ends by itself or node 0 ends the attempt; leaves no process, and its log in the job's folder."""

        def over() -> bool:
            now = self._board.states[0]
            ended = now.attempt != begun.attempt or now.grace_s is not None or now.left is not None
            return ended or self._stop_ignored() or self._board.lost(0) is not None

        folder = JobFolder(Path(tempfile.mkdtemp(prefix="dpscope-node-")))
        command = on_node(job.command, node, self._info.node0_address, begun.port, folder)
        run = RunFolder(self._out) if job.in_run else None
        try:
            part = TorchrunJob(command, folder, job.threads, run, self._info.host.interface)
            try:
                how, exit_status = part.wait(_LONGEST_JOB_S, lambda state: None, over)
                grace_s = 0.0 if self._board.lost(0) else self._board.states[0].grace_s or 0.0
                if how == "stopped" and grace_s > 0:
                    part.ask_to_end(grace_s)
            finally:
                part.end()
            with contextlib.suppress(OSError):
                job.folder.node_log_path(node).write_bytes(folder.log_path.read_bytes()[-_LOG_BYTES:])
        finally:
            shutil.rmtree(folder.path, ignore_errors=True)
        return exit_status

    def _planned(self, index: int, digest: str) -> SeveralNodesJob:
        """The job that node 0 means, as this node derives it; node 0's files may become visible late."""
        deadline = time.monotonic() + SEEN_WITHIN_S
        while time.monotonic() < deadline:
            plan = self._plan()
            if 0 <= index < len(plan) and plan[index].digest == digest:
                return plan[index]
            time.sleep(_POLL_S)
        raise DpscopeError(
            f"--out {self._out}: node 0 began job {index}, which node {self._info.host.node} does not find in the plan there; "
            "check that all nodes share the folder"
        )

    def _stop_ignored(self) -> bool:
        """Whether this node was requested to stop, has notified node 0, and got no response."""
        if self._stop.requested and self._stopped_at_s is None:
            self._stopped_at_s = time.monotonic()
            self._board.publish(signal=self._stop.signal_number or 0)
        return self._stopped_at_s is not None and time.monotonic() - self._stopped_at_s > _STOP_S
