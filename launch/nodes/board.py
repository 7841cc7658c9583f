"""How nodes meet in a torch.distributed.TCPStore, and the sealed states that they exchange there.
Imports no torch.

Node 0 opens the store and announces it in the run folder for the others.
"""

import hashlib
import hmac
import ipaddress
import itertools
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
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dpscope.launch.jobs.node_place import Address, NodePlace
from dpscope.launch.jobs.torchrun import Job
from dpscope.profiling.machine.interfaces import interface_addresses, listening_socket
from dpscope.profiling.records.run import Host
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json_if_there, write_json
from dpscope.profiling.store.shown_text import one_line

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

LOST_S = 15.0  # without a sign of life: longer than a machine that swaps or a busy switch needs
SEEN_WITHIN_S = 10.0  # a network's file system shows a new file of another host late
NOTE_EVERY_S = 15.0
THREAD_NAME = "dpscope-nodes"
_POLL_S = 0.2
_CALL_S = timedelta(seconds=3.0)
# at an address: torch waits for ever for the answer of what accepts a connection and is silent
_ATTEMPT_S = 15.0
_PREFIX = ".tmp-nodes-"
_STATE, _CLAIM = "state", "claim"  # keys of each node
_TORCH_KEY = "init/"  # in which torch's store counts its clients
_NOT_NODE_0 = "what listens there is not node 0 of this command"
_SEAL_DIGITS = 64  # hexadecimal, of SHA-256
# of a state: one of a node with all its devices and variables has some tens of kilobytes
_LONGEST_BYTES = 1 << 20
_Kind = TypeVar("_Kind")


class Meeting(msgspec.Struct, frozen=True):
    """Node 0's file in the run folder, readable by its user alone: any reader can take part."""

    hostname: str  # of node 0
    terms: dict[str, str]
    on_gpus: bool
    job: str | None  # the identifier of this start, if the launcher has one
    hosts: tuple[str, ...]
    port: int
    secret: str

    @property
    def prefix(self) -> str:
        """Prefix of all keys. The secret itself is never sent: a store lists its keys to every
        client.
        """
        return hashlib.sha256(f"prefix {self.secret}".encode()).hexdigest()


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
    grace_s: float | None = None  # node 0: the attempt must end; it has this time to end by itself
    ended: bool = False  # its part of the attempt is over
    exit_status: int | None = None  # torchrun's, if it ended by itself; with `left`, node 0's own
    signal: int = 0  # that requested this node to stop
    left: str | None = None  # why the node takes no further part


class NodeLostError(DpscopeError):
    exit_status = 1

    def __init__(self, loss: str) -> None:
        super().__init__(f"{loss}; to resume, give the same command on all nodes again")


class Board:
    """The published state of this node, and the states of the others.

    A thread exchanges them, because a call to the store blocks for ever if the network is cut. Each
    value is sealed with the run's secret; a value without a valid seal is ignored, and its node
    overwrites it.
    """

    def __init__(
        self,
        store: "Store",
        secret: str,
        node: int,
        others: Iterable[int],
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        """`store` has the run's prefix already; `tidy` is called at every exchange."""
        self.states: dict[int, State] = {other: State() for other in others}
        self._store, self._secret, self._node = store, secret, node
        self._state = State()  # this node's
        self._heard_s = dict.fromkeys(self.states, time.monotonic())
        self._failures: dict[int, str] = {}  # evidence that a node is lost
        self._forged: set[int] = set()  # nodes in whose name a stranger wrote last
        self._tidy = tidy
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
        if (known := self.states[node].left or self._failures.get(node)) is not None:
            return known
        if time.monotonic() - self._heard_s[node] <= LOST_S:
            return None
        why = (
            ", and a program without the run's secret writes in its name"
            if node in self._forged
            else ""
        )
        return f"it was silent for {LOST_S:g} s{why}"

    def close(self) -> None:
        """Publish the last changes, and end."""
        self._closed.set()
        self._thread.join(timeout=2.0)

    def _exchange(self) -> None:
        last, beats, own = False, itertools.count(1), f"{self._node}/{_STATE}"
        try:
            while not last:
                last = self._closed.wait(_POLL_S)
                state = msgspec.structs.replace(self._state, beat=next(beats))
                self._store.set(own, sealed(self._secret, own, state))
                self._tidy()
                for other in set(self.states) - set(self._failures):
                    if self._store.check([key := f"{other}/{_STATE}"]):
                        self._hear(other, key, self._store.get(key))
        except RuntimeError:
            # torch.distributed.DistError: the store, which is in node 0's process, is gone
            self._failures = dict.fromkeys(self.states, "dpscope has exited there") | self._failures

    def _hear(self, other: int, key: str, stored: bytes) -> None:
        self._forged.discard(other)
        try:
            state = unsealed(self._secret, key, stored, State)
        except SealError:
            self._forged.add(other)
        except (ValueError, msgspec.MsgspecError) as error:
            self._failures[other] = f"it sent a state that this dpscope does not know ({error})"
        else:
            if state.beat > self.states[other].beat:
                self.states[other], self._heard_s[other] = state, time.monotonic()


class SealError(ValueError):
    """A value that no node of the run has written, or not under this name."""


def sealed(secret: str, name: str, value: object) -> str:
    """The value as JSON after its seal (HMAC, RFC 2104), which cannot be made or moved to another
    name without the secret.
    """
    content = msgspec.json.encode(value)
    return (_seal(secret, name, content) + content).decode()


def unsealed(secret: str, name: str, stored: bytes, kind: type[_Kind]) -> _Kind:
    """The sealed value with printable texts; raises SealError for a wrong seal and MsgspecError for
    another kind.
    """
    content = stored[_SEAL_DIGITS:]
    too_long = len(content) > _LONGEST_BYTES
    if too_long or not hmac.compare_digest(stored[:_SEAL_DIGITS], _seal(secret, name, content)):
        raise SealError("its seal is wrong")
    return msgspec.convert(_printable(msgspec.json.decode(content)), kind)


def _printable(value: Any) -> Any:
    """Plain data whose texts are one line each, in which nothing controls a terminal."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list):
        return [_printable(one) for one in value]
    return (
        {key: _printable(one) for key, one in value.items()} if isinstance(value, dict) else value
    )


def _seal(secret: str, name: str, content: bytes) -> bytes:
    return (
        hmac.new(secret.encode(), name.encode() + b"\0" + content, hashlib.sha256)
        .hexdigest()
        .encode()
    )


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

    @property
    def terms(self) -> dict[str, str]:
        """What must be the same on all nodes."""
        return {"dpscope": version("dpscope"), "node count": str(self.place.count), **self.options}


@dataclass(frozen=True)
class Found:
    """Node 0, as another node found it."""

    board: Board
    meeting: Meeting
    address: str  # of this node
    node0_address: str


@contextmanager
def opened_meeting(start: NodeStart, on_gpus: bool) -> Iterator[Board]:
    """Open node 0's board and announce it in the run folder until the block ends."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # of torch._C

    place = start.place
    with _listener(place) as listener:
        host, port = listener.getsockname()[:2]
        everywhere = ipaddress.ip_address(host.partition("%")[0]).is_unspecified
        own = "localhost" if everywhere else host
        store = TCPStore(own, port, None, True, _CALL_S, False, master_listen_fd=listener.detach())
    store.set(_public(place), "")
    own_name, secret = socket.gethostname(), secrets.token_hex(16)
    hosts = (own_name, *interface_addresses().values()) if everywhere else (host,)
    meeting = Meeting(
        own_name, start.terms, on_gpus, place.job, tuple(dict.fromkeys(hosts)), port, secret
    )
    known = {
        f"{meeting.prefix}/{node}/{key}" for node in range(place.count) for key in (_STATE, _CLAIM)
    }
    known |= {_public(place), _TORCH_KEY}

    def remove_unknown_keys() -> None:
        """Keep strangers from filling this process's memory, where torch (>= 2.14) can list the
        keys.
        """
        if hasattr(store, "list_keys"):
            for key in set(store.list_keys()) - known:
                store.delete_key(key)

    board = Board(
        PrefixStore(meeting.prefix, store), secret, 0, range(1, place.count), remove_unknown_keys
    )
    path = start.out / f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        write_json(path, meeting, mode=0o600)
        at = "all addresses" if everywhere else host
        start.note(
            f"Node 0 of {place.count} ({own_name}) is waiting for the others on {at}, port {port}."
        )
        yield board
    finally:
        path.unlink(missing_ok=True)
        board.close()


def found_meeting(start: NodeStart) -> Found:
    """Look for node 0 at the rendezvous and at addresses in the run folder; raises DpscopeError if
    it is not found.
    """
    place, out, wait_s = start.place, start.out, start.wait_s
    began_s = noted_s = time.monotonic()
    start.note(
        f"Node {place.rank} of {place.count} ({socket.gethostname()}) is looking for node 0 at {place.address or out}."
    )
    unseen_s: float | None = None  # since when node 0 responds without its file being visible
    reasons: dict[Address, str] = {}
    while (now_s := time.monotonic()) - began_s < wait_s:
        meetings = _meetings(place, out)
        announced = [Address(host, meeting.port) for meeting in meetings for host in meeting.hosts]
        stated = [] if place.address is None else [place.address]
        for address in dict.fromkeys(
            (*stated, *announced) if place.port_stated else (*announced, *stated)
        ):
            if isinstance(answer := _answer(place, address, meetings), Found):
                return answer
            reasons[address] = answer or _NOT_NODE_0
            if not answer and now_s - (unseen_s := unseen_s or now_s) > SEEN_WITHIN_S:
                raise DpscopeError(
                    f"--out {out}: {start.name} does not see or cannot read what node 0 at {address} wrote there (it looked in "
                    f"{out.absolute()}); name one folder that all nodes share, and install the same dpscope on all of them"
                )
        seen = (
            ", ".join(f"{address}: {why}" for address, why in reasons.items())
            or f"no trace of it in {out}"
        )
        if now_s - noted_s > NOTE_EVERY_S:
            noted_s = now_s
            start.note(
                f"Still looking for node 0, {now_s - began_s:.0f} s of {wait_s:g} s: {seen}."
            )
        time.sleep(_POLL_S)
    raise DpscopeError(
        f"{start.name} did not find node 0 within {wait_s:g} s ({seen}): check that it is running, that it can be reached, and "
        "that all nodes share that folder"
    )


def _answer(place: NodePlace, address: Address, meetings: list[Meeting]) -> Found | str:
    """`_met` in a thread, because it may block for ever."""
    answers: queue.SimpleQueue[Found | DpscopeError | str] = queue.SimpleQueue()
    threading.Thread(
        target=lambda: answers.put(_met(place, address, meetings)), name=THREAD_NAME, daemon=True
    ).start()
    try:
        answer = answers.get(timeout=_ATTEMPT_S)
    except queue.Empty:
        return "what listens there does not answer"
    if isinstance(answer, DpscopeError):
        raise answer
    return answer


def _met(place: NodePlace, address: Address, meetings: list[Meeting]) -> Found | DpscopeError | str:
    """Node 0, or the reason; empty if node 0 of this start responds but none of the visible files
    is its.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # of torch._C

    try:
        with socket.create_connection(
            (address.host, address.port), _CALL_S.total_seconds()
        ) as probe:
            near, far = (
                str(end[0]).removeprefix("::ffff:")
                for end in (probe.getsockname(), probe.getpeername())
            )
        store = TCPStore(far, address.port, None, False, _CALL_S, False)
        for meeting in meetings:
            shared = PrefixStore(meeting.prefix, store)
            if shared.check([f"0/{_STATE}"]):
                if not _claimed(shared, meeting.secret, place.rank):
                    return DpscopeError(
                        f"--node-rank {place.rank}: another node was started with it; give each its own number"
                    )
                return Found(Board(shared, meeting.secret, place.rank, (0,)), meeting, near, far)
        return "" if store.check([_public(place)]) else _NOT_NODE_0
    except (OSError, RuntimeError) as error:
        return getattr(error, "strerror", None) or _NOT_NODE_0


def _claimed(store: "Store", secret: str, rank: int) -> bool:
    """Whether this process is the only one of the run with its rank; a claim without a valid seal
    is overwritten.
    """
    name = f"{rank}/{_CLAIM}"
    own = sealed(secret, name, secrets.token_hex(8))
    claim = store.compare_set(name, "", own)
    try:
        unsealed(secret, name, claim, str)
    except SealError:
        store.set(name, own)
        claim = store.get(name)
    return claim == own.encode()


def _public(place: NodePlace) -> str:
    """A key by which nodes that see a different folder recognise node 0."""
    return f"dpscope {place.job or 'by hand'}"


def _listener(place: NodePlace) -> socket.socket:
    """The store's socket; if the port that dpscope chose is taken, one on a free port, which the
    folder announces.
    """
    host, port = (
        (place.address.host, place.address.port) if place.address else (socket.gethostname(), 0)
    )
    try:
        return listening_socket(host, port)
    except OSError as error:
        if place.port_stated or place.job is None:
            raise DpscopeError(
                f"--rendezvous {place.address}: cannot listen on port {port} ({error.strerror}); give another port"
            ) from error
        return listening_socket(host, 0)


def _meetings(place: NodePlace, out: Path) -> list[Meeting]:
    """Announcements for this start in a folder, newest first, including those that killed commands
    left.
    """
    port = place.address.port if place.address is not None and place.port_stated else None
    found = []
    with suppress(OSError):
        for path in sorted(
            out.glob(f"{_PREFIX}*"), key=lambda path: path.stat().st_mtime, reverse=True
        ):
            with suppress(DpscopeError):
                found.append(read_json_if_there(path, Meeting))
    return [
        one
        for one in found
        if one is not None and one.job == place.job and port in (None, one.port)
    ]


def check_alike(start: NodeStart, meeting: Meeting) -> None:
    """Raise DpscopeError where this node was started otherwise than node 0."""
    for what in dict.fromkeys((*start.terms, *meeting.terms)):
        own, first = (
            f"{what} {of[what]}" if what in of else f"no {what}"
            for of in (start.terms, meeting.terms)
        )
        if own != first:
            raise DpscopeError(
                f"{start.name} was started with {own}, node 0 with {first}: give the same command, of the same version, on all "
                "nodes"
            )


def check_devices(start: NodeStart, meeting: Meeting, on_gpus: bool) -> None:
    """Raise DpscopeError where this node runs on the CPU and node 0 on GPUs, or the other way
    round.
    """
    if on_gpus != meeting.on_gpus:
        nodes = (start.name, f"node 0 ({meeting.hostname})")
        has, lacks = nodes if on_gpus else nodes[::-1]
        raise DpscopeError(
            f"--device: {has} has GPUs and {lacks} has none; start the command on nodes that all have them, or give --device cpu"
        )
