"""Sealed states that nodes exchange in a torch.distributed.TCPStore, and which nodes are alive. Imports no torch."""

import hashlib
import hmac
import ipaddress
import itertools
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dpscope.profiling.records.run import Host
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


class Meeting(msgspec.Struct, frozen=True):
    """Node 0's file in the run folder, readable by its user alone: any reader can take part."""

    dpscope: str  # its version
    hostname: str  # of node 0
    count: int
    options: dict[str, str]  # of the command
    on_gpus: bool
    job: str | None  # the identifier of this start, if the launcher has one
    hosts: tuple[str, ...]
    port: int
    secret: str

    @property
    def prefix(self) -> str:
        """Prefix of all keys. The secret itself is never sent: a store lists its keys to every client."""
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
    attempt: int = 0  # at a job, counted by node 0
    job: int | None = None  # node 0: index in the plan that every node derives; None: end leftovers of earlier commands
    digest: str = ""  # node 0: of that job's command, so that all nodes run the same
    port: int = 0  # node 0: of its torchrun
    grace_s: float | None = None  # node 0: the attempt must end; it has this time to end by itself
    ended: bool = False  # its part of the attempt is over
    exit_status: int | None = None  # torchrun's, if it ended by itself; with `left`, node 0's own
    signal: int = 0  # that requested this node to stop
    left: str | None = None  # why the node takes no further part


LOST_S = 15.0  # without a sign of life: longer than a machine that swaps or a busy switch needs
THREAD_NAME = "dpscope-nodes"
_POLL_S = 0.2
_SEAL_DIGITS = 64  # hexadecimal, of SHA-256
_Kind = TypeVar("_Kind")


class NodeLostError(DpscopeError):
    """A node of a command is lost."""

    exit_status = 1

    def __init__(self, loss: str) -> None:
        super().__init__(f"{loss}; to resume, give the same command on all nodes again")


class Board:
    """The published state of this node, and the states of the others.

    A thread exchanges them, because a call to the store blocks for ever if the network is cut. Each value is sealed with the
    run's secret; a value without a valid seal counts as the loss of its node.
    """

    def __init__(self, store: "Store", secret: str, node: int, others: Iterable[int]) -> None:
        """`store` has the run's prefix already."""
        self.joined: dict[int, NodeInfo] = {}  # the other nodes that have joined
        self.states: dict[int, State] = {other: State() for other in others}
        self._store = store
        self._secret = secret
        self._node = node
        self._state = State()  # this node's
        self._info: NodeInfo | None = None  # this node's, until it is written
        self._heard_s = dict.fromkeys(self.states, time.monotonic())
        self._failures: dict[int, str] = {}  # evidence that a node is lost
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def publish(self, info: NodeInfo | None = None, **changes: Any) -> None:
        """Publish changes of this node's state."""
        self._info = info or self._info
        self._state = msgspec.structs.replace(self._state, **changes)

    def lost(self, node: int) -> str | None:
        """The evidence that a node is lost; None while it is alive."""
        silent = f"it was silent for {LOST_S:g} s" if time.monotonic() - self._heard_s[node] > LOST_S else None
        return self.states[node].left or self._failures.get(node) or silent

    def close(self) -> None:
        """Publish the last changes, and end."""
        self._closed.set()
        self._thread.join(timeout=2.0)

    def _exchange(self) -> None:
        last, beats = False, itertools.count(1)
        try:
            while not last:
                last = self._closed.wait(_POLL_S)
                if self._info is not None:
                    self._write(f"{self._node}/info", self._info)
                    self._info = None
                self._write(f"{self._node}/state", msgspec.structs.replace(self._state, beat=next(beats)))
                for other in set(self.states) - set(self._failures):
                    self._hear(other)
        except RuntimeError:  # torch.distributed.DistError: the store, which is in node 0's process, is gone
            self._failures = dict.fromkeys(self.states, "dpscope has exited there") | self._failures

    def _hear(self, other: int) -> None:
        try:
            if (state := self._read(f"{other}/state", State)) is not None and state.beat > self.states[other].beat:
                self.states[other], self._heard_s[other] = state, time.monotonic()
            if other not in self.joined and (info := self._read(f"{other}/info", NodeInfo)) is not None:
                self.joined[other] = info
        except ValueError as error:
            self._failures[other] = f"a message in its name was not sent by a node of this run ({error})"

    def _write(self, key: str, value: NodeInfo | State) -> None:
        self._store.set(key, sealed(self._secret, key, value))

    def _read(self, key: str, kind: type[_Kind]) -> _Kind | None:
        return unsealed(self._secret, key, self._store.get(key), kind) if self._store.check([key]) else None


def sealed(secret: str, name: str, value: object) -> str:
    """The value as JSON after its seal (HMAC, RFC 2104), which cannot be made or moved to another name without the secret."""
    content = msgspec.json.encode(value)
    return (_seal(secret, name, content) + content).decode()


def unsealed(secret: str, name: str, stored: bytes, kind: type[_Kind]) -> _Kind:
    """The sealed value with printable texts; raises ValueError for anything else."""
    content = stored[_SEAL_DIGITS:]
    if not hmac.compare_digest(stored[:_SEAL_DIGITS], _seal(secret, name, content)):
        raise ValueError("its seal is wrong")
    try:
        return msgspec.convert(printable(msgspec.json.decode(content)), kind)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def printable(value: Any) -> Any:
    """Plain data whose texts have a space in place of each character that may control a terminal."""
    if isinstance(value, str):
        return "".join(one if one.isprintable() else " " for one in value)
    if isinstance(value, list):
        return [printable(one) for one in value]
    return {key: printable(one) for key, one in value.items()} if isinstance(value, dict) else value


def _seal(secret: str, name: str, content: bytes) -> bytes:
    return hmac.new(secret.encode(), name.encode() + b"\0" + content, hashlib.sha256).hexdigest().encode()
