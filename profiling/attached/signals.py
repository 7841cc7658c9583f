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
        self._reading, self._writing = socket.socketpair()
        self._writing.setblocking(False)
        self._handled = self._handle()
        if not self._handled:
            return
        # a child would report its signals to this process
        os.register_at_fork(after_in_child=self._restore)
        threading.Thread(target=self._watch, name="dpscope signals", daemon=True).start()

    def _handle(self) -> list[signal.Signals]:
        """Handle the signals that have no handler, in the main thread alone."""
        unhandled = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
        if not unhandled or threading.current_thread() is not threading.main_thread():
            return []
        before = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        if before != -1:  # an event loop's
            _wake_by(before)
            return []
        for number in unhandled:
            signal.signal(number, self._arrived)
        return unhandled

    def stop(self) -> None:
        """Restore the default actions, in the main thread."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._handled and is_main and self._process_id == os.getpid():
            self._restore()
            with contextlib.suppress(OSError):  # the thread then reads the end of file, and ends
                self._reading.shutdown(socket.SHUT_RDWR)
            self._reading.close()
            self._writing.close()

    def _restore(self) -> None:
        descriptor = signal.set_wakeup_fd(-1)
        if descriptor != self._writing.fileno():
            _wake_by(descriptor)
        handled = self._handled
        self._handled = []
        for number in handled:
            if signal.getsignal(number) == self._arrived:
                signal.signal(number, signal.SIG_DFL)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        """The thread handles it. The script may have stored this handler and restore it after
        `stop`: then end at once.
        """
        if not self._handled and signal.getsignal(number) == self._arrived:
            _end_by(number)

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            while received := self._reading.recv(1):
                number = received[0]
                if number in self._handled and signal.getsignal(number) == self._arrived:
                    self._end(number)

    def _end(self, number: int) -> None:
        late = threading.Timer(_MAX_SAVING_S, _end_by, (number,))
        late.daemon = True
        late.start()
        self._ended(f"{signal.Signals(number).name} ended the script")
        _end_by(number)


def _wake_by(descriptor: int) -> None:
    """Have signals written to this descriptor again, unless it was closed since it was set."""
    with contextlib.suppress(OSError, ValueError):
        signal.set_wakeup_fd(descriptor)


def _end_by(number: int) -> None:
    """End this process by a signal. The default action is restored in C: Python allows it in the
    main thread only.
    """
    ctypes.CDLL(None).signal(number, 0)
    os.kill(os.getpid(), number)
