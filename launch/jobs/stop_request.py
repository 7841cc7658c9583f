"""Signals as a request to stop, for processes that wait for a torchrun job or train in one. Imports
no torch.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dpscope.profiling.store.errors import DpscopeError


class StoppedError(DpscopeError):
    """A signal has stopped a command; `exit_status` is 128 + the signal's number."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class StopRequest:
    """Whether this process was requested to stop. Signals only set this flag, so that files and
    clean-up are completed.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal_number: int | None = None  # of the first one

    @property
    def exit_status(self) -> int:
        """The conventional exit status after a signal: 128 + its number, SIGTERM's if there was
        none.
        """
        return 128 + (self.signal_number or signal.SIGTERM)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP as the request."""

        def request(number: int, frame: FrameType | None) -> None:
            self.requested = True
            self.signal_number = self.signal_number or number

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        previous = {number: signal.signal(number, request) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
