"""States that nodes exchange: they arrive, and silence, an exit and a foreign value are a loss."""

import os
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]  # of torch._C

from dpscope.launch.nodes import board as board_module
from dpscope.launch.nodes.board import Board
from tests.helpers.sweeps import wait_until


class Pair:
    """Two boards on one store, that of node 0 first."""

    def __init__(self) -> None:
        self.store = HashStore()
        self.boards = [Board(self.store, node, (1 - node,)) for node in (0, 1)]

    def look(self) -> None:
        """Wait until node 0 has looked at the state of node 1: it publishes its own before."""
        for _ in range(3):
            before = self.store.get("dpscope/0")
            wait_until(lambda before=before: self.store.get("dpscope/0") != before)  # type: ignore[misc]


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
    second.publish(exit_status=1, left="enough")
    second.close()
    wait_until(lambda: first.states[1].left == "enough", timeout_s=5)
    assert first.lost(1) == "enough"


def test_silence_is_a_loss_and_a_replayed_state_no_sign_of_life(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes 20 s ahead at once, while node 1 is heard, replayed, and not heard."""
    first, second = pair.boards
    pair.look()
    earlier = pair.store.get("dpscope/1")
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 20)
    monkeypatch.setattr(board_module, "time", clock)
    pair.look()
    assert first.lost(1) is None  # which beats
    second.close()
    pair.look()
    pair.store.set("dpscope/1", earlier.decode())
    pair.look()
    clock.monotonic = lambda: time.monotonic() + 40
    pair.look()
    assert first.lost(1) == "it was silent for 15 s"


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


@pytest.mark.parametrize("value", ["{", '{"beat": 1.5}', "[]", "null"])
def test_a_value_that_is_no_state_is_a_loss(pair: Pair, value: str) -> None:
    first, second = pair.boards
    second.close()
    pair.store.set("dpscope/1", value)
    wait_until(lambda: "is none of dpscope's" in (first.lost(1) or ""), timeout_s=5)


def test_a_store_that_is_gone_is_a_loss(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*arguments: object) -> None:
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(pair.boards[1], "_store", SimpleNamespace(set=gone))
    wait_until(lambda: pair.boards[1].lost(0) == "dpscope has exited there", timeout_s=5)
