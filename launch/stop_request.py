"""Signals as a request to stop, for whoever waits for a torchrun job. Imports no torch."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether this process was told to stop. Signals only set it, so that none can cut a file or a cleaning-up short."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP as the request."""

        def request(number: int, frame: FrameType | None) -> None:
            self.requested = True

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        previous = {number: signal.signal(number, request) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
