"""Interfaces, their addresses, and those over which a process is connected to other hosts."""

import os
import socket
from pathlib import Path

from dpscope.profiling.machine.interfaces import (
    _connections,
    interface_addresses,
    interface_of,
    interfaces_to_others,
    ipv6_interfaces,
)


def test_interfaces_have_names_and_ipv6_addresses(tmp_path: Path) -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
    assert list(interface_addresses())[-1] == "lo"
    # As Linux lists them, proc(5).
    (tmp_path / "listed").write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\nfe8000000000000000fc00fffe000001 04 40 20 80     eth0\n"
    )
    assert ipv6_interfaces(tmp_path / "listed") == {"::1": "lo", "fe80::fc:ff:fe00:1": "eth0"}
    assert ipv6_interfaces(tmp_path / "none") == {}


def test_connections_within_a_host_are_found_and_name_no_interface() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as one,
    ):
        other, _ = listener.accept()
        with other:
            ends = (one.getsockname(), one.getpeername())
            assert ends in list(_connections(Path("/proc/self")))
            assert interfaces_to_others(except_port=1) == ()
        # the other end is closed
        assert ends not in [(far, near) for near, far in _connections(Path("/proc/self"))]


def test_connections_to_other_hosts_name_their_interface_except_for_one_port(
    tmp_path: Path,
) -> None:
    """As in Linux's /proc: gloo's dual-stack IPv6 socket, the store at 29500, and another process's
    connection.
    """
    (tmp_path / "fd").mkdir()
    for number in (71, 72):
        os.symlink(f"socket:[{number}]", tmp_path / "fd" / str(number))
    (tmp_path / "net").mkdir()
    lo = "0100007F"
    mapped, far = f"0000000000000000FFFF0000{lo}", "0000000000000000FFFF0000020A0A0A"
    rest = "00000000:00000000 00:00000000 00000000 0 0"
    (tmp_path / "net" / "tcp6").write_text(f"head\n 0: {mapped}:1F90 {far}:9C40 01 {rest} 71 1\n")
    (tmp_path / "net" / "tcp").write_text(
        f"head\n 0: {lo}:9C41 030A0A0A:733C 01 {rest} 72 1\n 1: {lo}:9C42 030A0A0A:1F90 01 {rest} 99 1\n"
    )
    assert list(_connections(tmp_path)) == [
        (("127.0.0.1", 40001), ("10.10.10.3", 29500)),
        (("127.0.0.1", 8080), ("10.10.10.2", 40000)),
    ]
    assert interfaces_to_others(29500, tmp_path) == ("lo",)
    (tmp_path / "net" / "tcp6").unlink()
    assert interfaces_to_others(29500, tmp_path) == ()
    assert interfaces_to_others(1, tmp_path) == ("lo",)
