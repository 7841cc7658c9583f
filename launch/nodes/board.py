"""How nodes meet in a torch.distributed.TCPStore, and the sealed states that they exchange there.
Imports no torch.

Node 0 opens the store and announces it in the run folder, in which the others find it.
"""

import hashlib
import hmac
import ipaddress
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dpscope.launch.jobs.node_place import Address, NodePlace
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import Job
from dpscope.profiling.machine.interfaces import (
    connection_to,
    interface_addresses,
    listening_socket,
)
from dpscope.profiling.records.run import Host
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json_if_there, write_json
from dpscope.profiling.store.shown_text import one_line

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

LOST_S = 15.0  # without a sign of life: longer than a machine that swaps or a busy switch needs
THREAD_NAME = "dpscope-nodes"
_POLL_S = 0.2
_CALL_S = timedelta(seconds=3.0)
# at an address: torch waits for ever for the answer of what accepts a connection and is silent
_ATTEMPT_S = 15.0
_PREFIX = ".tmp-nodes-"
_SEAL_DIGITS = 64  # hexadecimal, of SHA-256


class Meeting(msgspec.Struct, frozen=True):
    """Node 0's file in the run folder, readable by its user alone: any reader can take part."""

    hostname: str  # of node 0
    terms: dict[str, str]
    job: str | None  # the identifier of this start, if the launcher has one
    hosts: tuple[str, ...]
    port: int
    secret: str


class NodeInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that has joined."""

    host: Host
    node0_address: str  # as this node reaches it
    gpus: int | None  # that torch can use; None: on the CPU

    def __post_init__(self) -> None:
        ipaddress.ip_address(self.node0_address.partition("%")[0])  # it is passed to torchrun


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a node; it holds nothing that another node would execute."""

    beat: int = 0  # increases as long as the node lives
    info: NodeInfo | None = None  # once it has joined
    attempt: int = 0  # at a job, counted by node 0
    # Node 0: digest of the job's command, as every node derives it from its plan; None: end
    # leftovers of earlier commands.
    job: str | None = None
    port: int = 0  # node 0: of its torchrun
    must_end: bool = False  # node 0: the attempt
    ended: bool = False  # its part of the attempt is over
    exit_status: int | None = None  # torchrun's, if it ended by itself; with `left`, node 0's own
    signal: Literal[0, 1, 2, 15] = 0  # SIGHUP, SIGINT or SIGTERM, which requested it to stop
    left: str | None = None  # why the node takes no further part


class NodeLostError(DpscopeError):
    exit_status = 1

    def __init__(self, loss: str) -> None:
        super().__init__(f"{loss}; to resume, give the same command on all nodes again")


class Board:
    """The published state of this node, and the states of the others.

    A thread exchanges them, because a call to the store blocks for ever if the network is cut. A
    state without a valid seal is ignored, and its node overwrites it. The first signal that
    requested another node to stop is sent to this process, too.
    """

    def __init__(self, store: "Store", secret: str, node: int, others: Iterable[int]) -> None:
        self.states: dict[int, State] = {other: State() for other in others}
        self.stop = StopRequest()
        """The request to this node, which the others are told."""
        self._store, self._secret, self._node = store, secret, node
        self._state = State()  # this node's
        self._heard_s = dict.fromkeys(self.states, time.monotonic())
        self._failures: dict[int, str] = {}  # evidence that a node is lost
        self._relayed = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name=THREAD_NAME, daemon=True)
        self._thread.start()

    @property
    def joined(self) -> dict[int, NodeInfo]:
        """The other nodes that have joined."""
        return {node: state.info for node, state in self.states.items() if state.info is not None}

    def publish(self, **changes: Any) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)

    def lost(self, node: int) -> str | None:
        """The evidence that a node is lost; None while it is alive."""
        if evidence := self.states[node].left or self._failures.get(node):
            return one_line(evidence)
        is_silent = time.monotonic() - self._heard_s[node] > LOST_S
        return f"it was silent for {LOST_S:g} s" if is_silent else None

    def close(self) -> None:
        """Publish the last changes, and end."""
        self._closed.set()
        self._thread.join(timeout=2.0)

    def _exchange(self) -> None:
        last, beat, key = False, 0, _state_key(self._node)
        try:
            while not last:
                last = self._closed.wait(_POLL_S)
                beat += 1
                number = self.stop.signal_number or 0
                state = msgspec.structs.replace(self._state, beat=beat, signal=number)
                self._store.set(key, sealed(self._secret, key, state))
                for other in set(self.states) - set(self._failures):
                    self._hear(other)
        except RuntimeError:
            # torch.distributed.DistError: the store, which is in node 0's process, is gone
            self._failures = dict.fromkeys(self.states, "dpscope has exited there") | self._failures

    def _hear(self, other: int) -> None:
        try:
            state = read_state(self._store, self._secret, other)
        except (ValueError, msgspec.MsgspecError) as error:
            self._failures[other] = f"it sent a state that this dpscope does not know ({error})"
            return
        if state is None or state.beat <= self.states[other].beat:
            return
        self.states[other], self._heard_s[other] = state, time.monotonic()
        if state.signal and not self._relayed:
            self._relayed = True
            os.kill(os.getpid(), state.signal)


def read_state(store: "Store", secret: str, node: int) -> State | None:
    """A node's state; None without one, or without a valid seal. Raises MsgspecError for another
    kind.
    """
    key = _state_key(node)
    stored = store.get(key) if store.check([key]) else b""
    content = stored[_SEAL_DIGITS:]
    if not hmac.compare_digest(stored[:_SEAL_DIGITS], _seal(secret, key, content)):
        return None
    return msgspec.json.decode(content, type=State)


def sealed(secret: str, name: str, value: object) -> str:
    """The value as JSON after its seal (HMAC, RFC 2104), which cannot be made or moved to another
    name without the secret.
    """
    content = msgspec.json.encode(value)
    return (_seal(secret, name, content) + content).decode()


def _seal(secret: str, name: str, content: bytes) -> bytes:
    digest = hmac.new(secret.encode(), name.encode() + b"\0" + content, hashlib.sha256)
    return digest.hexdigest().encode()


def _state_key(node: int) -> str:
    return f"{node}/state"


@dataclass(frozen=True)
class NodeStart:
    place: NodePlace
    out: Path  # shared by the nodes
    options: Mapping[str, str]  # equal on all nodes
    note: Callable[[str], None]  # prints a line
    wait_s: float  # for the other nodes
    plan: Callable[[], Sequence[Job]] = tuple
    """Reads the jobs planned over several nodes from `out`: every node derives the same, and none
    is sent a command.
    """

    @property
    def name(self) -> str:
        """Such as ``node 1 (gpu07)``."""
        return f"node {self.place.rank} ({socket.gethostname()})"

    def terms(self, on_gpus: bool) -> dict[str, str]:
        """What must be the same on all nodes."""
        return {
            "dpscope": version("dpscope"),
            "node count": str(self.place.count),
            "device": "cuda" if on_gpus else "cpu",
            **self.options,
        }


@contextmanager
def opened_meeting(start: NodeStart, on_gpus: bool) -> Iterator[Board]:
    """Open node 0's board and announce it in the run folder until the block ends."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # of torch._C

    place, hostname = start.place, socket.gethostname()
    stated = place.address or Address(hostname, 0)
    try:
        with listening_socket(stated.host, stated.port) as listener:
            host, port = listener.getsockname()[:2]
            everywhere = ipaddress.ip_address(host.partition("%")[0]).is_unspecified
            reached, file = "localhost" if everywhere else host, listener.detach()
    except OSError as error:
        raise DpscopeError(
            f"--rendezvous {stated}: cannot listen on port {stated.port} ({error.strerror}); give another port"
        ) from error
    store = TCPStore(reached, port, None, True, _CALL_S, False, master_listen_fd=file)
    hosts = (hostname, *interface_addresses().values()) if everywhere else (host,)
    secret = secrets.token_hex(16)
    board = Board(store, secret, 0, range(1, place.count))
    path = start.out / f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        meeting = Meeting(hostname, start.terms(on_gpus), place.job, hosts, port, secret)
        write_json(path, meeting, mode=0o600)
        at = "all addresses" if everywhere else host
        start.note(
            f"Node 0 of {place.count} ({hostname}) is waiting for the others on {at}, port {port}."
        )
        yield board
    finally:
        path.unlink(missing_ok=True)
        board.close()


@dataclass(frozen=True)
class Node0:
    """Node 0, as another node reaches it."""

    board: Board  # of the other node
    meeting: Meeting
    address: str
    address_here: str  # of the other node


def found_meeting(start: NodeStart) -> Node0:
    """Look for node 0 at the addresses in the run folder; raises DpscopeError if it is not found."""
    place, out = start.place, start.out
    start.note(
        f"Node {place.rank} of {place.count} ({socket.gethostname()}) is looking for node 0 in {out}."
    )
    deadline_s = time.monotonic() + start.wait_s
    reason = f"no file of it in {out.absolute()}"
    stated = [] if place.address is None else [place.address.host]
    while time.monotonic() < deadline_s:
        for meeting in _meetings(place, out):
            for host in dict.fromkeys((*stated, *meeting.hosts)):
                address = Address(host, meeting.port)
                answer = _answer(place, meeting, address)
                if isinstance(answer, Node0):
                    return answer
                reason = f"{address}: {answer}"
        time.sleep(_POLL_S)
    raise DpscopeError(
        f"{start.name} did not find node 0 within {start.wait_s:g} s ({reason}): check that it is running, that it can be "
        "reached, that all nodes share that folder, and that they have the same dpscope"
    )


def _meetings(place: NodePlace, out: Path) -> list[Meeting]:
    """Announcements for this start in a folder, including those that killed commands left.

    A stated port distinguishes two commands in one folder, the second of which will be refused.
    """
    port = 0 if place.address is None else place.address.port
    meetings = []
    for path in out.glob(f"{_PREFIX}*"):
        with suppress(DpscopeError):  # of another version
            meeting = read_json_if_there(path, Meeting)
            if meeting is not None and meeting.job == place.job and port in (0, meeting.port):
                meetings.append(meeting)
    return meetings


def _answer(place: NodePlace, meeting: Meeting, address: Address) -> Node0 | str:
    """`_met` in a thread, because it may block for ever."""
    answers: queue.SimpleQueue[Node0 | DpscopeError | str] = queue.SimpleQueue()
    threading.Thread(
        target=lambda: answers.put(_met(place, meeting, address)), name=THREAD_NAME, daemon=True
    ).start()
    try:
        answer = answers.get(timeout=_ATTEMPT_S)
    except queue.Empty:
        return "what listens there does not answer"
    if isinstance(answer, DpscopeError):
        raise answer
    return answer


def _met(place: NodePlace, meeting: Meeting, address: Address) -> Node0 | DpscopeError | str:
    """Node 0, or why it is not there."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # of torch._C

    try:
        store = TCPStore(address.host, address.port, None, False, _CALL_S, False)
        near, far = connection_to(address.port)
        if read_state(store, meeting.secret, 0) is None:
            return "what listens there is not node 0 of this command"
        if read_state(store, meeting.secret, place.rank) is not None:
            return DpscopeError(
                f"--node-rank {place.rank}: another node was started with it; give each its own number"
            )
        return Node0(Board(store, meeting.secret, place.rank, (0,)), meeting, far, near)
    except (OSError, RuntimeError):
        return f"no connection within {_CALL_S.total_seconds():g} s"


def check_alike(start: NodeStart, info: NodeInfo, meeting: Meeting) -> None:
    """Raise DpscopeError where this node was started otherwise than node 0."""
    here, there = start.terms(info.gpus is not None), meeting.terms
    for name in dict.fromkeys((*here, *there)):
        mine, other = here.get(name, "unset"), there.get(name, "unset")
        if mine != other:
            raise DpscopeError(
                f"{start.name} was started with {name} {mine}, node 0 with {other}: give the same command, of the same version, "
                "on all nodes, which must all have GPUs or run on the CPU"
            )
