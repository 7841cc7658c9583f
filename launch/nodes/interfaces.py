"""Network interfaces of this host, and their addresses. Imports no torch."""

import contextlib
import fcntl
import socket
import struct

_ADDRESS_OF = 0x8915  # SIOCGIFADDR, linux/sockios.h
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
    """The interface that has an address of this host; None where it is not told."""
    return next((name for name, own in interface_addresses().items() if own == address), None)


def free_port() -> int:
    """A port that is free on this host at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asking:
        asking.bind(("", 0))
        port: int = asking.getsockname()[1]
        return port
