"""Several ranks in one file: which event is whose. A correlation is one process's, so each rank needs its own table."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpscope.analysis.traces.reading.categories import CATEGORIES, DEVICE_WORK
from dpscope.analysis.traces.reading.event_columns import TableBuilder
from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, EventTable, IntColumn
from dpscope.analysis.traces.reading.json_events import MOST_ORDINAL, LabelEvent, ordinal
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError

_SORTS = 8  # of calls, at least
_MOST_CORRELATION = 2**59  # CUPTI's have 32 bits; beyond, a correlation and a sort do not fit one number
_MOST_CALLS = 256  # per event that may be looked at on average; with more no process is assigned


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
        """The process that launched each of these rows, the events of one device's process; -1 if unknown.

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


_RANK = re.compile(rb"(?<![a-z])(?<!local_)(?<!local[ -])rank[ _:=#-]*(\d{1,10})(?!\d)", re.IGNORECASE)
_GPU = re.compile(rb"gpu|cuda|device", re.IGNORECASE)
_LABELS = frozenset({"process_name", "process_labels"})
_HOST = (Category.RUNTIME, Category.USER_ANNOTATION, Category.CPU_OP)
_MOST_PROCESSES = 2000  # in one file; more are no ranks of a job but damage, and each costs separate tables


class Owner(NamedTuple):
    """The owner of an event: the rank it names, if any, and its process.

    A process's number may be a device's too, of another rank: `on_device` distinguishes them.
    """

    rank: int | None
    process: int | str
    on_device: bool


@dataclass(frozen=True)
class FusedRank:
    """One rank's events, and the time stamp in the file of its table's time 0."""

    rank: int | None
    events: EventTable
    base_us: int


class FusedBuilder:
    """One table of all ranks, with the owner of each row; `ranks` divides it."""

    def __init__(self, path: Path) -> None:
        self.table = TableBuilder()
        self._path = path
        self._codes: dict[tuple[object, int | str, bool], int] = {}  # of owners, the rank as it is written
        self._rows: list[IntColumn] = []  # the owners' codes, a chunk at a time
        self._labels: _Labels = {}

    def add(self, events: Sequence[LabelEvent], subtracted_us: int = 0) -> None:
        """Append a chunk's events. Raises DpscopeError for more processes than any job has in one file."""
        kept = self.table.add(events, subtracted_us)
        owners = [(event.args.rank, event.pid, CATEGORIES[event.cat] in DEVICE_WORK) for event in kept]
        for owner in dict.fromkeys(owners):
            self._codes.setdefault(owner, len(self._codes))
        if len(self._codes) > _MOST_PROCESSES:
            raise DpscopeError(
                f"{self._path} holds events of more than {counted(_MOST_PROCESSES, 'process')}: it is damaged, or too many "
                "traces "
                "were joined; name the ranks' own files"
            )
        self._rows.append(np.fromiter(map(self._codes.__getitem__, owners), dtype=np.int64, count=len(owners)))
        for event in events:
            if event.ph == "M" and event.name in _LABELS:
                _note_labels(self._labels, event)

    def ranks(self) -> tuple[list[FusedRank], list[Finding]]:
        """A table per rank, by rank, and how the file was divided."""
        table, base_us = self.table.table(), self.table.base_us or 0
        owners = [Owner(ordinal(rank), process, on_device) for rank, process, on_device in self._codes]
        division = _Division(owners, self._labels)
        group = division.of_owner[np.concatenate(self._rows)] if self._rows else np.empty(0, dtype=np.int64)
        group = division.with_devices(table, group)
        present = np.unique(group[group >= 0]).tolist()
        numbers, assumed = _rank_numbers([division.names[one] for one in present])
        ranks = []
        for one, number in zip(present, numbers, strict=True):
            events, offset_us = table.rows(np.flatnonzero(group == one)).from_its_start()
            ranks.append(FusedRank(number, events, base_us + offset_us))
        ranks.sort(key=lambda one: (one.rank is None, one.rank or 0))
        findings = [_fused(self._path, ranks, assumed)] if len(ranks) > 1 else []
        unowned = int((group < 0).sum())
        return ranks, findings + (
            [
                TraceCode.FUSED_EVENTS_UNOWNED.finding(
                    f"{unowned} device events of {self._path} could have been launched by several of its ranks, or by none: "
                    "left out"
                )
            ]
            if unowned
            else []
        )


class _Division:
    """Groups of owners that are one: of the same rank, or without a rank and of the same process.

    An event's own rank decides; the name of a process counts only for events that name no rank. A process that
    is called by two ranks, or has events of two, is no evidence.
    """

    def __init__(self, owners: Sequence[Owner], labels: "_Labels") -> None:
        named: _Labels = {}
        for rank, process, on_device in owners:
            if rank is not None:
                named.setdefault((process, on_device), set()).add(rank)
        named |= labels
        codes: dict[Owner, int] = {}
        of_owner = []
        for owner in owners:
            known = owner.rank if owner.rank is not None else _only(named.get(owner[1:], set()))
            whole = owner if known is None else Owner(known, "", on_device=False)
            of_owner.append(codes.setdefault(whole, len(codes)))
        self.names = list(codes)
        self.of_owner = np.array(of_owner, dtype=np.int64)

    def with_devices(self, table: EventTable, group: IntColumn) -> IntColumn:
        """Each row's group, devices in that of the process that launched them; -1 if unknown.

        A process without a rank takes that of the device it launches on, if that names one.
        """
        counts = np.bincount(group[table.is_category(*_HOST)], minlength=len(self.names))
        named = np.array([name.rank is not None for name in self.names], dtype=np.bool_)
        hosts = counts > np.where(named, 0, 1)  # one event that names another process is a damaged one
        same_process = self._hosts_of_devices(hosts)
        launches = Launches(table, group, hosts)
        owned = group.copy()
        claims: dict[int, set[int]] = {}  # process without a rank -> devices that name one
        for device in np.flatnonzero(~hosts).tolist():
            rows = np.flatnonzero(group == device)
            owners = launches.owners(rows)
            if not named[device]:
                owned[rows] = same_process.get(device, -1) if (owners < 0).all() else owners
            elif len(rows) and owners[0] >= 0 and (owners == owners[0]).all() and not named[owners[0]]:
                claims.setdefault(int(owners[0]), set()).add(device)
        for host, devices in claims.items():
            if len(devices) == 1:
                device = devices.pop()
                self.names[host] = self.names[device]
                owned[group == device] = host
        return owned

    def _hosts_of_devices(self, hosts: BoolColumn) -> dict[int, int]:
        """Each device's host where a tool gave both one process id: then every host has a device, and every device a host."""
        host_of = {self.names[one].process: one for one in np.flatnonzero(hosts).tolist()}
        device_of = {name.process: one for one, name in enumerate(self.names) if name.on_device}
        if host_of.keys() != device_of.keys():
            return {}
        return {device: host_of[process] for process, device in device_of.items()}


def _only(values: set[int]) -> int | None:
    """The value, if there is exactly one."""
    return next(iter(values)) if len(values) == 1 else None


_Labels = dict[tuple[int | str, bool], set[int]]
"""(process, whether on a device) -> the ranks it is called by."""


def _note_labels(labels: _Labels, event: LabelEvent) -> None:
    """Add the rank that a metadata event calls a process by; a name that speaks of a GPU is of nothing on the host."""
    for text in (bytes(event.args.process_name), bytes(event.args.process_labels)):
        match = _RANK.search(text)
        if match is not None and (rank := int(match[1])) <= MOST_ORDINAL:
            for on_device in (True,) if _GPU.search(text) else (True, False):
                labels.setdefault((event.pid, on_device), set()).add(rank)


def _rank_numbers(names: Sequence[Owner]) -> tuple[list[int | None], bool]:
    """Rank of each group, and whether it had to be assumed from the order of the processes' ids."""
    processes = [name.process for name in names if name.rank is None]
    if len(processes) < len(names):  # next to named ranks, a process without a name is of an unknown one
        return [name.rank for name in names], False
    if set(processes) == set(range(len(processes))):
        return [process if isinstance(process, int) else None for process in processes], False
    ordered = sorted(processes, key=lambda process: (isinstance(process, str), process))
    return [ordered.index(process) for process in processes], True


def _fused(path: Path, ranks: list[FusedRank], assumed: bool) -> Finding:
    numbers = ", ".join("unknown" if one.rank is None else str(one.rank) for one in ranks)
    return TraceCode.FUSED_RANKS.finding(
        f"{path} holds {counted(len(ranks), 'rank')} ({numbers})"
        + ("; they are not named and were numbered in the order of their processes" if assumed else "")
        + ": each was read by itself",
        next_step="give each event its `args.rank` to name them correctly" if assumed else None,
        severity="warning" if assumed else "info",
    )
