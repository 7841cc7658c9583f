"""States that nodes exchange: they arrive, silence and an exit are a loss, and a value without a
valid seal has no effect.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]  # of torch._C

from dpscope.launch.jobs.node_place import NodePlace
from dpscope.launch.jobs.torchrun import Job
from dpscope.launch.nodes import board as board_module
from dpscope.launch.nodes.board import Board, NodeInfo, NodeStart, State, sealed
from dpscope.launch.nodes.team import Team, _digest
from dpscope.profiling.machine.interfaces import host_at
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder
from tests.helpers.environments import environment
from tests.helpers.sweeps import wait_until


class Pair:
    """Two boards on one store, that of node 0 first."""

    def __init__(self) -> None:
        self.store = HashStore()
        self.boards = [Board(self.store, "s", node, (1 - node,)) for node in (0, 1)]

    def team(self, gpus: int | None = None) -> Team:
        self.boards[1].publish(
            info=NodeInfo(host_at(1, "127.0.0.1", environment("n1")), "127.0.0.1", gpus)
        )
        wait_until(lambda: 1 in self.boards[0].joined, timeout_s=5)
        start = NodeStart(NodePlace(2, 0, None), Path(), {}, lambda text: None, 5.0)
        return Team(self.boards[0], start)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    for board in made.boards:
        board.close()


def test_states_arrive_including_the_last_one(pair: Pair) -> None:
    first, second = pair.boards
    first.publish(attempt=3, job="d", port=29501)
    wait_until(lambda: second.states[0].attempt == 3, timeout_s=5)
    assert (second.states[0].job, second.states[0].port) == ("d", 29501)
    second.publish(ended=True, exit_status=1, left="enough")
    second.close()
    wait_until(lambda: first.states[1].left == "enough", timeout_s=5)
    assert first.lost(1) == "enough"


def test_silence_is_a_loss_and_a_replayed_state_no_sign_of_life(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair.boards
    wait_until(lambda: first.states[1].beat > 0, timeout_s=5)
    earlier = pair.store.get("1/state")
    monkeypatch.setattr(board_module, "LOST_S", 0.5)
    time.sleep(1.0)
    assert first.lost(1) is None  # which beats
    assert first.states[1].beat > 3
    second.close()
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        pair.store.set("1/state", earlier.decode())
        time.sleep(0.05)
    assert first.lost(1) == "it was silent for 0.5 s"


def test_a_signal_to_another_node_arrives_here_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *signalled: sent.append(signalled))
    first, second = pair.boards
    second.stop.signal_number = signal.SIGTERM
    wait_until(lambda: bool(sent), timeout_s=5)
    beat = first.states[1].beat
    wait_until(lambda: first.states[1].beat > beat + 1, timeout_s=5)
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_a_forged_state_is_ignored(pair: Pair) -> None:
    """One that is not sealed, sealed with another secret, or for another node."""
    first, _ = pair.boards
    for forged in (
        "forged",
        "é" * 64,
        sealed("another", "1/state", State(left="x")),
        sealed("s", "0/state", State(left="x")),
    ):
        pair.store.set("1/state", forged)
        beat = first.states[1].beat
        wait_until(lambda beat=beat: first.states[1].beat > beat, timeout_s=5)  # type: ignore[misc]  # overwritten
    assert first.lost(1) is None


@pytest.mark.parametrize(
    "state", [{"command": ["touch", "x"]}, {"job": 1}, [], {"beat": 1.5}, None]
)
def test_a_sealed_state_of_another_form_is_a_loss(pair: Pair, state: object) -> None:
    first, second = pair.boards
    second.close()
    pair.store.set("1/state", sealed("s", "1/state", state))
    wait_until(
        lambda: "a state that this dpscope does not know" in (first.lost(1) or ""), timeout_s=5
    )


def test_nodes_need_as_many_gpus_as_a_job_has_on_each(pair: Pair) -> None:
    team = pair.team(gpus=2)
    folder = JobFolder(Path("unused"))
    few, more, many = (
        [Job(name="", program=(), folder=folder, threads=1, processes=2 * count, nodes=2)]
        for count in (2, 4, 64)
    )
    team.check_gpus(few)
    with pytest.raises(
        DpscopeError, match=r"node 1 \(n1\) has 2 GPUs that torch can use, and 4 on each node"
    ):
        team.check_gpus([*more, *few])
    pair.team(gpus=None)  # on the CPU
    wait_until(lambda: pair.boards[0].joined[1].gpus is None, timeout_s=5)
    team.check_gpus(many)


def test_every_node_ends_leftover_processes_of_the_folder(pair: Pair) -> None:
    team = pair.team()
    second = pair.boards[1]
    wait_until(lambda: second.states[0].beat > 0, timeout_s=5)
    second.publish(attempt=1, ended=True, exit_status=0)
    began_s = time.monotonic()
    team.clear()
    assert time.monotonic() - began_s < 5
    wait_until(lambda: second.states[0].attempt == 1, timeout_s=5)
    assert second.states[0].job is None
    second.close()
    second.publish(left="gone")
    pair.boards[0].states[1] = second._state
    began_s = time.monotonic()
    team.clear()  # no node responds
    assert time.monotonic() - began_s < 5


def test_node_0_s_address_is_an_address() -> None:
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 address"):
        NodeInfo(host_at(1, "127.0.0.1", environment("n1")), "--rdzv-conf=x", None)


def test_a_job_is_the_same_under_another_interpreter_and_another_with_other_arguments() -> None:
    assert _digest((sys.executable, "-m", "a")) == _digest(("/other/python", "-m", "a"))
    others = {
        _digest(("python", "-m", *arguments)) for arguments in (["a"], ["b"], ["a b"], ["a", "b"])
    }
    assert len(others) == 4
