"""Trace files in Chrome's format that torch.profiler did not write: which program did, by their events."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from dpscope.analysis.traces.reading.categories import is_of_torch_profiler

_PHASES = frozenset("XB")  # of events with a duration
_HOROVOD = re.compile(
    r"^(?:NEGOTIATE_|QUEUE$|(?:NCCL|MPI|GLOO|DDL|CCL)_?(?:ALLREDUCE|ALLGATHER|BCAST|BROADCAST)|WAIT_FOR_DATA)"
)
_LEGACY_PROCESS = re.compile(r"^(?:CPU|CUDA) functions$")


class _Event(Protocol):
    ph: str
    cat: str
    name: str
    pid: int | str


class Foreign:
    """Counts the events with a duration that are in no category of torch.profiler, by what is known to write such ones."""

    def __init__(self) -> None:
        self.events = 0
        self.producers: Counter[str] = Counter()

    def add(self, events: Sequence[_Event]) -> None:
        """Note events that no table holds."""
        for event in events:
            if event.ph in _PHASES and not is_of_torch_profiler(event.cat):
                self.events += 1
                self.producers[_producer(event)] += 1

    @property
    def description(self) -> str:
        """What the file is, if most of its events show it."""
        (name, count), *_ = self.producers.most_common(1)
        return name if name and 2 * count > self.events else "a trace of another program"


def _producer(event: _Event) -> str:
    if "composer" in event.cat or event.name.startswith("composer/"):
        return "a trace by Composer's own profiler"
    if (isinstance(event.pid, str) and _LEGACY_PROCESS.match(event.pid)) or (
        not event.cat and event.name.startswith("aten::")
    ):
        return "a trace by the legacy torch.autograd.profiler"
    return "a timeline by Horovod" if _HOROVOD.match(event.name) else ""
