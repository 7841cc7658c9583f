"""dpscope's named ranges, entered only while a trace is recorded.

A `record_function` that nobody records costs time all the same, and a step would enter five of them.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch.profiler import record_function

_UNNAMED = nullcontext()


class _Recording:
    """Whether this process records a trace; replicas' threads see it too, unlike torch's own state of one thread."""

    now = False


@contextmanager
def ranges_recorded() -> Iterator[None]:
    """Within this context `named_range` is a range of the trace."""
    _Recording.now = True
    try:
        yield
    finally:
        _Recording.now = False


def named_range(name: str) -> AbstractContextManager[Any]:
    """A range called `name` in the trace that is being recorded; without one, nothing."""
    return record_function(name) if _Recording.now else _UNNAMED
