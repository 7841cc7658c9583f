"""Nodes meet over loopback, each in a thread: all come; one is late, has other options, sees another folder, is a stranger."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dpscope.launch.nodes import shared_folder
from dpscope.launch.nodes.connection import Connection
from dpscope.launch.nodes.joining import found
from dpscope.launch.nodes.meeting import JoinedNode, met
from dpscope.launch.nodes.messages import Dismissed, Joined, Unable
from dpscope.launch.nodes.place import Address, NodePlace
from dpscope.profiling.machine.interfaces import free_port, interface_of
from dpscope.profiling.records.run import Environment
from dpscope.profiling.store.errors import DpscopeError

ENVIRONMENT = Environment(
    hostname="there", platform="-", cpu_name=None, cpu_count=1, memory_bytes=None, python_version="3", torch_version=None,
    torchvision_version=None, cuda_version=None, nccl_version=None, driver_version=None,
)  # fmt: skip
OPTIONS = {"--devices": "2x1"}


class Nodes:
    """Nodes of one command, each in a thread of its own but node 0."""

    def __init__(self, out: Path, count: int = 2, port: int | None = None) -> None:
        self.out = out
        self.count = count
        self.port = free_port() if port is None else port
        self.errors: dict[int, str] = {}
        self.joined: dict[int, Connection] = {}
        self._threads: list[threading.Thread] = []

    def place(self, node: int, **more: object) -> NodePlace:
        told: dict[str, object] = {"count": self.count, "rank": node, "told_by": "options", "job": None}
        told["address"] = Address("127.0.0.1", self.port)
        return NodePlace(**{**told, **more})  # type: ignore[arg-type]

    def start(
        self, node: int, out: Path | None = None, options: dict[str, str] = OPTIONS, **more: object
    ) -> threading.Thread:
        """A node that looks for node 0, joins it and is then in `joined`, or why not in `errors`."""

        def look() -> None:
            try:
                own, _ = found(
                    self.place(node, **more), out or self.out, options, lambda text: None, 20, seen_within_s=1
                )
                own.send(Joined(ENVIRONMENT, own.own_address, interface_of(own.own_address), None))
                self.joined[node] = own
                if type(said := own.take(20)).__name__ == "Refused":
                    self.errors[node] = said.reason  # type: ignore[union-attr]
            except DpscopeError as error:
                self.errors[node] = str(error)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path / "run")
    yield made
    for own in made.joined.values():
        own.close()


@contextmanager
def meeting(nodes: Nodes, wait_s: float = 20, **more: object) -> Iterator[tuple[JoinedNode, ...]]:
    with met(nodes.place(0, **more), nodes.out, OPTIONS, lambda text: None, wait_s) as members:
        yield members


def failure(nodes: Nodes, wait_s: float = 20) -> str:
    with pytest.raises(DpscopeError) as caught, meeting(nodes, wait_s):
        pass
    nodes.wait()
    return str(caught.value)


def test_nodes_meet_and_speak(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "run", count=3)
    nodes.start(2)
    nodes.start(1)
    with meeting(nodes) as members:
        assert [(one.node, one.hostname) for one in members] == [(1, socket.gethostname()), (2, socket.gethostname())]
        assert [one.joined and (one.joined.environment, one.joined.interface) for one in members] == [
            (ENVIRONMENT, "lo")
        ] * 2
        assert list(nodes.out.iterdir()) == []  # the file by which they knew each other is gone
        for one in members:
            one.connection.send(Dismissed(0, ""))
        nodes.wait()
    assert nodes.errors == {}
    for own in nodes.joined.values():
        own.close()


def test_they_find_each_other_by_the_folder_alone_and_not_by_what_an_earlier_start_left(nodes: Nodes) -> None:
    nodes.out.mkdir()
    left = nodes.out / ".tmp-nodes-0"
    left.write_text(json.dumps({"job": "slurm-1-0-0", "addresses": [["127.0.0.1", free_port()]], "word": "w"}))
    nodes.start(1, address=None, job="slurm-1-0-0")
    time.sleep(0.5)
    with meeting(nodes, address=None, job="slurm-1-0-0") as members:
        assert [one.node for one in members] == [1]


def test_a_node_that_does_not_come_is_named_and_so_are_those_that_are_here(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "run", count=3)
    nodes.start(2)
    said = failure(nodes, wait_s=2)
    host = socket.gethostname()
    assert said.startswith(
        f"--nodes 3: node 1 did not join within 2 s (node 0 ({host}), node 2 ({host}) are here); start the command there"
    )
    assert nodes.errors == {2: said}  # told, and not left waiting


def test_a_folder_that_is_not_shared_is_told_in_seconds_naming_the_node(nodes: Nodes, tmp_path: Path) -> None:
    began_s = time.monotonic()
    nodes.start(1, out=tmp_path / "elsewhere")
    said = failure(nodes)
    host = socket.gethostname()
    assert said.startswith(f"--out {nodes.out}: node 1 ({host}) does not see what node 0 ({host}) wrote")
    assert str(tmp_path / "elsewhere") in said
    assert nodes.errors == {1: said}
    assert time.monotonic() - began_s < 10
    assert shared_folder.SEEN_WITHIN_S == 10


def other(count: int = 2, **more: object) -> Callable[[Nodes], None]:
    def start(nodes: Nodes) -> None:
        nodes.start(1, count=count, **more)  # type: ignore[arg-type]

    return start


def twice(nodes: Nodes) -> None:
    nodes.count = 3
    nodes.start(1)
    nodes.start(1)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (other(count=3), "was started as one of 3 nodes, node 0 as one of 2"),
        (
            other(options={}),
            "was started with no --devices, node 0 with --devices 2x1: give the same command on all nodes",
        ),
        (other(options={**OPTIONS, "--seed": "1"}), "was started with --seed 1, node 0 with no --seed"),
        (twice, "was started as node 1, as was node 1"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_and_all_are_told(
    nodes: Nodes, start: Callable[[Nodes], None], said: str
) -> None:
    start(nodes)
    told = failure(nodes)
    assert said in told
    assert told in nodes.errors.values()


def test_strangers_are_left_alone(nodes: Nodes) -> None:
    """Whoever cannot read the folder takes no part, and keeps nobody from it."""

    def ask() -> None:
        hello = b'{"is":"hello","options":' + b"[" * 100_000 + b"\n"
        for said in (b"GET / HTTP/1.1\r\n\r\n", b'{"is":"beat"}\n', b"\xff\n", b"", hello):
            for _ in range(50):
                try:
                    with socket.create_connection(("127.0.0.1", nodes.port), timeout=5) as asking:
                        asking.sendall(said)
                        if not said:  # gone without a word: a reset
                            asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        break
                except OSError:
                    time.sleep(0.05)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.2)
    nodes.start(1)
    with meeting(nodes) as members:
        assert [one.node for one in members] == [1]
    asking.join()


def test_a_node_of_another_job_is_sent_away_and_the_meeting_goes_on(nodes: Nodes) -> None:
    with pytest.raises(DpscopeError, match=r"node 1 .*: node 0 of another job \(slurm-7-0-0\) listens there"):
        _stray_first(nodes)


def _stray_first(nodes: Nodes) -> None:
    said: list[DpscopeError] = []

    def stray() -> None:
        try:
            found(nodes.place(1, job="slurm-8-0-0"), nodes.out, OPTIONS, lambda text: None, wait_s=1.5)
        except DpscopeError as error:
            said.append(error)

    straying = threading.Thread(target=stray)
    straying.start()
    threading.Timer(2.0, lambda: nodes.start(1, job="slurm-7-0-0")).start()
    with meeting(nodes, job="slurm-7-0-0") as members:
        assert [one.node for one in members] == [1]
    straying.join()
    raise said[0]


def test_a_port_that_dpscope_chose_and_another_has_is_replaced_and_one_that_was_stated_is_refused(nodes: Nodes) -> None:
    own: dict[str, Any] = {"job": "slurm-7-0-0", "port_stated": False}
    with socket.create_server(("", nodes.port)):
        threading.Timer(0.5, lambda: nodes.start(1, **own)).start()
        with meeting(nodes, **own) as members:
            assert [one.node for one in members] == [1]
        with (
            pytest.raises(
                DpscopeError, match=f"--rendezvous 127.0.0.1:{nodes.port}: cannot listen on port {nodes.port}"
            ),
            meeting(nodes, job="slurm-7-0-0"),
        ):
            pass


def test_who_repeats_what_another_node_said_proves_nothing() -> None:
    word = shared_folder.Meeting(None, (), "w")
    assert word.proves(word.proof(1, "n"), 1, "n")
    assert not word.proves(word.proof(0, "n"), 1, "n")
    assert not word.proves(word.proof(1, "n"), 1, "m")
    assert not word.proves("\u00e9", 1, "n")


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1", "Connection refused"), ("no-such-host.invalid", "resolution|not known")]
)
def test_why_node_0_is_not_found_is_told_soon_and_at_the_end(nodes: Nodes, host: str, why: str) -> None:
    told: list[str] = []
    place = nodes.place(1, address=Address(host, nodes.port))
    with pytest.raises(DpscopeError, match=f"did not find node 0 within 1 s \\({host}:{nodes.port}: .*({why})"):
        found(place, nodes.out, OPTIONS, told.append, wait_s=1, tell_after_s=0)
    assert told[1].startswith(f"Still looking for node 0: {host}:{nodes.port}: ")


def test_a_node_that_cannot_take_part_says_why(nodes: Nodes) -> None:
    def look() -> None:
        own, _ = found(nodes.place(1), nodes.out, OPTIONS, lambda text: None, 20)
        own.send(Unable("no GPU was found"))
        nodes.joined[1] = own

    joining = threading.Thread(target=look)
    joining.start()
    with pytest.raises(DpscopeError, match=r"node 1 \(.*\) cannot take part: no GPU was found"), meeting(nodes):
        pass
    joining.join()
