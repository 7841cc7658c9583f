"""A signal that ends the script while it is measured: what was measured is saved first, then the process ends by that signal."""

import contextlib
import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_LONGEST_S = 5.0  # for saving, after which the process ends whatever was saved: torchrun waits 30 s


class EndingSignals:
    """Tells `ended` of the first signal that would end this process, in a thread of its own, and ends it by that signal then.

    A thread, since the main one may wait in a collective for a process that has ended already, where Python's handlers are not
    run. Signals that somebody else answers are left alone, also where that begins later.
    """

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._process_id = os.getpid()
        self._answered: list[signal.Signals] = []
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def listen(self) -> None:
        """Answer signals from now on; only the main thread can ask for that, elsewhere nothing happens."""
        if not _is_main_thread():
            return
        self._sockets = socket.socketpair()
        self._sockets[1].setblocking(False)
        self._take()
        if not self._answered:
            self._close()
            return
        # A child has none of this: its signals would be told to this process. A fork from the main thread leaves it beforehand;
        # another thread cannot, but is the main one of the child that it forks.
        os.register_at_fork(before=self._leave, after_in_parent=self._take, after_in_child=self._leave)
        reading = self._sockets[0]
        threading.Thread(target=self._watch, args=(reading,), name="dpscope signals", daemon=True).start()

    def stop(self) -> None:
        """Leave signals to themselves again, where this is the main thread."""
        if _is_main_thread() and os.getpid() == self._process_id:
            self._leave()
            self._close()

    def _take(self) -> None:
        """Answer the signals that nobody answers."""
        if self._sockets is None or os.getpid() != self._process_id or not _is_main_thread():
            return
        if (before := signal.set_wakeup_fd(self._sockets[1].fileno(), warn_on_full_buffer=False)) != -1:
            signal.set_wakeup_fd(before)  # an event loop's
            return
        self._answered = [one for one in _ENDING if signal.getsignal(one) is signal.SIG_DFL]
        for one in self._answered:
            signal.signal(one, self._arrived)

    def _leave(self) -> None:
        """Signals end this process as they did before."""
        if self._sockets is None or not _is_main_thread():
            return
        if (now := signal.set_wakeup_fd(-1)) != self._sockets[1].fileno():
            signal.set_wakeup_fd(now)
        answered, self._answered = self._answered, []
        for one in answered:
            if signal.getsignal(one) == self._arrived:
                signal.signal(one, signal.SIG_DFL)

    def _close(self) -> None:
        if self._sockets is not None:
            for one in self._sockets:
                with contextlib.suppress(OSError):  # shut: the thread reads the end of it, and goes
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._sockets = None

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """The thread answers; but who stored this handler may put it back when nobody listens any more."""
        if not self._answered and signal.getsignal(number) == self._arrived:
            _end_by(number)

    def _watch(self, reading: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while number := reading.recv(1):
                if number[0] in self._answered and signal.getsignal(number[0]) == self._arrived:
                    self._end(number[0])

    def _end(self, number: int) -> None:
        late = threading.Timer(_LONGEST_S, _end_by, (number,))
        late.daemon = True
        late.start()
        self._ended(f"{signal.Signals(number).name} ended the script")
        _end_by(number)


def _is_main_thread() -> bool:
    """Only there can signals be answered or left."""
    return threading.current_thread() is threading.main_thread()


def _end_by(number: int) -> None:
    """End this process by a signal; Python lets the main thread alone restore its default action, which C does not mind."""
    ctypes.CDLL(None).signal(number, 0)
    os.kill(os.getpid(), number)
