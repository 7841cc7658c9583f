"""Saves what was measured when a signal ends the script; then the process ends by that signal."""

import contextlib
import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_MAX_SAVING_S = 5.0  # after which the process ends in any case; torchrun waits 30 s


class EndingSignals:
    """Calls `ended` in a separate thread on the first signal that would end this process, then ends it by that signal.

    The main thread may wait in a collective for a process that has already ended, where Python's handlers do not run. A signal
    for which the script installs a handler, before or later, is the script's.
    """

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._process_id = os.getpid()
        self._handled: list[signal.Signals] = []
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def listen(self) -> None:
        """Handle signals from now on; outside the main thread, where Python allows no handlers, do nothing."""
        if not _is_main_thread():
            return
        self._sockets = socket.socketpair()
        self._sockets[1].setblocking(False)
        self._install()
        if not self._handled:
            self._close()
            return
        # A child would report its signals to this process. A fork from the main thread removes the handlers beforehand; another
        # thread cannot, but becomes the main thread of the child that it forks.
        os.register_at_fork(before=self._restore, after_in_parent=self._install, after_in_child=self._restore)
        reading = self._sockets[0]
        threading.Thread(target=self._watch, args=(reading,), name="dpscope signals", daemon=True).start()

    def stop(self) -> None:
        """Restore the default actions, in the main thread."""
        if _is_main_thread() and os.getpid() == self._process_id:
            self._restore()
            self._close()

    def _install(self) -> None:
        """Handle the signals that have no handler."""
        if self._sockets is None or os.getpid() != self._process_id or not _is_main_thread():
            return
        if (before := signal.set_wakeup_fd(self._sockets[1].fileno(), warn_on_full_buffer=False)) != -1:
            signal.set_wakeup_fd(before)  # an event loop's
            return
        self._handled = [one for one in _ENDING if signal.getsignal(one) is signal.SIG_DFL]
        for one in self._handled:
            signal.signal(one, self._arrived)

    def _restore(self) -> None:
        """Restore the default actions of the signals."""
        if self._sockets is None or not _is_main_thread():
            return
        if (now := signal.set_wakeup_fd(-1)) != self._sockets[1].fileno():
            signal.set_wakeup_fd(now)
        handled, self._handled = self._handled, []
        for one in handled:
            if signal.getsignal(one) == self._arrived:
                signal.signal(one, signal.SIG_DFL)

    def _close(self) -> None:
        if self._sockets is not None:
            for one in self._sockets:
                with contextlib.suppress(OSError):  # after the shutdown the thread reads the end of file and ends
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._sockets = None

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """The thread handles it. The script may have stored this handler and restore it after `stop`: then end at once."""
        if not self._handled and signal.getsignal(number) == self._arrived:
            _end_by(number)

    def _watch(self, reading: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while number := reading.recv(1):
                if number[0] in self._handled and signal.getsignal(number[0]) == self._arrived:
                    self._end(number[0])

    def _end(self, number: int) -> None:
        late = threading.Timer(_MAX_SAVING_S, _end_by, (number,))
        late.daemon = True
        late.start()
        self._ended(f"{signal.Signals(number).name} ended the script")
        _end_by(number)


def _is_main_thread() -> bool:
    """Only there can handlers be set."""
    return threading.current_thread() is threading.main_thread()


def _end_by(number: int) -> None:
    """End this process by a signal. The default action is restored in C: Python allows it in the main thread only."""
    ctypes.CDLL(None).signal(number, 0)
    os.kill(os.getpid(), number)
