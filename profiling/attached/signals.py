"""Signals that would end a script: what was measured is saved first."""

import contextlib
import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

_MAX_SAVING_S = 5.0  # after which the process ends in any case; torchrun waits 30 s
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class EndingSignals:
    """Calls `ended` in a separate thread on the first signal that would end this process, then ends
    it by that signal.

    The main thread may wait in a collective for a process that has already ended, where Python's
    handlers do not run: a thread reads the signals from Python's wake-up descriptor instead. A
    signal for which the script installs a handler, before or later, is the script's.
    """

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._process_id = os.getpid()
        self._handled: list[signal.Signals] = []
        self._sockets = reading, writing = socket.socketpair()
        writing.setblocking(False)
        self._install()
        if not self._handled:
            self._close()
            return
        # A child would report its signals to this process. A fork from the main thread removes the
        # handlers beforehand; another thread cannot, but becomes the main thread of the child that
        # it forks.
        os.register_at_fork(
            before=self._restore, after_in_parent=self._install, after_in_child=self._restore
        )
        threading.Thread(
            target=self._watch, args=(reading,), name="dpscope signals", daemon=True
        ).start()

    def stop(self) -> None:
        """Restore the default actions, in the main thread."""
        if self._may_change() and self._process_id == os.getpid():
            self._restore()
            self._close()

    def _may_change(self) -> bool:
        """Only the main thread may set handlers."""
        is_open = self._sockets[1].fileno() != -1
        return is_open and threading.current_thread() is threading.main_thread()

    def _install(self) -> None:
        """Handle the signals that have no handler."""
        if not self._may_change() or os.getpid() != self._process_id:
            return
        unhandled = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
        if not unhandled:
            return
        before = signal.set_wakeup_fd(self._sockets[1].fileno(), warn_on_full_buffer=False)
        if before != -1 and _wakes(before):  # an event loop's
            return
        self._handled = unhandled
        for number in unhandled:
            signal.signal(number, self._arrived)

    def _restore(self) -> None:
        if not self._may_change():
            return
        descriptor = signal.set_wakeup_fd(-1)
        if descriptor != self._sockets[1].fileno():
            _wakes(descriptor)
        handled, self._handled = self._handled, []
        for number in handled:
            if signal.getsignal(number) == self._arrived:
                signal.signal(number, signal.SIG_DFL)

    def _close(self) -> None:
        for end in self._sockets:
            with contextlib.suppress(OSError):  # the thread then reads the end of file, and ends
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """The thread handles it. The script may have stored this handler and restore it after
        `stop`: then end at once.
        """
        if not self._handled and signal.getsignal(number) == self._arrived:
            _end_by(number)

    def _watch(self, reading: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while received := reading.recv(1):
                number = received[0]
                if number in self._handled and signal.getsignal(number) == self._arrived:
                    self._end(number)

    def _end(self, number: int) -> None:
        late = threading.Timer(_MAX_SAVING_S, _end_by, (number,))
        late.daemon = True
        late.start()
        self._ended(f"{signal.Signals(number).name} ended the script")
        _end_by(number)


def _wakes(descriptor: int) -> bool:
    """Have signals written to this descriptor again, if it is still one for that; whoever set it
    may have closed it since.
    """
    try:
        signal.set_wakeup_fd(descriptor)
    except (OSError, ValueError):  # closed, or the number of a file opened since
        return False
    return True


def _end_by(number: int) -> None:
    """End this process by a signal. The default action is restored in C: Python allows it in the
    main thread only.
    """
    ctypes.CDLL(None).signal(number, 0)
    os.kill(os.getpid(), number)
