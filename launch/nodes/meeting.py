"""How nodes meet: node 0 opens a TCPStore and announces it in the run folder for the others. Imports no torch."""

import ipaddress
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

from dpscope.launch.jobs.node_place import Address, NodePlace
from dpscope.launch.nodes.board import THREAD_NAME, Board, Meeting
from dpscope.profiling.machine.interfaces import interface_addresses, listening_socket
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json_if_there, write_json

SEEN_WITHIN_S = 10.0  # a network's file system shows a new file of another host late
NOTE_EVERY_S = 15.0
_PREFIX = ".tmp-nodes-"
_POLL_S = 0.3
_CALL_S = timedelta(seconds=3.0)
_ATTEMPT_S = 15.0  # at an address: torch waits for ever for the answer of what accepts a connection and is silent
_NOT_NODE_0 = "what listens there is not node 0 of this command"


@dataclass(frozen=True)
class Found:
    """Node 0, as another node found it."""

    board: Board
    meeting: Meeting
    address: str  # of this node
    node0_address: str


@contextmanager
def opened_meeting(
    place: NodePlace, out: Path, options: Mapping[str, str], on_gpus: bool, note: Callable[[str], None]
) -> Iterator[Board]:
    """Open node 0's board and announce it in the run folder until the block ends."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # of torch._C

    with _listener(place) as listener:
        host, port = listener.getsockname()[:2]
        everywhere = ipaddress.ip_address(host.partition("%")[0]).is_unspecified
        own = "localhost" if everywhere else host
        store = TCPStore(own, port, None, True, _CALL_S, False, master_listen_fd=listener.detach())
    store.set(_public(place), "")
    hosts = (socket.gethostname(), *interface_addresses().values()) if everywhere else (host,)
    reached = (place.job, tuple(dict.fromkeys(hosts)), port)
    meeting = Meeting(
        version("dpscope"), socket.gethostname(), place.count, dict(options), on_gpus, *reached, secrets.token_hex(16)
    )
    board = Board(PrefixStore(meeting.prefix, store), meeting.secret, 0, range(1, place.count))
    path = out / f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        write_json(path, meeting, mode=0o600)
        at = "all addresses" if everywhere else host
        note(f"Node 0 of {place.count} ({socket.gethostname()}) is waiting for the others on {at}, port {port}.")
        yield board
    finally:
        path.unlink(missing_ok=True)
        board.close()


def found_meeting(place: NodePlace, out: Path, note: Callable[[str], None], wait_s: float) -> Found:
    """Look for node 0 at the rendezvous and at addresses in the run folder; raises DpscopeError if it is not found."""
    this_node = f"node {place.rank} ({socket.gethostname()})"
    began_s = noted_s = time.monotonic()
    note(
        f"Node {place.rank} of {place.count} ({socket.gethostname()}) is looking for node 0 at {place.address or out}."
    )
    unseen_s: float | None = None  # since when node 0 responds without its file being visible
    reasons: dict[Address, str] = {}
    while (now_s := time.monotonic()) - began_s < wait_s:
        meetings = _meetings(place, out)
        announced = [Address(host, meeting.port) for meeting in meetings for host in meeting.hosts]
        stated = [] if place.address is None else [place.address]
        for address in dict.fromkeys((*stated, *announced) if place.port_stated else (*announced, *stated)):
            if isinstance(answer := _answer(place, address, meetings), Found):
                return answer
            if isinstance(answer, DpscopeError):
                raise answer
            reasons[address] = answer or _NOT_NODE_0
            if not answer and now_s - (unseen_s := unseen_s or now_s) > SEEN_WITHIN_S:
                raise DpscopeError(
                    f"--out {out}: {this_node} does not see what node 0 at {address} wrote there (it looked in "
                    f"{out.absolute()}); name one folder that all nodes share"
                )
        seen = ", ".join(f"{address}: {why}" for address, why in reasons.items()) or f"no trace of it in {out}"
        if now_s - noted_s > NOTE_EVERY_S:
            noted_s = now_s
            note(f"Still looking for node 0, {now_s - began_s:.0f} s of {wait_s:g} s: {seen}.")
        time.sleep(_POLL_S)
    raise DpscopeError(
        f"{this_node} did not find node 0 within {wait_s:g} s ({seen}): check that it is running, that it can be reached, and "
        "that all nodes share that folder"
    )


def _answer(place: NodePlace, address: Address, meetings: list[Meeting]) -> Found | DpscopeError | str:
    """`_met` in a thread, because it may block for ever."""
    answers: queue.SimpleQueue[Found | DpscopeError | str] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(_met(place, address, meetings)), name=THREAD_NAME, daemon=True).start()
    try:
        return answers.get(timeout=_ATTEMPT_S)
    except queue.Empty:
        return "what listens there does not answer"


def _met(place: NodePlace, address: Address, meetings: list[Meeting]) -> Found | DpscopeError | str:
    """Node 0, or the reason; empty if node 0 of this start responds but none of the visible files is its."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # of torch._C

    try:
        with socket.create_connection((address.host, address.port), _CALL_S.total_seconds()) as probe:
            near, far = (str(end[0]).removeprefix("::ffff:") for end in (probe.getsockname(), probe.getpeername()))
        store = TCPStore(far, address.port, None, False, _CALL_S, False)
        for meeting in meetings:
            shared = PrefixStore(meeting.prefix, store)
            if shared.check(["0/state"]):
                claim = secrets.token_hex(8)
                if shared.compare_set(f"{place.rank}/claim", "", claim) != claim.encode():
                    return DpscopeError(
                        f"--node-rank {place.rank}: another node was started with it; give each its own number"
                    )
                return Found(Board(shared, meeting.secret, place.rank, (0,)), meeting, near, far)
        return "" if store.check([_public(place)]) else _NOT_NODE_0
    except (OSError, RuntimeError) as error:
        return getattr(error, "strerror", None) or _NOT_NODE_0


def _public(place: NodePlace) -> str:
    """A key by which nodes that see a different folder recognise node 0."""
    return f"dpscope {place.job or 'by hand'}"


def _listener(place: NodePlace) -> socket.socket:
    """The store's socket; if the port that dpscope chose is taken, one on a free port, which the folder announces."""
    host, port = (place.address.host, place.address.port) if place.address else (socket.gethostname(), 0)
    try:
        return listening_socket(host, port)
    except OSError as error:
        if place.port_stated or place.job is None:
            raise DpscopeError(
                f"--rendezvous {place.address}: cannot listen on port {port} ({error.strerror}); give another port"
            ) from error
        return listening_socket(host, 0)


def _meetings(place: NodePlace, out: Path) -> list[Meeting]:
    """Announcements for this start in a folder, newest first, including those that killed commands left."""
    port = place.address.port if place.address is not None and place.port_stated else None
    found = []
    with suppress(OSError):
        for path in sorted(out.glob(f"{_PREFIX}*"), key=lambda path: path.stat().st_mtime, reverse=True):
            with suppress(DpscopeError):
                found.append(read_json_if_there(path, Meeting))
    return [one for one in found if one is not None and one.job == place.job and port in (None, one.port)]
