"""Collectives that copy engines carry out instead of kernels: which copies are theirs."""

import re

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, EventTable, IntColumn
from dpscope.analysis.traces.reading.tensor_sizes import group_size
from dpscope.analysis.traces.steps.enclosing_ranges import innermost
from dpscope.analysis.traces.steps.event_kind import Kind, collective_kind, nccl_ranges

_HOST_COPY = re.compile(r"HtoD|DtoH|HtoH|Host", re.IGNORECASE)


def with_engine_copies(events: EventTable, kind: npt.NDArray[np.uint8], launch_row: IntColumn) -> npt.NDArray[np.uint8]:
    """The kinds, with the copies of collectives that copy engines carry out marked as such.

    These are the copies between device buffers launched in an `nccl:` range that launched no NCCL kernel on that device;
    beside a kernel a copy only packs or unpacks, and in a group of one rank it only copies. The first copy of a range and
    device is the COLLECTIVE, the others are its COLLECTIVE_PARTs.
    """
    ranges = nccl_ranges(events)
    if not ranges.any():
        return kind
    between_devices = np.array([not _HOST_COPY.search(name) for name in events.names], dtype=bool)
    copies = np.flatnonzero(events.is_category(Category.MEMCPY) & events.has_name(between_devices) & (launch_row >= 0))
    copy_range = innermost(events, launch_row[copies], ranges)
    moves = (copy_range >= 0) & ~_within_one_rank(events, launch_row[copies])
    copies, copy_range = copies[moves], copy_range[moves]
    if not len(copies):
        return kind
    kernels = np.flatnonzero((kind == Kind.COLLECTIVE) & (launch_row >= 0))
    kernel_range = innermost(events, launch_row[kernels], ranges)
    with_kernel = set(zip(kernel_range.tolist(), events.device[kernels].tolist(), strict=True))
    marked, begun = kind.copy(), set()
    in_order = np.argsort(events.start_us[copies], kind="stable")
    for row, own_range in zip(copies[in_order].tolist(), copy_range[in_order].tolist(), strict=True):
        place = (own_range, int(events.device[row]))
        if place in with_kernel:
            continue
        marked[row] = Kind.COLLECTIVE_PART if place in begun else Kind.COLLECTIVE
        begun.add(place)
    return marked


def _within_one_rank(events: EventTable, launch_row: IntColumn) -> BoolColumn:
    """Whether each launch was for a collective of a group of one rank, by any record, operator or range around it."""
    alone = np.zeros(len(events), dtype=bool)
    for row, args in events.communication.items():
        kind = collective_kind(args.collective_name or events.names[events.name[row]])
        alone[row] = group_size(args, kind) == 1
    on_host = events.is_category(Category.CPU_OP, Category.USER_ANNOTATION)
    return np.asarray(innermost(events, launch_row, alone & on_host) >= 0)
