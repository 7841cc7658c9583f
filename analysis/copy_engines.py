"""Collectives without a kernel: NCCL can have copy engines carry out a collective, which then shows as copies alone."""

import re

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import Category, EventTable, IntColumn
from dpscope.analysis.traces.steps.enclosing_ranges import innermost
from dpscope.analysis.traces.steps.event_kind import Kind, named_annotations

_HOST_COPY = re.compile(r"HtoD|DtoH|HtoH|Host", re.IGNORECASE)


def with_engine_copies(events: EventTable, kind: npt.NDArray[np.uint8], launch_row: IntColumn) -> npt.NDArray[np.uint8]:
    """The kinds, with the copies of collectives that copy engines carry out marked as such.

    These are the copies between device buffers launched in an `nccl:` range that launched no NCCL kernel on that device;
    beside a kernel a copy only packs or unpacks. The first copy of a range and device is the COLLECTIVE, the others are
    its COLLECTIVE_PARTs.
    """
    ranges = named_annotations(events, "nccl:")
    if not ranges.any():
        return kind
    between_devices = np.array([not _HOST_COPY.search(name) for name in events.names], dtype=bool)
    copies = np.flatnonzero(events.is_category(Category.MEMCPY) & events.has_name(between_devices) & (launch_row >= 0))
    copy_range = innermost(events, launch_row[copies], ranges)
    copies, copy_range = copies[copy_range >= 0], copy_range[copy_range >= 0]
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
