"""Events recorded twice: a device event counted twice would count its bytes and its collective twice."""

from pathlib import Path

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, EventTable
from dpscope.profiling.records.run import Finding

_COLUMNS = ("start_us", "duration_us", "category", "name", "device", "thread", "correlation")


def without_duplicates(events: EventTable, path: Path) -> tuple[EventTable, list[Finding]]:
    """The table with one of each set of equal events, and a finding if there were more.

    Equal in category, name, device, thread, start, duration and correlation. Operators are left alone: their times are
    only ever united, and in traces of whole microseconds two of them may well be equal.
    """
    candidates = np.flatnonzero(events.category != Category.CPU_OP)
    start, correlation = events.start_us[candidates], events.correlation[candidates]
    key = start.view(np.int64) ^ (correlation * np.int64(0x1E3779B97F4A7C15))  # equal for equal events; others may be
    ordered = np.sort(key)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return events, []
    suspects = candidates[np.isin(key, repeated)]
    seen: set[tuple[object, ...]] = set()
    dropped: BoolColumn = np.zeros(len(events), dtype=bool)
    columns = [getattr(events, name)[suspects].tolist() for name in _COLUMNS]
    for row, values in zip(suspects.tolist(), zip(*columns, strict=True), strict=True):
        dropped[row] = values in seen
        seen.add(values)
    if not dropped.any():
        return events, []
    finding = Finding(
        severity="warning",
        code="duplicate_events",
        message=f"{int(dropped.sum())} events of {path} stand there twice, alike in every respect; each was taken once",
        next_step="usual after traces were merged; look at how the file was made if it was not",
    )
    return events.select(~dropped), [finding]
