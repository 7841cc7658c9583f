"""The event table: one row per trace event that matters here, as numpy columns; categories of
events; a trace.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.short_repr import short_repr

FloatColumn = npt.NDArray[np.float64]
IntColumn = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]
CodeColumn = npt.NDArray[np.uint8]

GRAPH_ROW = "CUDA graph (one row)"
"""The name of a kernel that stands for all of a graph's, where only the graph was recorded."""
_LONGEST_US = 2.0**36  # 19 hours: within it a float of microseconds keeps 5 decimals


class Category(IntEnum):
    """What sort of record an event is."""

    CPU_OP = 0
    USER_ANNOTATION = 1
    RUNTIME = 2  # a call of the CUDA or HIP runtime or driver: where device work is launched
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5


HOST = (Category.RUNTIME, Category.USER_ANNOTATION, Category.CPU_OP)
_RUNTIME = (
    "cuda_runtime",
    "cuda_driver",
    "hip_runtime",
    "hip_driver",
    "xpu_runtime",
    "xpu_driver",
    "mtia_runtime",
    "privateuse1_runtime",
    "privateuse1_driver",
    "runtime",
    "driver",
)
# A name of Kineto's and the category that its events are read as. Events of a device under any
# other name are only counted (finding device_not_read).
CATEGORIES = {
    **dict.fromkeys(("cpu_op", "operator"), Category.CPU_OP),
    "user_annotation": Category.USER_ANNOTATION,
    **dict.fromkeys(_RUNTIME, Category.RUNTIME),
    # Kineto's later versions make the second an alias
    **dict.fromkeys(("kernel", "mtia_ccp_events"), Category.KERNEL),
    **dict.fromkeys(("gpu_memcpy", "memcpy"), Category.MEMCPY),
    **dict.fromkeys(("gpu_memset", "memset"), Category.MEMSET),
}
CATEGORIES |= {name.capitalize(): category for name, category in CATEGORIES.items()}

# Of a device and not read: hpu_op, mtia_insight, glow_runtime, collective_comm, and what other
# vendors name like these. Kineto's own names: libkineto/include/ActivityType.h.
_UNREAD_DEVICE = re.compile(
    r"^(?:mtia|hpu|glow|collective_comm|npu|tpu|gcu|mlu|musa)|_(?:runtime|driver|kernel)$"
)
# Kineto's other names: libkineto/include/ActivityType.h, and those of the trace itself.
_NOT_READ = frozenset(
    {
        "Trace",
        "Instant",
        "python_function",
        "overhead",
        "ac2g",
        "fwdbwd",
        "gpu_user_annotation",
        "cpu_instant_event",
        "cuda_sync",
        "cuda_profiler_range",
        "async_cpu_to_gpu",
    }
)
TORCH_PROFILER = CATEGORIES.keys() | _NOT_READ | {name.capitalize() for name in _NOT_READ}
"""Every category that torch.profiler writes."""
DEVICE_ANNOTATION = "gpu_user_annotation"
"""A range of the CPU side as Kineto shows it on a device, around the work that was launched in
it.
"""
DEVICE_WORK = frozenset({Category.KERNEL, Category.MEMCPY, Category.MEMSET})


def category_of(name: object) -> Category | None:
    """What events of a category are read as; None for those that are in no table."""
    return CATEGORIES.get(name) if isinstance(name, str) else None


def is_unread_device(name: str) -> bool:
    """Whether a category is that of a device which is not read."""
    return name not in CATEGORIES and _UNREAD_DEVICE.search(name) is not None


def is_on_device(name: object) -> bool:
    """Whether events of a category are shown on a device."""
    return name == DEVICE_ANNOTATION or category_of(name) in DEVICE_WORK


def is_annotation(name: object) -> bool:
    """Whether events of a category are named ranges, on the host or around work on a device."""
    return name == DEVICE_ANNOTATION or category_of(name) is Category.USER_ANNOTATION


def is_among(codes: CodeColumn, wanted: Iterable[int]) -> BoolColumn:
    """Which of the codes are wanted: `np.isin`, by looking each one up."""
    truths = np.zeros(1 << 8, dtype=np.bool_)
    truths[list(wanted)] = True
    return truths[codes]


@dataclass(frozen=True, slots=True)
class CommunicationArgs:
    """One collective's size and group; None where the trace does not record them."""

    collective_name: str | None = None
    input_elements: int | None = None
    output_elements: int | None = None
    dtype: str | None = None
    group: str | None = None
    group_ranks: str | None = None  # as the trace writes them
    group_size: int | None = None
    sequence: int | None = None
    input_bytes: int | None = None  # where tensors of several types are recorded
    output_bytes: int | None = None


@dataclass(frozen=True)
class EventTable:
    """Rows in file order; every column has one entry per event.

    `start_us` counts from the trace's own start (its earliest event is near 0); -1 stands for
    "none" in `device`, `peer` and `correlation`; `bytes` (of copies) and `shape` are -1 where the
    trace gives no size.
    """

    start_us: FloatColumn
    duration_us: FloatColumn
    category: CodeColumn
    name: IntColumn  # index into `names`
    thread: IntColumn  # CPU thread, or the device's stream as the trace numbers it
    device: IntColumn
    peer: IntColumn  # of a copy between two devices the one that it is not recorded on
    correlation: IntColumn
    bytes: IntColumn
    # equal for equal input sizes of an operator, and for equal grids and blocks of a kernel
    shape: IntColumn
    # Not columns:
    names: list[str]
    communication: dict[int, CommunicationArgs]  # row -> its arguments

    def __len__(self) -> int:
        return len(self.start_us)

    @cached_property
    def end_us(self) -> FloatColumn:
        """Where each event ends; kept, since rows are looked up one by one too."""
        return self.start_us + self.duration_us

    def is_category(self, *categories: Category) -> BoolColumn:
        """Rows of any of these categories."""
        return is_among(self.category, categories)

    @property
    def operators(self) -> BoolColumn:
        """Rows of operators of the CPU."""
        return self.is_category(Category.CPU_OP)

    @property
    def annotations(self) -> BoolColumn:
        """Rows of named ranges of the CPU."""
        return self.is_category(Category.USER_ANNOTATION)

    @property
    def calls(self) -> BoolColumn:
        """Rows of calls of the runtime."""
        return self.is_category(Category.RUNTIME)

    @property
    def device_work(self) -> BoolColumn:
        """Rows of kernels, copies and memsets."""
        return self.is_category(*DEVICE_WORK)

    def name_of(self, row: int) -> str:
        name: str = self.names[self.name[row]]
        return name

    def in_order(self, rows: IntColumn) -> IntColumn:
        """The rows in order of start, equal ones as in the file."""
        return rows[np.argsort(self.start_us[rows], kind="stable")]

    def outer_first(self, rows: IntColumn) -> IntColumn:
        """The rows in order of start; of those that start together the longest, which holds the
        others, comes first.
        """
        return rows[np.lexsort((-self.duration_us[rows], self.start_us[rows]))]

    def outermost(self, rows: IntColumn) -> IntColumn:
        """Of these ranges those that begin inside of no other of their thread, in order."""
        kept = [rows[:0]]
        for thread in np.unique(self.thread[rows]):
            of_thread = self.outer_first(rows[self.thread[rows] == thread])
            reach = np.maximum.accumulate(np.append(-np.inf, self.end_us[of_thread]))[:-1]
            kept.append(of_thread[self.start_us[of_thread] >= reach])
        return np.concatenate(kept)

    def named(self, matches: Callable[[str], object]) -> BoolColumn:
        """Rows whose name matches; each different name is tried once."""
        return np.array([bool(matches(name)) for name in self.names], dtype=np.bool_)[self.name]

    def rows(self, kept: IntColumn) -> "EventTable":
        """These rows, given in ascending order, with the names they use."""
        columns = {field.name: getattr(self, field.name)[kept] for field in fields(self)[:-2]}
        used, columns["name"] = np.unique(columns["name"], return_inverse=True)
        noted = np.fromiter(self.communication, dtype=np.int64, count=len(self.communication))
        noted = noted[np.isin(noted, kept)]
        places = zip(np.searchsorted(kept, noted).tolist(), noted.tolist(), strict=True)
        communication = {new: self.communication[old] for new, old in places}
        return EventTable(
            **columns,
            names=[self.names[code] for code in used.tolist()],
            communication=communication,
        )

    def from_its_start(self) -> tuple["EventTable", int]:
        """The table with whole microseconds taken from its times, so that its earliest event is
        near 0, and how many.

        An event that lies more than 19 hours before the table's present 0 is damaged: with it the
        others would lose digits.
        """
        sound = self.start_us[self.start_us > -_LONGEST_US]
        offset_us = math.floor(sound.min()) if len(sound) else 0
        return (replace(self, start_us=self.start_us - offset_us) if offset_us else self), offset_us


@dataclass(frozen=True)
class ProcessGroup:
    """A process group that the trace's process was in, as its header lists it."""

    name: str
    description: str | None  # torch's for a mesh's dimension is mesh_ and the dimension's name
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a trace's head and tail say; None where they have no such field."""

    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    device_names: tuple[str, ...]
    process_groups: tuple[ProcessGroup, ...]  # those listed with all of their ranks
    # what the file's times count from, in the recording host's clock; 0 where it does not say
    base_ns: int
    format: str = "trace"  # what such files are called
    environment: tuple[tuple[str, str], ...] = ()  # name and value of what the file records


@dataclass(frozen=True, kw_only=True)
class Trace(Header):
    """One process's trace: its header and its events."""

    __repr__ = short_repr

    source: str
    events: EventTable
    # the trace shows a device, calls that launch work on one, or NCCL's ranges
    has_accelerator: bool
    zero_ns: int  # what the recording host's clock showed at the table's time 0
    zero_us: int  # the time stamp in the file, shortened as `TextBase` does, of the table's time 0
    findings: tuple[Finding, ...]
    cut_short: bool  # its file ends too early, or cannot be read to its end
    lacks_events: bool  # its file ends, or is damaged, before its last event
    process_id: int | None  # of the process that ran the steps; None in a file of several ranks
    # categories of a device that are not read, with their numbers of events
    unread: tuple[tuple[str, int], ...]
