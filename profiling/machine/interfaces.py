"""This host's network interfaces, addresses, connections and listening sockets. Imports no
torch.
"""

import contextlib
import errno
import ipaddress
import socket
import sys
from typing import Any

import psutil

from dpscope.profiling.records.run import Environment, Host

LOOPBACK_ADDRESS = "127.0.0.1"
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


def _interfaces_by_address() -> dict[str, str]:
    """The interface of each IPv6 and IPv4 address of this host."""
    return {
        listed.address.partition("%")[0]: name
        for family in (socket.AF_INET6, socket.AF_INET)
        for name, addresses in psutil.net_if_addrs().items()
        for listed in addresses
        if listed.family == family
    }


def interface_of(address: str) -> str | None:
    """The interface with this IPv4 or IPv6 address of this host; None if there is none."""
    return _interfaces_by_address().get(address.partition("%")[0])


def host_at(node: int, address: str, environment: Environment) -> Host:
    """This host as a node of a command, with the address at which the others reach it.

    gloo uses the interface of that address unless the user chooses another. By default it would use
    the address of the host's name, which on many systems is a loopback one.
    """
    chosen = environment.settings.get("GLOO_SOCKET_IFNAME")
    by = "GLOO_SOCKET_IFNAME" if chosen is not None else "the route between the nodes"
    return Host(
        node, environment.hostname, address, chosen or interface_of(address), by, environment
    )


def connection_to(port: int) -> tuple[str, str]:
    """The addresses of both ends of a connection of this process to a port; raises OSError without
    one.
    """
    for near, far in _connections():
        if far.port == port:
            return _ip(near), _ip(far)
    raise OSError(f"no connection to port {port}")


def interfaces_to_others(except_port: int) -> tuple[str, ...]:
    """Interfaces over which this process has TCP connections to other hosts, without those from or
    to one port.

    These are the interfaces that gloo and NCCL's sockets use; RDMA has no TCP connections. Empty
    where the system does not tell.
    """
    try:
        connections = _connections()
    except psutil.Error:
        return ()
    interfaces = _interfaces_by_address()
    return tuple(
        sorted(
            {
                interfaces[_ip(near)]
                for near, far in connections
                if except_port not in (near.port, far.port)
                and _ip(far) not in interfaces
                and _ip(near) in interfaces
            }
        )
    )


def _connections() -> list[tuple[Any, Any]]:
    """Both ends of each TCP connection of this process; raises psutil.Error."""
    every = psutil.Process().net_connections("tcp")
    return [
        (connection.laddr, connection.raddr)
        for connection in every
        if connection.status == psutil.CONN_ESTABLISHED
    ]


def _ip(end: Any) -> str:
    """The address; an IPv4 one without the prefix of IPv6's notation."""
    return str(end.ip).removeprefix("::ffff:")


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens only at the address of a host name if it is this machine's, else at all
    addresses.

    A name's loopback address, such as Debian's for the host's name, is not used: other hosts cannot
    reach it. Raises OSError.
    """
    stated = ""
    with contextlib.suppress(OSError):
        stated = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        if stated != host and ipaddress.ip_address(stated.partition("%")[0]).is_loopback:
            stated = ""
    for address in dict.fromkeys((stated, "")):
        try:
            if ":" in address or (not address and socket.has_dualstack_ipv6()):
                return socket.create_server(
                    (address, port), family=socket.AF_INET6, dualstack_ipv6=not address
                )
            return socket.create_server((address, port))
        except OSError as error:
            if not address or error.errno != errno.EADDRNOTAVAIL:
                raise
    raise AssertionError("all addresses are always available")
