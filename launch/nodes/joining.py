"""Another node looks for node 0, by the rendezvous and by the run folder, and joins it. Imports no torch."""

import importlib.metadata
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dpscope.launch.nodes.connection import LOST_S, Connection
from dpscope.launch.nodes.meeting import HANDSHAKE_S, WAIT_FOR_NODES_S, StrangerError, node_name, not_shared
from dpscope.launch.nodes.messages import PROTOCOL, Challenge, Hello, Message, NotShared, Proof, Refused
from dpscope.launch.nodes.place import Address, NodePlace
from dpscope.launch.nodes.shared_folder import SEEN_WITHIN_S, meetings_of, named_meeting
from dpscope.profiling.store.errors import DpscopeError

_CONNECT_S = 3.0
_POLL_S = 0.3
_TELL_AFTER_S = 15.0  # why node 0 is not found yet: nodes start one after another, and names become known late


def found(
    place: NodePlace,
    out: Path,
    options: Mapping[str, str],
    note: Callable[[str], None],
    wait_s: float = WAIT_FOR_NODES_S,
    seen_within_s: float = SEEN_WITHIN_S,
    tell_after_s: float = _TELL_AFTER_S,
) -> tuple[Connection, str]:
    """Look for node 0; its connection and what node 0 is called.

    Raises DpscopeError where it is not found, or wants nothing of this node.
    """
    own = node_name(place.rank, socket.gethostname())
    note(
        f"Node {place.rank} of {place.count} ({socket.gethostname()}) is looking for node 0 at {place.address or out}."
    )
    began = time.monotonic()
    told = False
    reasons: dict[Address, str] = {}
    while time.monotonic() - began < wait_s:
        for address in _addresses(place, out):
            try:
                return _joined(place, out, options, address, seen_within_s)
            except (OSError, StrangerError) as error:
                reasons[address] = getattr(error, "strerror", None) or str(error) or "no answer"
        if not told and time.monotonic() - began > tell_after_s:
            told = True
            note(f"Still looking for node 0: {_in_words(reasons, out)}.")
        time.sleep(_POLL_S)
    raise DpscopeError(
        f"{own} did not find node 0 within {wait_s:g} s ({_in_words(reasons, out)}): check that it is running, that it "
        "can be reached, and that all nodes share that folder"
    )


def _in_words(reasons: Mapping[Address, str], out: Path) -> str:
    """
    >>> _in_words({Address("host0", 29500): "Connection refused"}, Path("run"))
    'host0:29500: Connection refused'
    """
    told = ", ".join(f"{address}: {reason}" for address, reason in reasons.items())
    return told or f"no trace of it in {out}"


def _addresses(place: NodePlace, out: Path) -> list[Address]:
    """The rendezvous first, unless the folder tells of another port: then somebody else may listen at this one."""
    meetings = meetings_of(out, place.job) if place.job is not None else []
    told = [address for meeting in meetings for address in meeting.addresses]
    known = [] if place.address is None else [place.address]
    moved = told and known and known[0].port not in {one.port for one in told}
    return list(dict.fromkeys((*told, *known) if moved else (*known, *told)))


def _joined(
    place: NodePlace, out: Path, options: Mapping[str, str], address: Address, seen_within_s: float
) -> tuple[Connection, str]:
    """As `found`, of whoever is at one address; raises StrangerError where it is something else, OSError where nobody is."""
    connection = Connection(socket.create_connection((address.host, address.port), timeout=_CONNECT_S))
    try:
        return connection, _taken_part(place, out, options, connection, seen_within_s)
    except (DpscopeError, StrangerError):
        connection.close()
        raise


def _taken_part(
    place: NodePlace, out: Path, options: Mapping[str, str], connection: Connection, seen_within_s: float
) -> str:
    """What node 0 is called, once it knows this node; raises StrangerError where something else listens there."""
    nonce = secrets.token_hex(16)
    version, hostname = importlib.metadata.version("dpscope"), socket.gethostname()
    connection.send(Hello(PROTOCOL, version, place.rank, place.count, hostname, dict(options), nonce, place.job))
    challenge = connection.take(HANDSHAKE_S + LOST_S)
    if isinstance(challenge, Refused) and challenge.elsewhere:
        raise StrangerError(challenge.reason)
    if (reason := refusal_reason(challenge)) is not None:
        raise DpscopeError(reason)
    if not isinstance(challenge, Challenge):
        raise StrangerError("what listens there is not dpscope")
    meeting = named_meeting(out, challenge.file, seen_within_s)
    if meeting is None:
        connection.send(NotShared(str(out.absolute())))
        raise DpscopeError(
            refusal_reason(connection.take(HANDSHAKE_S)) or not_shared(out, node_name(place.rank, hostname), str(out))
        )
    if not meeting.proves(challenge.proof, 0, nonce):
        raise StrangerError("what listens there is another dpscope")
    connection.send(Proof(meeting.proof(place.rank, challenge.nonce)))
    return node_name(0, challenge.hostname)


def refusal_reason(message: Message | None) -> str | None:
    """Why node 0 wants nothing of this one; None where the message is another."""
    return message.reason if isinstance(message, Refused) else None
