"""Reads NCCL's and RCCL's log at NCCL_DEBUG=INFO: algorithms, protocols, channels, transports and the cost table.

The lines, by the file of NCCL's sources that prints them (versions 2.4 to 2.30; RCCL has the same files):

- init.cc: ``NCCL version 2.27.5+cuda12.9`` (RCCL: ``RCCL version``), ``16 coll channels, 16 nvls channels, 16 p2p channels``,
  ``ncclCommInitRank comm 0x.. rank 0 nranks 24 .. commId 0x.. - Init COMPLETE`` (early versions have no ``commId``).
- graph/paths.cc: ``P2P is disabled between connected GPUs 0 and 1.``; misc/param.cc: ``NCCL_P2P_DISABLE set by environment
  to 1.``
- transport/*.cc: ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``, early versions ``Ring 00 : 0 -> 1 [send] via NET/Socket/0``;
  ``NET/IB : Using [0]mlx5_0:1/IB``, ``Using network Socket``, ``GPU Direct RDMA Enabled``.
- enqueue.cc, by rank 0 of a communicator: ``8 Bytes -> Algo 0 proto 0 time 25.200924``, later ``AllGather: 37756928 Bytes ->
  Algo 1 proto 2 time 2860.208008``, from 2.24 on ``AllReduce: 8388608 Bytes -> Algo RING proto LL128
  channel{Lo..Hi}={0..15}``. Up to 2.23 the bytes are those of the larger buffer (``ncclFuncMaxSendRecvCount``), from 2.24 on
  those of the call's count, which is one rank's share for all-gather and reduce-scatter.
- graph/tuning.cc, by rank 0: latencies and bandwidths below ``Latency/AlgBw | Tree/ LL | ...``, later below ``Algorithm | Tree |
  Ring |`` and ``Protocol | LL | LL128 | Simple | ...``, in blocks of a few algorithms.

Numbers stand for algorithms and protocols in the order of ``NCCL_ALGO_*`` and ``NCCL_PROTO_*`` in NCCL's headers.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dpscope.profiling.records.calibration import COLLECTIVES, Choice, Communicator, NcclLog, TableEntry
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError, unreadable

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
# A message begins with host:pid:tid [device], after a launcher's prefix, or in the middle of another rank's line.
_BEGIN = re.compile(r"([\w.-]+):(\d+):\d+ \[-?\d+\] (?:\S+ )?NCCL (?:INFO|WARN) ")
_VERSION = re.compile(r"\b([NR]CCL) version ?:? ?v?(\d+\.\d+(?:\.\d+)?)")
_CHANNELS = re.compile(
    r"(?P<channels>\d+) coll channels,(?: (?P<collnet_channels>\d+) collnet channels,)?"
    r"(?: (?P<nvls_channels>\d+) nvls channels,)? \d+ p2p channels"
)
_LINK = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? : (\d+)(?:\[[^\]]*\])? -> (\d+)(?:\[[^\]]*\])? (?:\[\w+\] )?via (\S+)"
)
_NETWORK = re.compile(r"Using network (\S+)|NET/(IB|Socket|OFI) ?: Using ")
_PORTS = re.compile(r"NET/IB ?: Using ((?: ?\[\d+\] ?[^\s\[]+)+)")
_PEER_ACCESS_OFF = re.compile(
    r"P2P is disabled between connected GPUs \d+ and \d+|NCCL_P2P_DISABLE set by environment to [1-9]"
)
_GPU_DIRECT = re.compile(r"GPU Direct RDMA (Enabled|Disabled)")
_CALL = re.compile(
    r"(?:(?P<kind>\w+): *)?(?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?: time (?P<time>[\d.]+)| channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})$"
)
_TABLE = re.compile(
    r"\s*(Latency/AlgBw|Algorithm|Protocol|Max NThreads|Broadcast|Reduce|AllGather|ReduceScatter|AllReduce) *\|"
)
_CELL = re.compile(r"(-?[\d.]+)/\s*(-?[\d.]+)")


_IN_SHARES = ("all_gather", "reduce_scatter")
_SHARES_SINCE = (2, 24)  # the version that prints one rank's share of them


@dataclass(frozen=True)
class _Call:
    """What the line of a call states."""

    kind: str | None
    printed_bytes: int
    algorithm: str
    protocol: str
    channels: int | None
    time_us: float | None
    ranks: int | None  # of the only communicator that it can be of; None: of several sizes, or not in the log

    def size_bytes(self, version: tuple[int, ...] | None) -> int | None:
        """The larger of a rank's buffers; None if the line has a share of an unknown number of ranks."""
        if self.kind not in _IN_SHARES:
            return self.printed_bytes
        in_shares = version >= _SHARES_SINCE if version is not None else self.channels is not None
        if not in_shares:
            return self.printed_bytes
        return None if self.ranks is None else self.printed_bytes * self.ranks


@dataclass
class _Process:
    """One process while its lines are read; `pending` holds values printed before its communicator is complete."""

    pending: dict[str, int] = field(default_factory=dict)
    table: list[TableEntry] = field(default_factory=list)
    columns: list[tuple[str, str]] = field(default_factory=list)  # of the table's current block: algorithm, protocol
    algorithms: list[str] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)  # of its communicators so far


class _Reader:
    def __init__(self) -> None:
        self.found: dict[str, Any] = {"library": None, "unread_lines": 0}  # fields of NcclLog
        self.communicators: dict[str, Communicator] = {}
        self.version: tuple[int, ...] | None = None
        self.calls: Counter[_Call] = Counter()
        self.links: set[tuple[int, int, str]] = set()  # ranks, transport
        self.networks: dict[str, None] = {}

    def read(self, process: _Process, text: str) -> None:
        found = self.found
        if version := _VERSION.search(text):
            found["library"] = f"{version[1]} {version[2]}"
            self.version = tuple(map(int, version[2].split(".")))
        elif text.rstrip().endswith("Init COMPLETE"):
            self._complete(process, text)
        elif channels := _CHANNELS.search(text):
            process.pending = {name: int(one) for name, one in channels.groupdict().items() if one is not None}
        elif link := _LINK.search(text):
            self.links.add((int(link[1]), int(link[2]), re.sub(r"(NET/\w+)/\d+(?:\(\d+\))?", r"\1", link[3])))
        elif "Bytes -> " in text:
            self._call(process, text)
        elif _TABLE.match(text):
            found["unread_lines"] += not _read_table(process, text)
        elif network := _NETWORK.search(text):
            self.networks[network[1] or network[2]] = None
            found["infiniband"] = found.get("infiniband", False) or network[2] == "IB"
            if ports := _PORTS.search(text):
                found["network_ports"] = max(found.get("network_ports", 0), ports[1].count("["))
        elif peers := _PEER_ACCESS_OFF.search(text):
            found.setdefault("peer_access_off", peers[0])
        elif direct := _GPU_DIRECT.search(text):
            found["gpu_direct"] = direct[1] == "Enabled" and found.get("gpu_direct") is not False

    def _complete(self, process: _Process, text: str) -> None:
        """Add a communicator that a process has initialised; only rank 0 has the cost table."""
        ranks = re.search(r"nranks (\d+)", text)
        if ranks is None:
            self.found["unread_lines"] += 1
            return
        identity = re.search(r"commId (0x[0-9a-f]+)", text)
        key = identity[1] if identity else counted(int(ranks[1]), "rank")
        known = self.communicators.get(key, Communicator(int(ranks[1])))
        table = tuple(process.table) or known.cost_table
        self.communicators[key] = msgspec.structs.replace(known, cost_table=table, **process.pending)
        process.pending, process.table = {}, []
        process.ranks.add(int(ranks[1]))

    def _call(self, process: _Process, text: str) -> None:
        call = _CALL.search(text)
        algorithm = _name(call["algorithm"], ALGORITHMS) if call else None
        protocol = _name(call["protocol"], PROTOCOLS) if call else None
        if call is None or algorithm is None or protocol is None:
            self.found["unread_lines"] += 1
            return
        kind = COLLECTIVES.get((call["kind"] or "").lower())
        channels = None if call["low"] is None else int(call["high"]) - int(call["low"]) + 1
        time_us = None if call["time"] is None else float(call["time"])
        ranks = next(iter(process.ranks)) if len(process.ranks) == 1 else None
        self.calls[_Call(kind, int(call["bytes"]), algorithm, protocol, channels, time_us, ranks)] += 1

    def choices(self) -> tuple[Choice, ...]:
        """Calls counted by size and choice; those of an unknown size count as unread."""
        counts: Counter[tuple[str | None, int, str, str, int | None, float | None]] = Counter()
        for call, times in self.calls.items():
            size = call.size_bytes(self.version)
            if size is None:
                self.found["unread_lines"] += times
            else:
                counts[call.kind, size, call.algorithm, call.protocol, call.channels, call.time_us] += times
        ordered = sorted(counts.items(), key=lambda one: (str(one[0][0]), one[0][1]))
        return tuple(Choice(*choice, times) for choice, times in ordered)


def read_nccl_logs(paths: Sequence[Path]) -> NcclLog:
    """Read the logs of one job's processes, in any order; ranks may share a file, and a launcher may prefix its lines.

    Raises DpscopeError with the name of a file that cannot be read or has no line of NCCL.
    """
    reader, processes = _Reader(), dict[tuple[str, str], _Process]()
    for path in paths:
        empty = True
        for host, process_id, text in _messages(path):
            empty = False
            reader.read(processes.setdefault((host, process_id), _Process()), text)
        if empty:
            raise DpscopeError(
                f"{path} has no line of NCCL at INFO level; run the job with NCCL_DEBUG=INFO and "
                "NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,NET"
            )
    choices = reader.choices()
    peers: dict[str, list[tuple[int, int]]] = {}
    for first, second, transport in sorted(reader.links):
        peers.setdefault(transport, []).append((first, second))
    return NcclLog(
        **reader.found,
        hosts=tuple(dict.fromkeys(host for host, _ in processes)),
        communicators=tuple(sorted(reader.communicators.values(), key=lambda one: -one.ranks)),
        choices=choices,
        links={transport: len(pairs) for transport, pairs in peers.items()},
        peers={transport: tuple(pairs) for transport, pairs in peers.items()},
        networks=tuple(reader.networks),
    )


def _messages(path: Path) -> Iterator[tuple[str, str, str]]:
    """Host, process id and text of each message; a line that contains messages of several ranks is split."""
    hosts = set[str]()
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                begins = list(_BEGIN.finditer(line))
                hosts.update(begin[1] for begin in begins[:1])
                names = [next((host for host in hosts if begin[1].endswith(host)), begin[1]) for begin in begins]
                ends = [begin.end(1) - len(name) for begin, name in zip(begins, names, strict=True)][1:]
                for begin, name, end in zip(begins, names, [*ends, len(line)], strict=False):
                    yield name, begin[2], line[begin.end() : end].rstrip()
    except OSError as error:
        raise DpscopeError(unreadable(path, error)) from error


def _name(text: str, names: Sequence[str]) -> str | None:
    """The name for a number or a spelling of any version: ``1``, ``RING``, ``CollNetDirect``, ``NVLS_TREE``."""
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else None
    wanted = text.lower().replace("_", "")
    return next((name for name in names if name.replace("_", "") == wanted), None)


def _read_table(process: _Process, text: str) -> bool:
    """Read a line of the cost table; False if it cannot be read."""
    head, *cells = (cell.strip() for cell in text.strip().strip("|").split("|"))
    if head == "Latency/AlgBw":
        process.columns = [_column(*cell.split("/")) for cell in cells if "/" in cell]
    elif head == "Algorithm":
        process.algorithms = [cell for cell in cells if cell]
    elif head == "Protocol":
        algorithms = (one for one in process.algorithms for _ in PROTOCOLS)
        process.columns = [_column(algorithm, cell) for algorithm, cell in zip(algorithms, cells, strict=False)]
    elif head != "Max NThreads":
        values = [_CELL.fullmatch(cell) for cell in cells if cell]
        if len(values) < len(process.columns) or not process.columns or not all(values):
            return False
        for column, value in zip(process.columns, values, strict=False):
            assert value is not None
            process.table.append(TableEntry(COLLECTIVES[head.lower()], *column, float(value[1]), float(value[2])))
    return True


def _column(algorithm: str, protocol: str) -> tuple[str, str]:
    named = (_name(algorithm.strip(), ALGORITHMS), _name(protocol.strip(), PROTOCOLS))
    return named[0] or algorithm.strip(), named[1] or protocol.strip()
