"""Attacks from the network without effect: a relay that forges states, strangers, and names that a
terminal would act on.
"""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # of torch._C

from dpscope.launch.jobs.node_place import Address
from dpscope.launch.nodes.team import _digest
from dpscope.profiling.machine.interfaces import free_port
from dpscope.profiling.store.folders import JobFolder
from tests.helpers.environments import environment
from tests.helpers.programs import Program
from tests.helpers.sweeps import wait_until
from tests.launch.nodes.conftest import Nodes


def stranger(port: int) -> TCPStore:
    """A client that speaks the store's protocol and cannot read the run folder."""
    return TCPStore("127.0.0.1", port, None, False, timedelta(seconds=3), False)


@contextmanager
def relay(port: int) -> Iterator[Address]:
    """The same port of another address, which forwards everything in both directions."""

    def passed(source: socket.socket, target: socket.socket) -> None:
        try:
            while content := source.recv(1 << 16):
                target.sendall(content)
        except OSError:
            pass
        for end in (source, target):
            end.close()

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", port))
            except OSError:  # the meeting has ended, and a node asks once more
                near.close()
                continue
            for ends in ((near, far), (far, near)):
                threading.Thread(target=passed, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.2", port)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield Address("127.0.0.2", port)


def test_a_state_that_a_relay_forges_begins_no_job(nodes: Nodes, tmp_path: Path) -> None:
    """The relay knows every key, because a store lists them, and writes a state that would begin a
    planned job.
    """
    ran = tmp_path / "ran"
    nodes.plan = [
        Program(
            name="",
            program=("-c", f"open({str(ran)!r}, 'w')"),
            folder=JobFolder(tmp_path),
            threads=1,
            nodes=2,
        )
    ]
    with relay(nodes.port) as between:
        nodes.start(1, address=between)
        with nodes.meeting() as team:
            assert team.lost is None  # a relay that only passes on changes nothing
            store = stranger(nodes.port)
            (key,) = [one for one in store.list_keys() if one.endswith("0/state")]
            sent = bytes(store.get(key))
            forged = {"attempt": 1, "job": _digest(nodes.plan[0].command), "beat": 10**6}
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline:  # node 0 overwrites it several times a second
                store.set(key, sent[:64].decode() + json.dumps({**json.loads(sent[64:]), **forged}))
                store.set(key, "x" * (7 << 20))
            assert team.lost is None
        nodes.wait()
    assert nodes.ended == {1: 7}
    assert not ran.exists()


def test_a_claimed_rank_does_not_keep_its_node_out(nodes: Nodes) -> None:
    """The stranger knows the listed keys, and writes in the name of a node
    before it joins.
    """
    joining = threading.Timer(1.0, lambda: nodes.start(1))

    def claim() -> None:
        keys: list[str] = []
        while not keys:
            try:
                store = stranger(nodes.port)
                keys = [one for one in store.list_keys() if one.endswith("0/state")]
            except RuntimeError:
                time.sleep(0.02)
        store.set(keys[0].replace("0/state", "1/state"), "\xff mine")

    claiming = threading.Thread(target=claim)
    claiming.start()
    joining.start()
    with nodes.meeting() as team:
        assert team.lost is None
    nodes.wait()
    claiming.join()
    joining.join()
    assert nodes.ended == {1: 7}


def test_strangers_without_the_secret_have_no_effect(nodes: Nodes) -> None:
    """Garbage, forged states and silent connections, before and while nodes meet."""
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
        shown = [*nodes.notes, team.name(1), *(str(one) for one in team.hosts(environment("n0")))]
    assert any("evil" in one for one in nodes.notes)
    assert all(one.isprintable() for one in shown)


def test_a_job_that_is_not_planned_ends_the_run_with_one_line(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpscope.launch.nodes.team.SEEN_WITHIN_S", 0.5)
    nodes.start(1)
    with nodes.meeting() as team:
        team._begin(job="0", port=free_port())
        wait_until(lambda: team.lost is not None, timeout_s=10)
        assert "node 0 began a job that node 1 does not find in the plan" in str(team.lost)
    nodes.wait()
    assert "\n" not in str(nodes.ended[1])
