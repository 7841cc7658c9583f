"""Network interfaces of this host, and their addresses. Imports no torch."""

import contextlib
import fcntl
import socket
import struct
from pathlib import Path

_ADDRESS_OF = 0x8915  # SIOCGIFADDR, linux/sockios.h
_IPV6 = Path("/proc/net/if_inet6")  # proc(5): address, index, prefix length, scope, flags, name
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


def ipv6_interfaces(of: Path = _IPV6) -> dict[str, str]:
    """The interface of each IPv6 address of this host, addresses as they are usually written; empty outside Linux."""
    try:
        lines = of.read_text().splitlines()
    except OSError:
        return {}
    told = (line.split() for line in lines)
    return {socket.inet_ntop(socket.AF_INET6, bytes.fromhex(one[0])): one[-1] for one in told}


def free_port() -> int:
    """A port that is free on this host at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asking:
        asking.bind(("", 0))
        port: int = asking.getsockname()[1]
        return port
