"""Who launched a device's events, where several processes in one file may have: told by correlations and times."""

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, EventTable, IntColumn

_SORTS = 8  # of calls, at least
_MOST_CORRELATION = 2**59  # CUPTI's have 32 bits; beyond, a correlation and a sort do not fit one number
_MOST_CALLS = 256  # per event that may be looked at on average; with more nothing could be told


class Launches:
    """The launching calls of all processes in a file.

    Ranks run the same program, so their correlations are often alike. A call may have launched an event if it has the
    event's correlation, is of the right sort and begins before it, however long before.
    """

    def __init__(self, table: EventTable, process: IntColumn, hosts: BoolColumn) -> None:
        calls = np.flatnonzero(table.is_category(Category.RUNTIME) & _usable(table.correlation) & hosts[process])
        sorts = np.array([_sort_of_call(name) for name in table.names], dtype=np.int64)
        keys = table.correlation[calls] * _SORTS + sorts[table.name[calls]]
        order = np.argsort(keys, kind="stable")
        self._table = table
        self._keys = keys[order]
        self._starts_us = table.start_us[calls][order]
        self._processes = process[calls][order]
        self._count = len(hosts)

    def owners(self, rows: IntColumn) -> IntColumn:
        """The process that launched each of these rows, the events of one device's process; -1 where that cannot be told.

        All rows are of one process, those without a launch in the file too, if it may have launched all that anybody may
        have, and twice as many as any other. Else processes share the device's number, and a row is whose launch alone fits.
        """
        table = self._table
        correlation = table.correlation[rows]
        keys = np.where(_usable(correlation), correlation * _SORTS + table.category[rows], -1)
        first, last = np.searchsorted(self._keys, keys, "left"), np.searchsorted(self._keys, keys, "right")
        counts = last - first
        if not counts.any() or counts.sum() > _MOST_CALLS * len(rows):
            return np.full(len(rows), -1, dtype=np.int64)
        event = np.repeat(np.arange(len(rows)), counts)
        call = np.arange(len(event)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        fits = self._starts_us[call] <= table.start_us[rows][event]
        pairs = np.unique(event[fits] * self._count + self._processes[call[fits]])
        event, process = pairs // self._count, pairs % self._count
        fitting = np.bincount(process, minlength=self._count)
        best, second = np.sort(np.append(fitting, 0))[:-3:-1].tolist()
        if best > 2 * second and best == len(np.unique(event)):
            return np.full(len(rows), int(fitting.argmax()), dtype=np.int64)
        alone = np.bincount(event, minlength=len(rows)) == 1
        owners = np.full(len(rows), -1, dtype=np.int64)
        kept = alone[event]
        owners[event[kept]] = process[kept]
        return owners


def _usable(correlation: IntColumn) -> BoolColumn:
    return (correlation >= 0) & (correlation < _MOST_CORRELATION)


def _sort_of_call(name: str) -> int:
    low = name.lower()
    return int(Category.MEMCPY if "memcpy" in low else Category.MEMSET if "memset" in low else Category.KERNEL)
