"""Interfaces, their addresses, and those over which a process is connected to other hosts."""

import socket
from types import SimpleNamespace

import psutil
import pytest

from dpscope.profiling.machine.interfaces import interface_of, interfaces_to_others


def end(ip: str, port: int) -> SimpleNamespace:
    return SimpleNamespace(ip=ip, port=port)


def connection(near: str, near_port: int, far: str, far_port: int) -> SimpleNamespace:
    """As psutil has it."""
    return SimpleNamespace(
        laddr=end(near, near_port), raddr=end(far, far_port), status="ESTABLISHED"
    )


def test_interfaces_have_names_and_addresses() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None


def test_connections_within_a_host_name_no_interface() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        other, _ = listener.accept()
        with other:
            assert interfaces_to_others(except_port=1) == ()


def test_connections_to_other_hosts_name_their_interface_except_for_one_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gloo's dual-stack IPv6 socket, the store at 29500, and a socket that listens."""
    connections = [
        connection("::ffff:127.0.0.1", 8080, "::ffff:10.10.10.2", 40000),
        connection("127.0.0.1", 40001, "10.10.10.3", 29500),
        SimpleNamespace(laddr=end("127.0.0.1", 1), raddr=(), status="LISTEN"),
    ]
    monkeypatch.setattr(psutil.Process, "net_connections", lambda *_: connections)
    assert interfaces_to_others(29500) == ("lo",)
    connections.pop(0)
    assert interfaces_to_others(29500) == ()
    assert interfaces_to_others(1) == ("lo",)
