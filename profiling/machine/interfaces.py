"""This host's network interfaces, addresses, connections and listening sockets. Imports no
torch.
"""

import contextlib
import errno
import fcntl
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from dpscope.profiling.records.run import Environment, Host

LOOPBACK_ADDRESS = "127.0.0.1"
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
_ADDRESS_OF = 0x8915  # SIOCGIFADDR, linux/sockios.h
_IPV6 = Path("/proc/net/if_inet6")  # proc(5): address, index, prefix length, scope, flags, name
_ESTABLISHED = "01"


def interface_addresses() -> dict[str, str]:
    """IPv4 addresses by the name of their interface, loopback last; empty outside Linux."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                answer = fcntl.ioctl(
                    datagram.fileno(), _ADDRESS_OF, struct.pack("256s", name.encode()[:15])
                )
                found[name] = socket.inet_ntoa(answer[20:24])
    return dict(sorted(found.items(), key=lambda one: one[1].startswith("127.")))


def _interfaces_by_address() -> dict[str, str]:
    return {address: name for name, address in interface_addresses().items()} | ipv6_interfaces()


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


def ipv6_interfaces(of: Path = _IPV6) -> dict[str, str]:
    """The interface of each IPv6 address of this host, in the usual notation; empty outside
    Linux.
    """
    try:
        rows = [line.split() for line in of.read_text().splitlines()]
    except OSError:
        return {}
    return {socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])): row[-1] for row in rows}


def interfaces_to_others(except_port: int, own: Path = Path("/proc/self")) -> tuple[str, ...]:
    """Interfaces over which this process has TCP connections to other hosts, without those from or
    to one port.

    These are the interfaces that gloo and NCCL's sockets use; RDMA has no TCP connections. Empty
    outside Linux.
    """
    addresses = _interfaces_by_address()
    found = {
        addresses[local]
        for (local, port), (remote, far_port) in _connections(own)
        if except_port not in (port, far_port) and remote not in addresses and local in addresses
    }
    return tuple(sorted(found))


def _connections(own: Path) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Both ends of each established TCP connection of a process, from net/tcp and its open files
    (proc(5)).
    """
    opened = set()
    with contextlib.suppress(OSError):
        for file in (own / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                opened.add(str(file.readlink()))
    for name in ("tcp", "tcp6"):
        try:
            lines = (own / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for _, local, remote, state, *rest in map(str.split, lines):
            if state == _ESTABLISHED and f"socket:[{rest[5]}]" in opened:
                yield _end(local), _end(remote)


def _end(text: str) -> tuple[str, int]:
    """Address and port in a text such as 0100007F:1F90, in the host's byte order; IPv4-mapped
    addresses become IPv4 ones.
    """
    address, _, port = text.partition(":")
    words = (int(address[start : start + 8], 16) for start in range(0, len(address), 8))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    found = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return found.removeprefix("::ffff:"), int(port, 16)


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
