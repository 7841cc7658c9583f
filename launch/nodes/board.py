"""How nodes meet in a torch.distributed.TCPStore at node 0's address, and the states that they
exchange there. Imports no torch.
"""

import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dpscope.launch.jobs.node_place import NodePlace
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import Job
from dpscope.profiling.machine.interfaces import listening_socket
from dpscope.profiling.records.run import Host
from dpscope.profiling.store.errors import DpscopeError, error_line
from dpscope.profiling.store.shown_text import one_line

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

LOST_S = 15.0  # without a sign of life: longer than a machine that swaps or a busy switch needs
THREAD_NAME = "dpscope-nodes"
_POLL_S = 0.2
_CALL_S = timedelta(seconds=3.0)
_MARK_PREFIX = ".tmp-nodes-"  # of node 0's file in the run folder


class NodeInfo(msgspec.Struct, frozen=True):
    """A node that has joined."""

    host: Host
    node0_address: str  # as this node reaches it
    terms: dict[str, str]  # of its command: must be the same on all nodes


class State(msgspec.Struct, frozen=True):
    """The state of a node; it holds nothing that another node would execute."""

    beat: int = 0  # increases as long as the node lives
    info: NodeInfo | None = None  # once it has joined
    attempt: int = (
        0  # at a job: the current one of node 0, the last one that another node has ended
    )
    job: str | None = None  # node 0: folder of the job that runs on several nodes
    port: int = 0  # node 0: of its torchrun
    exit_status: int | None = None  # of the node's torchrun; with `left`, of node 0's command
    signal: Literal[0, 1, 2, 15] = 0  # SIGHUP, SIGINT or SIGTERM, which requested it to stop
    left: str | None = None  # why the node takes no further part


class NodeLostError(DpscopeError):
    exit_status = 1

    def __init__(self, loss: str) -> None:
        super().__init__(f"{loss}; to resume, give the same command on all nodes again")


class Board:
    """The published state of this node, and the states of the others.

    A thread exchanges them, because a call to the store blocks for ever if the network is cut. The
    first signal that requested another node to stop is sent to this process, too.
    """

    def __init__(self, store: "Store", node: int, others: Iterable[int]) -> None:
        self.states: dict[int, State] = {other: State() for other in others}
        self.stop = StopRequest()
        """The request to this node, which the others are told."""
        self._store = store
        self._node = node
        self._state = State()  # this node's
        self._heard_s = {0: time.monotonic()}  # the others join later
        self._failure: str | None = None  # of the exchange
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
        if evidence := self.states[node].left or self._failure:
            return one_line(evidence)
        is_silent = time.monotonic() - self._heard_s.get(node, math.inf) > LOST_S
        return f"it was silent for {LOST_S:g} s" if is_silent else None

    def close(self) -> None:
        """Publish the last changes, and end."""
        self._closed.set()
        self._thread.join(timeout=2.0)

    def _exchange(self) -> None:
        beat, is_last = 0, False
        try:
            while not is_last:
                is_last = self._closed.wait(_POLL_S)
                beat += 1
                number = self.stop.signal_number or 0
                state = msgspec.structs.replace(self._state, beat=beat, signal=number)
                self._store.set(_key(self._node), msgspec.json.encode(state).decode())
                for other in self.states:
                    self._hear(other)
        except msgspec.MsgspecError as error:
            self._failure = f"a state in the store is none of dpscope's ({error})"
        except RuntimeError:
            # torch.distributed.DistError: the store, which is in node 0's process, is gone
            self._failure = "dpscope has exited there"

    def _hear(self, other: int) -> None:
        if not self._store.check([_key(other)]):
            return
        state = msgspec.json.decode(self._store.get(_key(other)), type=State)
        if state.beat <= self.states[other].beat:
            return
        self.states[other] = state
        self._heard_s[other] = time.monotonic()
        if state.signal and not self._relayed:
            self._relayed = True
            os.kill(os.getpid(), state.signal)


def _key(node: int) -> str:
    return f"dpscope/{node}"


@dataclass(frozen=True)
class NodeStart:
    place: NodePlace
    out: Path  # shared by the nodes
    note: Callable[[str], None]  # prints a line
    wait_s: float  # for the other nodes
    # the jobs planned over several nodes in `out`: every node derives the same, and none is sent a
    # command
    plan: Callable[[], Sequence[Job]] = tuple


@contextmanager
def opened_board(start: NodeStart) -> Iterator[Board]:
    """Node 0's board, until the block ends; a file marks the folder that the nodes share."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # of torch._C

    place = start.place
    stated = start.place.address
    try:
        with listening_socket(stated.host, stated.port) as listener:
            at = listener.getsockname()[0]
            file = listener.detach()
    except OSError as error:
        raise DpscopeError(
            f"--rendezvous {stated}: cannot listen on port {stated.port} ({error.strerror}); give another port"
        ) from error
    store = TCPStore(at, stated.port, None, True, _CALL_S, False, master_listen_fd=file)
    mark = start.out / f"{_MARK_PREFIX}{secrets.token_hex(4)}"
    start.out.mkdir(parents=True, exist_ok=True)
    mark.touch()
    board = Board(store, 0, range(1, place.count))
    try:
        name = f"Node 0 of {place.count} ({socket.gethostname()})"
        start.note(f"{name} is waiting for the others at {stated}, listening at {at}.")
        yield board
    finally:
        mark.unlink(missing_ok=True)
        board.close()


def found_board(start: NodeStart) -> Board:
    """Look for node 0 at the rendezvous; returns this node's board. Raises DpscopeError if node 0
    is not found, or another node has this one's rank.
    """
    place = start.place
    deadline_s = time.monotonic() + start.wait_s
    name = f"node {place.rank} ({socket.gethostname()})"
    start.note(f"{name.capitalize()} is looking for node 0 at {place.address}.")
    reason = ""
    while time.monotonic() < deadline_s:
        try:
            return _connected(place)
        except (OSError, RuntimeError) as error:
            reason = error_line(error)
        time.sleep(_POLL_S)
    raise DpscopeError(
        f"{name} did not find node 0 at {place.address} within {start.wait_s:g} s ({reason}): check that it is running and "
        "that it can be reached there"
    )


def _connected(place: NodePlace) -> Board:
    """Raises OSError or RuntimeError if node 0 is not there."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # of torch._C

    store = TCPStore(place.address.host, place.address.port, None, False, _CALL_S, False)
    if not store.check([_key(0)]):
        raise ConnectionError("what listens there is not dpscope")
    if store.check([_key(place.rank)]):
        raise DpscopeError(
            f"--node-rank {place.rank}: another node was started with it; give each its own number"
        )
    return Board(store, place.rank, (0,))


def is_shared(out: Path) -> bool:
    """Whether a run folder is that of node 0, which waits for the other nodes."""
    return any(out.glob(f"{_MARK_PREFIX}*"))
