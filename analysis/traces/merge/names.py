"""The processes and threads of a merged trace: their numbers, names and order.

All get fresh numbers. Kineto takes a device's index as its process id, so that all ranks' devices would be one process; and
Perfetto names threads by their number alone, so that stream 7 of every device would bear the last one's name.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from dpscope.analysis.traces.reading.categories import category_of, is_on_device
from dpscope.analysis.traces.reading.event_table import Category
from dpscope.analysis.traces.reading.json_events import RawEvent

NUMBER_STRIDE = 100_000  # numbers of processes and threads that each rank has; 42,000 ranks fit 32 bits
_FIRST_TRACK, _FIRST_THREAD = 1_000, 10_000  # Perfetto orders a process's threads by number: added tracks come first
PROCESS_STRIDE = 1000  # places in the order of processes that each rank has
_THREAD_METADATA = frozenset({"thread_name", "thread_sort_index"})
_PROFILER = frozenset({"Spans", "Traces", ""})  # Kineto's processes for its own records: shown as one
_DEVICE_LABEL = re.compile(r"GPU (\d+)")


@dataclass
class Process:
    """One process of one rank: its number, what it was numbered in the rank's file, what is known of it."""

    number: int
    original: int | str
    on_device: bool = False
    has_operators: bool = False
    labels: dict[str, str] = field(default_factory=dict)  # its process_name and process_labels

    def note(self, category: object) -> None:
        """Learn from an event of this category what the process is."""
        self.on_device = self.on_device or is_on_device(category)
        self.has_operators = self.has_operators or category_of(category) is Category.CPU_OP

    @property
    def label(self) -> str:
        """CPU or GPU <index> where its label or its events say so, else its own name."""
        label = self.labels.get("process_labels", "")
        if label == "CPU" or _DEVICE_LABEL.fullmatch(label):
            return label
        if self.on_device:
            return f"GPU {self.original}"
        return "CPU" if self.has_operators else self.labels.get("process_name") or str(self.original)

    @property
    def order(self) -> tuple[int, str, int]:
        """The host before its devices, by their index, before whatever else."""
        label = self.label
        device = _DEVICE_LABEL.fullmatch(label)
        return (0, "", 0) if label == "CPU" else (1, "", int(device[1])) if device else (2, label, 0)


class RankTracks:
    """The processes and threads of one rank, as its events name them; `position` is the rank's among all."""

    def __init__(self, position: int) -> None:
        self._position = position
        first = position * NUMBER_STRIDE
        self._process_numbers = count(first + 1)
        self._track_numbers = count(first + _FIRST_TRACK)
        self._thread_numbers = count(first + _FIRST_THREAD)
        self._processes: dict[int | str, Process] = {}
        self._threads: dict[tuple[int | str, int | str, int], tuple[Process, int]] = {}
        self._thread_args: dict[tuple[int | str, int | str], dict[str, dict[str, Any]]] = defaultdict(dict)
        self._process_labels: dict[int | str, dict[str, str]] = defaultdict(dict)

    def new_track(self) -> int:
        """The number of a further track, behind the tracks added before and before all threads of the file."""
        return next(self._track_numbers)

    def thread(self, pid: int | str, tid: int | str, lane: int = 0) -> tuple[Process, int]:
        """The process and the fresh number of a thread, or of a further lane of it."""
        if (pid, tid, lane) not in self._threads:
            self._threads[pid, tid, lane] = (self._process(pid), next(self._thread_numbers))
        return self._threads[pid, tid, lane]

    def _process(self, pid: int | str) -> Process:
        if pid in _PROFILER:
            pid = "profiler"
        if pid not in self._processes:
            self._processes[pid] = Process(next(self._process_numbers), pid, labels=self._process_labels[pid])
        return self._processes[pid]

    def learn(self, event: RawEvent) -> None:
        """Take in a metadata event."""
        name, args = event.get("name"), event.get("args")
        pid = hashable(event.get("pid"))
        if not isinstance(args, dict):
            return
        if isinstance(name, str) and name in _THREAD_METADATA:
            self._thread_args[pid, hashable(event.get("tid"))][name] = args
        for kind, key in (("process_name", "name"), ("process_labels", "labels")):
            if name == kind and isinstance(args.get(key), str):
                self._process_labels[pid][kind] = args[key]

    def process_of_device(self, device: int | None) -> Process:
        """The process that shows a device; the host's for None, or where no process shows it."""
        by_label = {process.label: process for process in self._processes.values()}
        return by_label.get(f"GPU {device}") or by_label.get("CPU") or self._process("")

    def metadata(self, title: str) -> Iterator[RawEvent]:
        """Names and order of the processes and threads that hold events."""
        for index, process in enumerate(sorted(self._processes.values(), key=lambda process: process.order)):
            yield metadata_event("process_name", process.number, 0, name=f"{title} {process.label}")
            if process.labels:
                labels = ", ".join(dict.fromkeys(process.labels.values()))
                yield metadata_event("process_labels", process.number, 0, labels=labels)
            sort_index = self._position * PROCESS_STRIDE + index
            yield metadata_event("process_sort_index", process.number, 0, sort_index=sort_index)
        for (pid, tid, lane), (process, number) in self._threads.items():
            own = self._thread_args.get((pid, tid), {})
            fallback = f"thread {tid}" if isinstance(tid, int) else tid or "window"
            name = str(own.get("thread_name", {}).get("name") or fallback).strip()
            shown = f"{name} (lane {lane + 1})" if lane else name
            yield metadata_event("thread_name", process.number, number, name=shown)
            if "thread_sort_index" in own:
                yield metadata_event("thread_sort_index", process.number, number, **own["thread_sort_index"])


def metadata_event(kind: str, process: int, thread: int, /, **args: object) -> RawEvent:
    """A trace event that names or orders a process or thread."""
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": args}


def hashable(value: object) -> int | str:
    """A process's or thread's id as a trace gives it: a number or a name; -1 for anything else."""
    return value if isinstance(value, int | str) else -1
