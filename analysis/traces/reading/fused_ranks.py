"""Several ranks in one file: which event is whose. A correlation is one process's, so each rank needs its own table."""

import json
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpscope.analysis.traces.reading.event_columns import COLUMN_TYPES, Loss, TableBuilder
from dpscope.analysis.traces.reading.event_table import Category, CommunicationArgs, EventTable
from dpscope.analysis.traces.reading.json_events import NONE, Event, int64
from dpscope.profiling.records.run import Finding

_LABEL = re.compile(rb'"process_(?:name|labels)"')
_RANK = re.compile(r"rank[ _:#-]*(\d{1,9})(?!\d)", re.IGNORECASE)
_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


@dataclass(frozen=True)
class FusedRank:
    """One rank's events."""

    rank: int | None
    events: EventTable


class FusedBuilder:
    """Tables by owner: the rank an event names, else its process."""

    def __init__(self) -> None:
        self._builders: dict[Hashable, TableBuilder] = {}
        self._labels: dict[Hashable, int] = {}  # process -> the rank its name tells
        self.base_us: int | None = None

    @property
    def rows(self) -> int:
        return sum(builder.rows for builder in self._builders.values())

    @property
    def lost(self) -> Counter[Loss]:
        return sum((builder.lost for builder in self._builders.values()), Counter())

    def add(self, events: Sequence[Event], chunk: bytearray, subtracted_us: int = 0) -> None:
        """Sort a chunk's events by owner; `chunk` is their text, in which the processes' names are looked for."""
        owned: dict[Hashable, list[Event]] = {}
        for event in events:
            if event.ph == "X":
                owned.setdefault(_owner(event), []).append(event)
        for owner, own in owned.items():
            builder = self._builders.setdefault(owner, TableBuilder())
            if self.base_us is None:
                builder.add(own, subtracted_us)
                self.base_us = builder.base_us
            else:
                builder.base_us = self.base_us
                builder.add(own, subtracted_us)
        self._labels.update(_process_ranks(chunk))

    def ranks(self, path: Path) -> tuple[list[FusedRank], list[Finding]]:
        """A table per rank, by rank, and how the file was divided."""
        tables: dict[Hashable, list[EventTable]] = {}
        for owner, builder in self._builders.items():
            rank = self._labels.get(owner[1]) if isinstance(owner, tuple) else None
            tables.setdefault(("rank", rank) if rank is not None else owner, []).append(builder.table())
        merged = {owner: concatenated(parts) for owner, parts in tables.items()}
        hosts = {owner: table for owner, table in merged.items() if _is_host(table)}
        findings: list[Finding] = []
        for owner, table in merged.items():
            if owner in hosts or not len(table):
                continue
            launcher = _launcher(table, hosts)
            if launcher is None:
                findings.append(_unowned(path, len(table)))
            else:
                hosts[launcher] = concatenated([hosts[launcher], table])
        numbers, assumed = _rank_numbers(list(hosts))
        ranks = sorted((FusedRank(numbers[owner], table) for owner, table in hosts.items()), key=_by_rank)
        if len(ranks) > 1:
            findings.insert(0, _fused(path, ranks, assumed))
        return ranks, findings


def _owner(event: Event) -> tuple[str, int | str]:
    rank = int64(event.args.rank)
    return ("rank", rank) if rank is not None and rank != NONE else ("process", event.pid)


def _process_ranks(chunk: bytearray) -> dict[Hashable, int]:
    """Ranks that the names or labels of processes tell, by process."""
    found: dict[Hashable, int] = {}
    for match in _LABEL.finditer(chunk):
        start = chunk.rfind(b"{", 0, match.start())
        end = chunk.find(b"}", match.end())
        end = chunk.find(b"}", end + 1)
        try:
            event = json.loads(chunk[start : end + 1].decode("utf-8", errors="replace"), strict=False)
            rank = _RANK.search(" ".join(str(value) for value in event["args"].values()))
        except (ValueError, KeyError, AttributeError, TypeError):
            continue
        if rank is not None and isinstance(event.get("pid"), int | str):
            found[event["pid"]] = int(rank[1])
    return found


def _is_host(table: EventTable) -> bool:
    """Whether a process of its own: it launches, or annotates."""
    return bool(table.is_category(Category.RUNTIME, Category.USER_ANNOTATION, Category.CPU_OP).any())


def _launcher(device: EventTable, hosts: dict[Hashable, EventTable]) -> Hashable | None:
    """The process that launched a device's events; None where two fit as well.

    Ranks run the same program, so their correlations are much alike: a launch must be of the right sort and begin before
    the event.
    """
    scores = {owner: _launched(device, table) for owner, table in hosts.items()}
    ordered = sorted(scores.values(), reverse=True)
    if not ordered or ordered[0] == 0 or (len(ordered) > 1 and ordered[0] == ordered[1]):
        return None
    return max(scores, key=lambda owner: scores[owner])


def _launched(device: EventTable, host: EventTable) -> int:
    """How many of a device's events this process may have launched."""
    calls = np.flatnonzero(host.is_category(Category.RUNTIME) & (host.correlation >= 0))
    if not len(calls):
        return 0
    sorts = np.array([_sort_of_call(name) for name in host.names], dtype=np.int64)
    calls = calls[np.argsort(host.correlation[calls], kind="stable")]
    index = np.minimum(np.searchsorted(host.correlation[calls], device.correlation), len(calls) - 1)
    call = calls[index]
    fits = (host.correlation[call] == device.correlation) & (host.start_us[call] <= device.start_us)
    return int((fits & (sorts[host.name[call]] == device.category)).sum())


def _sort_of_call(name: str) -> int:
    low = name.lower()
    return int(Category.MEMCPY if "memcpy" in low else Category.MEMSET if "memset" in low else Category.KERNEL)


def _rank_numbers(owners: list[Hashable]) -> tuple[dict[Hashable, int | None], bool]:
    """Rank of each owner, and whether it had to be assumed from the order of the processes' ids."""
    told: dict[Hashable, int | None] = {}
    for owner in owners:
        if isinstance(owner, tuple) and owner[0] == "rank":
            told[owner] = owner[1]
    rest = sorted((owner for owner in owners if owner not in told), key=str)
    processes = [owner[1] for owner in rest if isinstance(owner, tuple)]
    if told or all(isinstance(process, int) and 0 <= process < len(rest) for process in processes):
        taken = set(told.values())
        for owner, process in zip(rest, processes, strict=True):
            told[owner] = process if isinstance(process, int) and process < 4096 and process not in taken else None
        return told, False
    by_number = sorted(
        rest, key=lambda owner: (isinstance(owner[1], str), owner[1]) if isinstance(owner, tuple) else ()
    )
    return {owner: index for index, owner in enumerate(by_number)}, True


def _by_rank(one: FusedRank) -> tuple[bool, int]:
    return one.rank is None, one.rank if one.rank is not None else 0


def _fused(path: Path, ranks: list[FusedRank], assumed: bool) -> Finding:
    numbers = ", ".join("unknown" if one.rank is None else str(one.rank) for one in ranks)
    return Finding(
        severity="warning" if assumed else "info",
        code="fused_ranks",
        message=f"{path} holds {len(ranks)} ranks ({numbers})"
        + ("; they are not named and were numbered in the order of their processes" if assumed else "")
        + ": each was read by itself",
        next_step="nothing to do" if not assumed else "give each event its `args.rank` to have them named rightly",
    )


def _unowned(path: Path, count: int) -> Finding:
    return Finding(
        severity="error",
        code="fused_events_unowned",
        message=f"{count} device events of {path} could be of several of its ranks and were left out",
        next_step="read the ranks' own files, or give each event its `args.rank`",
    )


def concatenated(tables: Sequence[EventTable]) -> EventTable:
    """Several tables as one, their names joined."""
    if len(tables) == 1:
        return tables[0]
    codes: dict[str, int] = {}
    communication: dict[int, CommunicationArgs] = {}
    columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMN_TYPES}
    rows = 0
    for table in tables:
        recoded = np.array([codes.setdefault(name, len(codes)) for name in table.names], dtype=np.int64)
        for name, parts in columns.items():
            column = getattr(table, name)
            parts.append(recoded[column] if name == "name" else column)
        communication |= {rows + row: args for row, args in table.communication.items()}
        rows += len(table)
    return EventTable(
        **{name: np.concatenate(parts) for name, parts in columns.items()},
        names=list(codes),
        communication=communication,
    )
