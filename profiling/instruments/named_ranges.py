"""dpscope's named ranges, entered only while a trace is recorded.

A `record_function` that nobody records still costs 6 us where the interpreter's caches are warm, and 20 to 40 us between the
phases of a step, where they are cold: 2% of a step of 10 ms for five of them (benchmarks/timed_pass_cost.py).
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
