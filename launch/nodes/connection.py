"""A line of messages between two nodes, on which both are heard every second as long as they live. Imports no torch."""

import contextlib
import queue
import select
import socket
import threading
import time

import msgspec

from dpscope.launch.nodes.messages import Beat, Message, message_line, message_of_line

BEAT_S = 1.0
LOST_S = 15.0  # without a word: longer than a machine that swaps or a busy switch needs
_LONGEST_LINE_BYTES = 4 << 20


class Connection:
    """One end of it. A thread of its own reads and beats, so that a node that works is heard.

    Messages wait in `take`; once the other end is gone, or was not heard for LOST_S, `lost` says so. The addresses are this
    end's and the other's.
    """

    def __init__(self, connected: socket.socket, lost_s: float = LOST_S) -> None:
        self.lost: str | None = None
        self._socket = connected
        self._lost_s = lost_s
        self._sending = threading.Lock()
        self._received: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._buffer = b""
        self._closed = False
        self.own_address = _without_prefix(str(connected.getsockname()[0]))
        self.other_address = _other_address(connected)
        connected.settimeout(lost_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._arrivals = select.poll()  # select knows no file beyond the 1024th
        self._arrivals.register(connected, select.POLLIN)
        self._thread = threading.Thread(target=self._listen, name="dpscope-node", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Send it; a message to a node that is lost goes nowhere."""
        try:
            with self._sending:
                self._socket.sendall(message_line(message))
        except OSError as error:
            self._lose(_in_words(error))

    def take(self, wait_s: float = 0.0) -> Message | None:
        """The next message, None if none comes within `wait_s` or before the other end is lost."""
        deadline = time.monotonic() + wait_s
        while True:
            with contextlib.suppress(queue.Empty):
                return self._received.get(timeout=min(0.1, wait_s)) if wait_s > 0 else self._received.get_nowait()
            if time.monotonic() >= deadline or (self.lost is not None and self._received.empty()):
                return None

    def close(self) -> None:
        """End the line."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=BEAT_S + 1)
        self._socket.close()

    def _listen(self) -> None:
        heard = beaten = time.monotonic()
        while not self._closed and self.lost is None:
            now = time.monotonic()
            if now - beaten >= BEAT_S:
                beaten = now
                self.send(Beat())
            try:
                if self._arrivals.poll(1e3 * min(BEAT_S / 2, self._lost_s / 4)):
                    self._read()
                    heard = time.monotonic()
            except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
                self._lose(_in_words(error))
            if time.monotonic() - heard > self._lost_s:
                self._lose(f"it was silent for {self._lost_s:g} s")

    def _read(self) -> None:
        content = self._socket.recv(1 << 16)
        if not content:
            raise ConnectionError("dpscope has exited there")
        *lines, self._buffer = (self._buffer + content).split(b"\n")
        if len(self._buffer) > _LONGEST_LINE_BYTES:
            raise ValueError("what it sends is not dpscope's protocol")
        for message in map(message_of_line, lines):
            if not isinstance(message, Beat):
                self._received.put(message)

    def _lose(self, why: str) -> None:
        if not self._closed and self.lost is None:
            self.lost = why


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it no longer accepts what is sent to it"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "dpscope has exited there"
    if isinstance(error, RecursionError | msgspec.MsgspecError):
        return "what it sends is not this dpscope's protocol"
    return getattr(error, "strerror", None) or str(error)


def _other_address(connected: socket.socket) -> str:
    """Empty where the other end is gone already; that is seen when it is read."""
    with contextlib.suppress(OSError):
        return _without_prefix(str(connected.getpeername()[0]))
    return ""


def _without_prefix(address: str) -> str:
    """An IPv4 address as such where a socket for both kinds tells it."""
    return address.removeprefix("::ffff:")
