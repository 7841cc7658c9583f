"""Nodes of one command in one process: each other node than the first in a thread, all over loopback."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpscope.launch.commands.several_nodes import check_alike
from dpscope.launch.jobs.attended_job import SeveralNodesJob
from dpscope.launch.jobs.node_place import Address, NodePlace
from dpscope.launch.nodes.board import THREAD_NAME, NodeInfo
from dpscope.launch.nodes.follower import Follower
from dpscope.launch.nodes.meeting import found_meeting, opened_meeting
from dpscope.launch.nodes.team import Team
from dpscope.profiling.machine.interfaces import host_at
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.environments import environment
from tests.helpers.ranks import free_port
from tests.helpers.sweeps import wait_until

OPTIONS = {"--devices": "2x1"}


class Nodes:
    """How each of the other nodes ended: its exit status, or why not."""

    def __init__(self, out: Path, count: int = 2) -> None:
        self.out = out
        self.count = count
        self.port = free_port()
        self.ended: dict[int, int | str] = {}
        self.notes: list[str] = []
        self.plan: list[SeveralNodesJob] = []
        self._threads: list[threading.Thread] = []

    def place(self, node: int, **more: object) -> NodePlace:
        values: dict[str, object] = {"count": self.count, "rank": node, "job": None}
        values["address"] = Address("127.0.0.1", self.port)
        return NodePlace(**{**values, **more})  # type: ignore[arg-type]

    def start(
        self,
        node: int,
        out: Path | None = None,
        options: dict[str, str] = OPTIONS,
        gpus: int | None = None,
        hostname: str | None = None,
        wait_s: float = 20.0,
        **more: object,
    ) -> threading.Thread:
        """A node that looks for node 0 and follows it to the end."""

        def follow() -> None:
            try:
                self.ended[node] = self._follow(
                    node, out or self.out, options, gpus, hostname or f"n{node}", wait_s, more
                )
            except DpscopeError as error:
                self.ended[node] = str(error)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _follow(
        self,
        node: int,
        out: Path,
        options: dict[str, str],
        gpus: int | None,
        hostname: str,
        wait_s: float,
        more: dict[str, object],
    ) -> int:
        place = self.place(node, **more)
        found = found_meeting(place, out, self.notes.append, wait_s)
        why = ""
        try:
            check_alike(place, found.meeting, options)
            info = NodeInfo(host_at(node, found.address, environment(hostname)), found.node0_address, gpus)
            return _Threaded(out, info, found.board, "node 0 (n0)", lambda: self.plan, self.notes.append).follow()
        except DpscopeError as error:
            why = str(error)
            raise
        finally:
            found.board.publish(left=why)
            found.board.close()

    @contextmanager
    def meeting(
        self, wait_s: float = 20.0, note: Callable[[str], None] | None = None, **more: object
    ) -> Iterator[Team]:
        """Node 0, once all nodes have joined; dismisses them when the block ends."""
        note = note or self.notes.append
        self.out.mkdir(exist_ok=True)
        with opened_meeting(self.place(0, **more), self.out, OPTIONS, False, note) as board:
            team = Team(board, lambda: self.plan)
            try:
                team.gather(note, wait_s)
                yield team
                team.dismiss(7)
            except DpscopeError as error:
                team.dismiss(error.exit_status, f"Node 0: {error}")
                raise

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive()


class _Threaded(Follower):
    """Takes no signals: only a process's main thread can."""

    def follow(self) -> int:
        self._stop.listening = no_signals  # type: ignore[method-assign]
        return super().follow()


@contextmanager
def no_signals() -> Iterator[None]:
    yield


@pytest.fixture(autouse=True)
def no_thread_in_a_call() -> Iterator[None]:
    """A thread that torch holds in a call when Python ends would abort it."""
    yield
    wait_until(lambda: not any(one.name == THREAD_NAME for one in threading.enumerate()), timeout_s=20)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes in one process look at each other more often than nodes of a cluster."""
    for module in ("board", "meeting", "team", "follower"):
        monkeypatch.setattr(f"dpscope.launch.nodes.{module}._POLL_S", 0.03)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path / "run")
