"""Several ranks in one file: which event is whose. A correlation is one process's, so each rank
needs its own table.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpscope.analysis.traces.reading import event_table
from dpscope.analysis.traces.reading.event_columns import TableBuilder
from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, EventTable, IntColumn
from dpscope.analysis.traces.reading.json_events import MOST_ORDINAL, Event, ordinal
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError

_SORTS = 8  # of calls, at least
# CUPTI's have 32 bits; beyond, a correlation and a sort do not fit one number
_MOST_CORRELATION = 2**59
_MOST_CALLS = 256  # per event that may be looked at on average; with more no process is assigned
_RANK = re.compile(
    rb"(?<![a-z])(?<!local_)(?<!local[ -])rank[ _:=#-]*(\d{1,10})(?!\d)", re.IGNORECASE
)
_GPU = re.compile(rb"gpu|cuda|device", re.IGNORECASE)
# in one file; more are no ranks of a job but damage, and each costs separate tables
_MOST_PROCESSES = 2000


class Owner(NamedTuple):
    """The owner of an event: the rank it names, if any, and its process.

    A process's number may be a device's too, of another rank: `on_device` distinguishes them.
    """

    rank: int | None
    process: int | str
    on_device: bool


class FusedRank(NamedTuple):
    """One rank's events, and the time stamp in the file of its table's time 0."""

    rank: int | None
    events: EventTable
    base_us: int


class FusedBuilder:
    """One table of all ranks, with the owner of each row; `ranks` divides it."""

    def __init__(self, path: Path) -> None:
        self.table = TableBuilder()
        self._path = path
        # of owners, the rank as it is written
        self._codes: dict[tuple[object, int | str, bool], int] = {}
        # the owners' codes, a chunk at a time
        self._rows: list[IntColumn] = [np.empty(0, dtype=np.int64)]
        # By process and whether on a device: the ranks it is called by.
        self._labels: dict[tuple[int | str, bool], set[int]] = defaultdict(set)

    def add(self, events: Sequence[Event], subtracted_us: int = 0) -> None:
        """Append a chunk's events. Raises DpscopeError for more processes than any job has in one
        file.
        """
        kept = self.table.add(events, subtracted_us)
        owners = [
            (event.args.rank, event.pid, event_table.is_on_device(event.cat)) for event in kept
        ]
        for owner in dict.fromkeys(owners):
            self._codes.setdefault(owner, len(self._codes))
        if len(self._codes) > _MOST_PROCESSES:
            raise DpscopeError(
                f"{self._path} holds events of more than {counted(_MOST_PROCESSES, 'process')}: it is damaged, or too many "
                "traces were joined; name the ranks' own files"
            )
        self._rows.append(
            np.fromiter(map(self._codes.__getitem__, owners), dtype=np.int64, count=len(owners))
        )
        for event in events:
            if event.ph != "M" or event.name not in ("process_name", "process_labels"):
                continue
            for text in (bytes(event.args.process_name), bytes(event.args.process_labels)):
                if (match := _RANK.search(text)) and (rank := int(match[1])) <= MOST_ORDINAL:
                    # A name that speaks of a GPU is of nothing on the host.
                    for on_device in (True,) if _GPU.search(text) else (True, False):
                        self._labels[event.pid, on_device].add(rank)

    def ranks(self) -> tuple[list[FusedRank], list[Finding]]:
        """A table per rank, by rank, and how the file was divided."""
        table, base_us = self.table.table(), self.table.base_us or 0
        names, of_owner = self._groups()
        group = _with_devices(names, table, of_owner[np.concatenate(self._rows)])
        present = np.unique(group[group >= 0]).tolist()
        numbers, assumed = _rank_numbers([names[one] for one in present])
        ranks = []
        for one, number in zip(present, numbers, strict=True):
            events, offset_us = table.rows(np.flatnonzero(group == one)).from_its_start()
            ranks.append(FusedRank(number, events, base_us + offset_us))
        ranks.sort(key=lambda one: (one.rank is None, one.rank or 0))
        findings = []
        if len(ranks) > 1:
            shown = ", ".join("unknown" if one.rank is None else str(one.rank) for one in ranks)
            order = (
                "; they are not named and were numbered in the order of their processes"
                if assumed
                else ""
            )
            finding = TraceCode.FUSED_RANKS.finding(
                f"{self._path} holds {counted(len(ranks), 'rank')} ({shown}){order}: each was read by itself",
                "give each event its `args.rank` to name them correctly" if assumed else "",
                severity="warning" if assumed else "info",
            )
            findings.append(finding)
        if unowned := int((group < 0).sum()):
            what = f"{unowned} device events of {self._path} could have been launched by several of its ranks, or by none"
            action = "read the original file of each rank, or set `args.rank` in each event"
            finding = TraceCode.EVENTS_DAMAGED.finding(
                f"{what}: left out", action, severity="error"
            )
            findings.append(finding)
        return ranks, findings

    def _groups(self) -> tuple[list[Owner], IntColumn]:
        """Groups of owners that are one: of the same rank, or without a rank and of the same
        process; the group of each owner.

        An event's own rank decides; the name of a process counts only for events that name no rank.
        A process that is called by two ranks, or has events of two, is no evidence.
        """
        owners = [
            Owner(ordinal(rank), process, on_device) for rank, process, on_device in self._codes
        ]
        named = defaultdict[tuple[int | str, bool], set[int]](set)
        for rank, process, on_device in owners:
            if rank is not None:
                named[process, on_device].add(rank)
        named |= self._labels
        codes: dict[Owner, int] = {}
        of_owner = []
        for owner in owners:
            ranks = {owner.rank} if owner.rank is not None else named.get(owner[1:], set())
            whole = Owner(next(iter(ranks)), "", on_device=False) if len(ranks) == 1 else owner
            of_owner.append(codes.setdefault(whole, len(codes)))
        return list(codes), np.array(of_owner, dtype=np.int64)


def _with_devices(names: list[Owner], table: EventTable, group: IntColumn) -> IntColumn:
    """Each row's group, devices in that of the process that launched them; -1 if unknown.

    A process without a rank takes that of the device it launches on, if that names one: in `names`,
    too.
    """
    counts = np.bincount(group[table.is_category(*event_table.HOST)], minlength=len(names))
    named = np.array([name.rank is not None for name in names], dtype=np.bool_)
    hosts = counts > np.where(named, 0, 1)  # one event that names another process is a damaged one
    # A tool may give a device and its host one process id: then every host has a device, and every
    # device a host.
    host_of = {names[one].process: one for one in np.flatnonzero(hosts).tolist()}
    paired = host_of if host_of.keys() == {name.process for name in names if name.on_device} else {}
    owners_of = _launchers(table, group, hosts)
    owned = group.copy()
    # process without a rank -> devices that name one
    claims: dict[int, set[int]] = defaultdict(set)
    for device in np.flatnonzero(~hosts).tolist():
        rows = np.flatnonzero(group == device)
        owners = owners_of(rows)
        if not named[device]:
            host = paired.get(names[device].process, -1) if names[device].on_device else -1
            owned[rows] = host if (owners < 0).all() else owners
        elif len(rows) and owners[0] >= 0 and (owners == owners[0]).all() and not named[owners[0]]:
            claims[int(owners[0])].add(device)
    for host, devices in claims.items():
        if len(devices) == 1:
            (device,) = devices
            names[host] = names[device]
            owned[group == device] = host
    return owned


def _launchers(
    table: EventTable, process: IntColumn, hosts: BoolColumn
) -> Callable[[IntColumn], IntColumn]:
    """A function of the rows of one device's process: the process that launched each; -1 if
    unknown.

    Ranks run the same program, so their correlations are often alike. A call may have launched an
    event if it has the event's correlation, is of the right sort and begins before it, however long
    before. All rows are of one process, those without a launch in the file too, if it may have
    launched all that anybody may have, and twice as many as any other. Else processes share the
    device's number, and a row is whose launch alone fits.
    """
    usable = (table.correlation >= 0) & (table.correlation < _MOST_CORRELATION)
    calls = np.flatnonzero(table.is_category(Category.RUNTIME) & usable & hosts[process])
    sorts = np.full(len(table.names), Category.KERNEL, dtype=np.int64)
    for code, name in enumerate(table.names):
        if "memcpy" in name.lower() or "memset" in name.lower():
            sorts[code] = Category.MEMCPY if "memcpy" in name.lower() else Category.MEMSET
    of_calls = table.correlation[calls] * _SORTS + sorts[table.name[calls]]
    order = np.argsort(of_calls, kind="stable")
    of_calls, calls, count = of_calls[order], calls[order], len(hosts)

    def owners(rows: IntColumn) -> IntColumn:
        found = np.full(len(rows), -1, dtype=np.int64)
        keys = np.where(usable[rows], table.correlation[rows] * _SORTS + table.category[rows], -1)
        first, last = (
            np.searchsorted(of_calls, keys, "left"),
            np.searchsorted(of_calls, keys, "right"),
        )
        counts = last - first
        if not counts.any() or counts.sum() > _MOST_CALLS * len(rows):
            return found
        event = np.repeat(np.arange(len(rows)), counts)
        call = calls[
            np.arange(len(event)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        ]
        fits = table.start_us[call] <= table.start_us[rows][event]
        pairs = np.unique(event[fits] * count + process[call[fits]])
        event, launching = pairs // count, pairs % count
        fitting = np.bincount(launching, minlength=count)
        best, second = np.sort(np.append(fitting, 0))[:-3:-1].tolist()
        if best > 2 * second and best == len(np.unique(event)):
            return np.full(len(rows), int(fitting.argmax()), dtype=np.int64)
        alone = (np.bincount(event, minlength=len(rows)) == 1)[event]
        found[event[alone]] = launching[alone]
        return found

    return owners


def _rank_numbers(names: Sequence[Owner]) -> tuple[list[int | None], bool]:
    """Rank of each group, and whether it had to be assumed from the order of the processes' ids."""
    processes = [name.process for name in names if name.rank is None]
    # next to named ranks, a process without a name is of an unknown one
    if len(processes) < len(names):
        return [name.rank for name in names], False
    ordered = sorted(processes, key=lambda process: (isinstance(process, str), process))
    return [ordered.index(process) for process in processes], ordered != list(range(len(ordered)))
