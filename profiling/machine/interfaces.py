"""Network interfaces of this host, and their addresses. Imports no torch."""

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

_ADDRESS_OF = 0x8915  # SIOCGIFADDR, linux/sockios.h
_IPV6 = Path("/proc/net/if_inet6")  # proc(5): address, index, prefix length, scope, flags, name
_ESTABLISHED = "01"
_LOOPBACK = "127."


def interface_addresses() -> dict[str, str]:
    """IPv4 addresses of the interfaces that have one, by the interface's name, loopback last; empty outside Linux."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(asking.fileno(), _ADDRESS_OF, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(answer[20:24])
    return dict(sorted(found.items(), key=lambda one: one[1].startswith(_LOOPBACK)))


def interface_of(address: str) -> str | None:
    """The interface that has an address of this host, IPv4 or IPv6; None where it is not told."""
    own = {told: name for name, told in interface_addresses().items()} | ipv6_interfaces()
    return own.get(address.partition("%")[0])


def host_at(node: int, address: str, environment: Environment) -> Host:
    """This host as a node of a command, by the address at which others reach it.

    The interface is the one that gloo is given unless the user chose another; by itself gloo takes the address that the host's
    own name has, which on many systems is a loopback one.
    """
    chosen = environment.settings.get("GLOO_SOCKET_IFNAME")
    by = "GLOO_SOCKET_IFNAME" if chosen is not None else "the route between the nodes"
    return Host(node, environment.hostname, address, chosen or interface_of(address), by, environment)


def ipv6_interfaces(of: Path = _IPV6) -> dict[str, str]:
    """The interface of each IPv6 address of this host, addresses as they are usually written; empty outside Linux."""
    try:
        lines = of.read_text().splitlines()
    except OSError:
        return {}
    told = (line.split() for line in lines)
    return {socket.inet_ntop(socket.AF_INET6, bytes.fromhex(one[0])): one[-1] for one in told}


def interfaces_to_others(except_port: int, own: Path = Path("/proc/self")) -> tuple[str, ...]:
    """Interfaces over which this process has TCP connections to other hosts, but for those from or to one port.

    What gloo and NCCL's sockets really use; a collective that goes by RDMA shows no connection. Empty outside Linux.
    """
    addresses = {told: name for name, told in interface_addresses().items()} | ipv6_interfaces()
    found = set()
    for local, remote in _connections(own):
        if except_port not in (local[1], remote[1]) and remote[0] not in addresses and local[0] in addresses:
            found.add(addresses[local[0]])
    return tuple(sorted(found))


def _connections(own: Path) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Both ends of each established TCP connection of a process, proc(5): net/tcp and its open files."""
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
    """Address and port of such as 0100007F:1F90: words of the host's byte order; an IPv4 address in IPv6's is told as such."""
    address, _, port = text.partition(":")
    words = (int(address[start : start + 8], 16) for start in range(0, len(address), 8))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    told = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return told.removeprefix("::ffff:"), int(port, 16)


def free_port() -> int:
    """A port that is free on this host at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asking:
        asking.bind(("", 0))
        port: int = asking.getsockname()[1]
        return port


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at the address of a host's name alone, if it is one of this machine's, else at all addresses.

    A loopback address that a name has, as Debian gives the host's own, is not taken: others do not arrive there. Raises OSError.
    """
    for address in dict.fromkeys((_stated_address(host), "")):
        try:
            if ":" in address or (not address and socket.has_dualstack_ipv6()):
                return socket.create_server((address, port), family=socket.AF_INET6, dualstack_ipv6=not address)
            return socket.create_server((address, port))
        except OSError as error:
            if not address or error.errno != errno.EADDRNOTAVAIL:
                raise
    raise AssertionError("all addresses are always available")


def _stated_address(host: str) -> str:
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""
    return "" if address != host and ipaddress.ip_address(address.partition("%")[0]).is_loopback else address
