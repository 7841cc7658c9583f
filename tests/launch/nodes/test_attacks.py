"""Strangers at the rendezvous without effect, and names that a terminal would act on."""

import socket
import threading
import time
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # of torch._C

from tests.helpers.environments import environment
from tests.helpers.sweeps import wait_until
from tests.launch.nodes.conftest import Nodes


def stranger(port: int) -> TCPStore:
    """A client that speaks the store's protocol."""
    return TCPStore("127.0.0.1", port, None, False, timedelta(seconds=3), False)


def test_strangers_that_do_not_write_states_have_no_effect(nodes: Nodes) -> None:
    """Garbage, foreign keys and silent connections, before and while nodes meet."""
    garbage = (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000, b"\x00" * 1000, b"[" * 100_000)
    silent: list[socket.socket] = []

    def attack() -> None:
        while len(silent) < 40:
            time.sleep(0.02)
            try:
                silent.append(socket.create_connection(("127.0.0.1", nodes.port), timeout=2))
                silent[-1].sendall(b"\x00" * (len(silent) % 2))  # and half of a message
                with socket.create_connection(("127.0.0.1", nodes.port), timeout=2) as connection:
                    connection.sendall(garbage[len(silent) % len(garbage)])
                store = stranger(nodes.port)
                store.set("1/state", '{"left": "not shared"}')
                store.set("not_shared", "1")
            except (OSError, RuntimeError):
                continue

    attacking = threading.Thread(target=attack)
    attacking.start()
    threading.Timer(0.5, lambda: nodes.start(1)).start()
    began_s = time.monotonic()
    with nodes.meeting() as team:
        joined_s = time.monotonic()
        attacking.join()
        time.sleep(0.2)  # several looks at each other
        assert team.lost is None
    nodes.wait()
    assert joined_s - began_s < 10
    assert nodes.ended == {1: 7}
    for one in silent:
        one.close()


def test_escape_sequences_of_a_host_name_are_not_printed(nodes: Nodes) -> None:
    nodes.start(1, hostname="\x1b[2J\x1b]0;owned\x07evil\x9b\u202e")
    with nodes.meeting() as team:
        shown = [team.name(1), *(str(host) for host in team.hosts(environment("n0")))]
    assert "evil" in shown[0]
    assert all(text.isprintable() for text in shown)


def test_a_job_that_is_not_planned_ends_the_run_with_one_line(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpscope.launch.nodes.team.SEEN_WITHIN_S", 0.5)
    nodes.start(1)
    with nodes.meeting() as team:
        team._board.publish(attempt=1, job="none of the plan")
        wait_until(lambda: team.lost is not None, timeout_s=10)
        assert "node 0 began a job that node 1 does not find in the plan" in str(team.lost)
    nodes.wait()
    assert "\n" not in str(nodes.ended[1])
