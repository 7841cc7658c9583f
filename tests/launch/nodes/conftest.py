"""Nodes of one command in one process: each other node than the first in a thread, all over
loopback.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from dpscope.launch.jobs.node_place import Address, NodePlace
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import Job
from dpscope.launch.nodes.board import THREAD_NAME, NodeInfo, NodeStart
from dpscope.launch.nodes.team import Team, follow, led
from dpscope.profiling.machine.interfaces import connection_to, host_at
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.environments import environment
from tests.helpers.ranks import free_port
from tests.helpers.sweeps import wait_until

TERMS = {"--devices": "2x1"}


class Nodes:
    """How each of the other nodes ended: its exit status, or why not."""

    def __init__(self, out: Path, count: int = 2) -> None:
        self.out = out
        self.count = count
        self.port = free_port()
        self.ended: dict[int, int | str] = {}
        self.notes: list[str] = []
        self.plan: list[Job] = []
        self._threads: list[threading.Thread] = []

    def at(
        self,
        node: int,
        out: Path | None = None,
        wait_s: float = 60.0,
        note: Callable[[str], None] | None = None,
        **more: object,
    ) -> NodeStart:
        """How a node is started, `more` being its place."""
        values: dict[str, object] = {
            "count": self.count,
            "rank": node,
            "address": Address("127.0.0.1", self.port),
        }
        place = NodePlace(**{**values, **more})  # type: ignore[arg-type]
        return NodeStart(
            place, out or self.out, note or self.notes.append, wait_s, lambda: self.plan
        )

    def start(
        self, node: int, terms: dict[str, str] = TERMS, hostname: str | None = None, **started: Any
    ) -> threading.Thread:
        """A node that looks for node 0 and follows it to the end."""

        start = self.at(node, **started)

        def info() -> NodeInfo:
            here, node0 = connection_to(start.place.address.port)
            host = host_at(node, here, environment(hostname or f"n{node}"))
            return NodeInfo(host, node0, terms)

        def run() -> None:
            try:
                self.ended[node] = follow(start, info)
            except DpscopeError as error:
                self.ended[node] = str(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    @contextmanager
    def meeting(self, **started: Any) -> Iterator[Team]:
        """Node 0, once all nodes have joined; dismisses them when the block ends."""
        self.out.mkdir(exist_ok=True)
        with led(self.at(0, **started), TERMS) as team:
            yield team
            team.dismiss(7)

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def no_thread_in_a_call() -> Iterator[None]:
    """A thread that torch holds in a call when Python ends would abort it."""
    yield
    wait_until(
        lambda: not any(one.name == THREAD_NAME for one in threading.enumerate()), timeout_s=20
    )


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes in one process look at each other more often than nodes of a cluster; only a main
    thread can take signals.
    """
    for module in ("board", "team"):
        monkeypatch.setattr(f"dpscope.launch.nodes.{module}._POLL_S", 0.03)
    monkeypatch.setattr(StopRequest, "listening", lambda request: nullcontext())


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path / "run")
