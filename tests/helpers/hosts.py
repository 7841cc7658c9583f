"""Two to four hosts on one machine: network namespaces on a bridge, each host's way out shaped to a
rate.

    with several_hosts(2, rate="200mbit") as hosts:
        jobs = [host.start(["python", "job.py", str(index)]) for index, host in enumerate(hosts)]

Needs root and iproute2 (`ip`, `tc` with tbf); `why_no_hosts` returns what is missing. At the end
processes are killed and namespaces deleted. What a killed test process left is deleted by the next
one, since names hold the owner's process id.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "eth1"
MOST_HOSTS = 4
# a burst holds one large packet of 64 kB; more of it would pass unshaped
_BURST, _LATENCY = "80kb", "20ms"
_NAME = re.compile(r"dpscope-(\d+)-\w+")
_FILES = Path("/etc/netns")  # what lies there for a namespace, `ip netns exec` shows in /etc


@dataclass(frozen=True)
class Host:
    """One network namespace, and its address there."""

    namespace: str
    address: str
    name: str = "host"

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        set_gloo_interface: bool = True,
        **more: object,
    ) -> subprocess.Popen[str]:
        """Start a process on this host, in a new session, where the host has its own name; gloo
        gets the interface.
        """
        environment = {
            **os.environ,
            **({"GLOO_SOCKET_IFNAME": INTERFACE} if set_gloo_interface else {}),
            **(env or {}),
        }
        named = [
            "unshare",
            "--uts",
            "sh",
            "-c",
            'echo "$0" > /proc/sys/kernel/hostname && exec "$@"',
            self.name,
        ]
        whole = ["ip", "netns", "exec", self.namespace, *named, *command]
        return subprocess.Popen(whole, env=environment, text=True, start_new_session=True, **more)  # type: ignore[call-overload,no-any-return]

    def cut(self) -> None:
        """Take its network down: nothing that it sends arrives, without an error."""
        _ip("-n", self.namespace, "link", "set", INTERFACE, "down")

    def reconnect(self) -> None:
        """Bring its network up again."""
        _ip("-n", self.namespace, "link", "set", INTERFACE, "up")


def why_no_hosts() -> str | None:
    """Why hosts cannot be made on this machine; None if they can."""
    if os.geteuid() != 0:
        return "needs root: network namespaces are made"
    if lacking := [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]:
        return f"needs iproute2: {', '.join(lacking)} is not installed"
    try:
        with several_hosts(2, rate="1gbit"):
            return None
    except subprocess.CalledProcessError as error:
        return f"this kernel or container does not allow it: {' '.join(error.cmd)}: {error.stderr.strip()}"


@contextlib.contextmanager
def several_hosts(count: int, rate: str | None = None) -> Iterator[list[Host]]:
    """`count` hosts that reach each other at 10.199.8.1, .2, ...; `rate` is what each may send, as
    tc writes it (200mbit).
    """
    assert 2 <= count <= MOST_HOSTS
    _delete(lambda owner: not Path(f"/proc/{owner}").exists())
    prefix = f"dpscope-{os.getpid()}"
    hosts = [
        Host(f"{prefix}-h{number}", f"10.199.8.{number}", f"host{number}")
        for number in range(1, count + 1)
    ]
    try:
        switch = f"{prefix}-sw"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "mtu", "9000", "up")
        for number, host in enumerate(hosts, start=1):
            _connect(host, switch, f"p{number}", rate)
            _name_all(host, hosts)
        yield hosts
    finally:
        _delete(lambda owner: owner == os.getpid())


def _connect(host: Host, switch: str, port: str, rate: str | None) -> None:
    _ip("netns", "add", host.namespace)
    ends = ("type", "veth", "peer", "name", port, "netns", switch, "mtu", "9000")
    _ip("link", "add", INTERFACE, "netns", host.namespace, "mtu", "9000", *ends)
    _ip("-n", switch, "link", "set", port, "master", "br0", "up")
    _ip("-n", host.namespace, "link", "set", "lo", "up")
    _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
    _ip("-n", host.namespace, "link", "set", INTERFACE, "up")
    if rate is not None:
        shaped = ("root", "tbf", "rate", rate, "burst", _BURST, "latency", _LATENCY)
        _run(["tc", "-n", host.namespace, "qdisc", "add", "dev", INTERFACE, *shaped])


def _name_all(host: Host, hosts: Sequence[Host]) -> None:
    """The host resolves all of them by name, without a name server."""
    folder = _FILES / host.namespace
    folder.mkdir(parents=True)
    names = [("127.0.0.1", "localhost"), *((one.address, one.name) for one in hosts)]
    (folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in names))
    (folder / "resolv.conf").write_text("options timeout:1 attempts:1\n")


def _delete(whose: Callable[[int], bool]) -> None:
    """Kill what runs in namespaces of ours whose owner is meant, and delete them."""
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=False
    ).stdout
    for found in _NAME.finditer(listed):
        if not whose(int(found[1])):
            continue
        pids = subprocess.run(
            ["ip", "netns", "pids", found[0]], capture_output=True, text=True, check=False
        ).stdout
        for pid in pids.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", found[0]], capture_output=True, check=False)
        shutil.rmtree(_FILES / found[0], ignore_errors=True)


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
