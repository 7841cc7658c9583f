"""The line between two nodes, what node 0 asks along it, and the interfaces that lines go over."""

import socket
import threading
import time

import pytest

from dpscope.launch.nodes import connection as line
from dpscope.launch.nodes.connection import Connection
from dpscope.launch.nodes.meeting import JoinedNode
from dpscope.launch.nodes.messages import Begin, Clear, Cleared, Joined
from dpscope.launch.nodes.team import Team
from dpscope.profiling.records.run import Environment
from dpscope.profiling.store.errors import DpscopeError

ENVIRONMENT = Environment(
    hostname="there", platform="-", cpu_name=None, cpu_count=1, memory_bytes=None, python_version="3", torch_version=None,
    torchvision_version=None, cuda_version=None, nccl_version=None, driver_version=None,
)  # fmt: skip


def pair(lost_s: float = 1.5) -> tuple[Connection, Connection, socket.socket]:
    """Two ends, and a socket whose other end the second's is once it is replaced."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = socket.create_connection(listener.getsockname())
        second, _ = listener.accept()
    return Connection(first, lost_s), Connection(second, lost_s), second


def test_nodes_need_the_same_kind_of_device_and_as_many_gpus_as_a_job_has_on_each() -> None:
    first, second, _ = pair()
    try:

        def team(gpus: int | None) -> Team:
            return Team("n0", [JoinedNode(1, "n1", first, Joined(ENVIRONMENT, "10.0.0.2", None, gpus))])

        team(4).check_alike("cuda")
        team(4).check_gpus(4)
        team(None).check_alike("cpu")
        team(None).check_gpus(64)
        with pytest.raises(DpscopeError, match=r"--device: node 0 \(n0\) has GPUs and node 1 \(n1\) has none"):
            team(None).check_alike("cuda")
        with pytest.raises(DpscopeError, match=r"--device: node 1 \(n1\) has GPUs and node 0 \(n0\) has none"):
            team(2).check_alike("cpu")
        with pytest.raises(DpscopeError, match=r"node 1 \(n1\) has 2 GPUs that torch can use, and 4 on each node"):
            team(2).check_gpus(4)
    finally:
        first.close()
        second.close()


def test_every_node_ends_what_is_left_in_the_folder_once_this_command_holds_it() -> None:
    first, second, _ = pair(lost_s=20)
    team = Team("n0", [JoinedNode(1, "n1", first)])
    answered: list[float] = []

    def answer() -> None:
        assert isinstance(second.take(5), Clear)
        time.sleep(0.5)
        answered.append(time.monotonic())
        second.send(Cleared())

    answering = threading.Thread(target=answer)
    answering.start()
    team.clear()
    assert answered
    assert time.monotonic() - answered[0] < 5
    answering.join()
    second.close()
    began_s = time.monotonic()
    team.clear()  # nobody answers any more
    assert time.monotonic() - began_s < 5
    first.close()


def test_a_line_carries_messages_and_its_end_is_seen_at_once() -> None:
    first, second, _ = pair()
    begin = Begin(1, "cell", ("python", "-m", "x"), 2, 29501, True)
    first.send(begin)
    assert second.take(5) == begin
    assert second.take() is None
    time.sleep(2.5)  # longer than either may be silent: both beat
    assert (first.lost, second.lost) == (None, None)
    first.close()
    assert second.take(5) is None
    assert second.lost == "dpscope has exited there"
    second.send(begin)  # goes nowhere
    second.close()


def test_silence_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "BEAT_S", 100.0)  # a node that hangs, or whose network is gone, sends nothing
    first, second, _ = pair(lost_s=0.5)
    began_s = time.monotonic()
    while second.lost is None and time.monotonic() - began_s < 5:
        time.sleep(0.05)
    assert second.lost == "it was silent for 0.5 s"
    assert first.take(5) is None
    first.close()
    second.close()


def test_the_address_of_an_end_is_known_after_the_other_end_is_gone() -> None:
    first, second, _ = pair()
    second.close()
    deadline = time.monotonic() + 5
    while first.lost is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (first.own_address, first.other_address) == ("127.0.0.1", "127.0.0.1")
    first.close()
