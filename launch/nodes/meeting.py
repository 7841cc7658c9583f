"""Node 0 waits for the others (joining.py), and makes sure of what all have in common. Imports no torch."""

import importlib.metadata
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpscope.launch.nodes.connection import Connection
from dpscope.launch.nodes.messages import PROTOCOL, Challenge, Hello, Joined, NotShared, Proof, Refused, Unable
from dpscope.launch.nodes.place import Address, NodePlace
from dpscope.launch.nodes.shared_folder import SEEN_WITHIN_S, Meeting, announced
from dpscope.profiling.machine.interfaces import interface_addresses
from dpscope.profiling.store.errors import DpscopeError

WAIT_FOR_NODES_S = 300.0  # people start the command on one node after another
HANDSHAKE_S = 10.0
_ENVIRONMENT_S = 120.0  # collecting it imports torch, from a cold file system
_TURNED_AWAY_S = 2.0


@dataclass(frozen=True)
class JoinedNode:
    """Another node, as node 0 knows it."""

    node: int
    hostname: str
    connection: Connection
    joined: Joined | None = None  # until it has said what it is

    @property
    def name(self) -> str:
        """Such as ``node 1 (gpu07)``."""
        return node_name(self.node, self.hostname)


def node_name(node: int, hostname: str) -> str:
    """Such as ``node 1 (gpu07)``."""
    return f"node {node} ({hostname})"


class StrangerError(Exception):
    """Whoever is at the other end is no dpscope of this folder's."""


@contextmanager
def met(
    place: NodePlace,
    out: Path,
    options: Mapping[str, str],
    note: Callable[[str], None],
    wait_s: float = WAIT_FOR_NODES_S,
) -> Iterator[tuple[JoinedNode, ...]]:
    """Node 0 waits for all others; they are its members while the block runs.

    Raises DpscopeError, and tells all that have come, where one does not come, was started with other `options`, or does not
    share the folder.
    """
    members: dict[int, JoinedNode] = {}
    try:
        with _listening(place) as listener, _announced(place, out, listener) as announcement:
            own = f"Node 0 of {place.count} ({socket.gethostname()})"
            note(f"{own} is waiting for the others at {place.address or out}, for {wait_s:g} s at most.")
            try:
                _gather(place, out, options, note, wait_s, listener, announcement, members)
            except DpscopeError as error:
                _turn_away(listener, str(error), place.count - 1 - len(members))
                raise
        yield tuple(_introduced(member) for _, member in sorted(members.items()))
    except DpscopeError as error:
        for member in members.values():
            member.connection.send(Refused(str(error)))
        raise
    finally:
        for member in members.values():
            member.connection.close()


def _gather(
    place: NodePlace,
    out: Path,
    options: Mapping[str, str],
    note: Callable[[str], None],
    wait_s: float,
    listener: socket.socket,
    announcement: tuple[str, Meeting],
    members: dict[int, JoinedNode],
) -> None:
    """Add nodes to the members until all are there."""
    deadline = time.monotonic() + wait_s
    while len(members) < place.count - 1:
        if (connection := _next(listener, deadline)) is None:
            raise DpscopeError(_who_is_missing(place, members, wait_s))
        try:
            member = _admitted(place, out, options, connection, announcement, members)
        except StrangerError:
            connection.close()
            continue
        members[member.node] = member
        note(f"{member.name} has joined.")


def _turn_away(listener: socket.socket, reason: str, nodes: int) -> None:
    """Tell the nodes that have still to come, and look for node 0 several times a second, that nothing comes of it."""
    deadline = time.monotonic() + _TURNED_AWAY_S
    for _ in range(nodes):
        if (connection := _next(listener, deadline)) is None:
            return
        connection.send(Refused(reason))
        connection.close()


def _next(listener: socket.socket, deadline: float) -> Connection | None:
    """The next that connects, None when the time is over."""
    while (left_s := deadline - time.monotonic()) > 0:
        listener.settimeout(min(1.0, left_s))
        try:
            return Connection(listener.accept()[0])
        except (TimeoutError, ConnectionError):  # nobody came, or went at once
            continue
    return None


@contextmanager
def _listening(place: NodePlace) -> Iterator[socket.socket]:
    port = place.address.port if place.address is not None else 0
    try:
        listener = _listener(port)
    except OSError as error:
        if place.port_stated or place.job is None:
            raise DpscopeError(
                f"--rendezvous {place.address}: cannot listen on port {port} ({error.strerror}); give another port"
            ) from error
        listener = _listener(0)  # the port was dpscope's choice; the others find another one by the folder
    with listener:
        yield listener


def _listener(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


@contextmanager
def _announced(place: NodePlace, out: Path, listener: socket.socket) -> Iterator[tuple[str, Meeting]]:
    port = listener.getsockname()[1]
    hosts = dict.fromkeys((socket.gethostname(), *interface_addresses().values()))
    with announced(out, place.job, tuple(Address(host, port) for host in hosts)) as told:
        yield told


def _admitted(
    place: NodePlace,
    out: Path,
    options: Mapping[str, str],
    connection: Connection,
    announcement: tuple[str, Meeting],
    members: Mapping[int, JoinedNode],
) -> JoinedNode:
    """The node at the other end; raises StrangerError for anything else, DpscopeError for one that does not fit."""
    file, meeting = announcement
    hello = connection.take(HANDSHAKE_S)
    if not isinstance(hello, Hello):
        raise StrangerError
    if place.job is not None and hello.job is not None and hello.job != place.job:
        connection.send(Refused(f"node 0 of another job ({place.job}) listens there", elsewhere=True))
        raise StrangerError
    nonce = secrets.token_hex(16)
    connection.send(Challenge(file, socket.gethostname(), nonce, meeting.proof(0, hello.nonce)))
    answer = connection.take(SEEN_WITHIN_S + HANDSHAKE_S)
    if isinstance(answer, NotShared):
        why_not: str | None = not_shared(out, node_name(hello.node, hello.hostname), answer.looked_in)
    elif not isinstance(answer, Proof) or not meeting.proves(answer.proof, hello.node, nonce):
        raise StrangerError
    else:
        why_not = _misfit(place, options, hello, members)
    if why_not is not None:
        connection.send(Refused(why_not))
        connection.close()
        raise DpscopeError(why_not)
    return JoinedNode(hello.node, hello.hostname, connection)


def not_shared(out: Path, name: str, looked_in: str) -> str:
    return (
        f"--out {out}: {name} does not see what node 0 ({socket.gethostname()}) wrote there (it looked in {looked_in}); "
        "name one folder that all nodes share"
    )


def _misfit(
    place: NodePlace, options: Mapping[str, str], hello: Hello, members: Mapping[int, JoinedNode]
) -> str | None:
    """Why a node cannot take part, None where it can."""
    name, version = node_name(hello.node, hello.hostname), importlib.metadata.version("dpscope")
    if (hello.protocol, hello.version) != (PROTOCOL, version):
        return f"{name} has dpscope {hello.version}, node 0 has {version}: install the same on all nodes"
    if hello.count != place.count:
        return (
            f"--nodes: {name} was started as one of {hello.count} nodes, node 0 as one of {place.count}; give the same number on "
            "all nodes"
        )
    if not 0 < hello.node < place.count or hello.node in members:
        other = f", as was {members[hello.node].name}" if hello.node in members else ""
        return (
            f"--node-rank: {hello.hostname} was started as node {hello.node}{other}; give each node its own number, from 0 to "
            f"{place.count - 1}"
        )
    for option in sorted({*options, *hello.options}):
        own, given = options.get(option), hello.options.get(option)
        if own != given:
            told = [f"{option} {value}" if value is not None else f"no {option}" for value in (given, own)]
            return f"{name} was started with {told[0]}, node 0 with {told[1]}: give the same command on all nodes"
    return None


def _who_is_missing(place: NodePlace, members: Mapping[int, JoinedNode], wait_s: float) -> str:
    missing = [node for node in range(1, place.count) if node not in members]
    here = [node_name(0, socket.gethostname()), *(member.name for _, member in sorted(members.items()))]
    return (
        f"--nodes {place.count}: node{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} did not join within "
        f"{wait_s:g} s ({', '.join(here)} {'are' if len(here) > 1 else 'is'} here); start the command there too, and check "
        f"that {place.address or 'this host'} can be reached from there"
    )


def _introduced(member: JoinedNode) -> JoinedNode:
    said = member.connection.take(_ENVIRONMENT_S)
    if isinstance(said, Unable):
        raise DpscopeError(f"{member.name} cannot take part: {said.reason}")
    if not isinstance(said, Joined):
        raise DpscopeError(
            f"{member.name} was lost before it could take part: {member.connection.lost or 'it sent nothing'}"
        )
    return JoinedNode(member.node, member.hostname, member.connection, said)
