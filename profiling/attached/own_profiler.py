"""Notices a profiler that the script itself uses: two cannot record at the same time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch.autograd import profiler

from dpscope.profiling.attached.own_frames import leave_out_frame


class OwnProfiler:
    """Whether the script has made a profiler of its own ready; whoever has asked is told before that happens."""

    def __init__(self) -> None:
        self.seen = False
        self.before: Callable[[], None] = lambda: None
        self._ours = False
        self._original: Any = None

    def listen(self) -> None:
        """Notice profilers from now on."""
        kind: Any = profiler.profile
        original = self._original = kind.__init__

        @wraps(original)
        def noticing(made: Any, enabled: bool = True, **settings: Any) -> None:
            if enabled and not self._ours:
                self.seen = True
                self.before()
            try:
                original(made, enabled, **settings)
            except BaseException as error:
                leave_out_frame(error)
                raise

        kind.__init__ = noticing

    def stop(self) -> None:
        """Leave torch's class as it was."""
        if self._original is not None:
            profiler.profile.__init__ = self._original  # type: ignore[method-assign]
            self._original = None

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Within this context dpscope's own profiler may be made."""
        self._ours = True
        try:
            yield
        finally:
            self._ours = False
