"""Reads NCCL's and RCCL's log at NCCL_DEBUG=INFO: algorithms and protocols by size, and transports.

The lines, by the file of NCCL's sources that prints them (versions 2.4 to 2.30; RCCL has the same
files):

- init.cc: ``NCCL version 2.27.5+cuda12.9`` (RCCL: ``RCCL version``),
  ``ncclCommInitRank comm 0x.. rank 0 nranks 24 .. - Init COMPLETE``.
- transport/*.cc: ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``, early versions ``Ring 00 : 0 -> 1 [send] via NET/Socket/0``;
  ``NET/IB : Using [0]mlx5_0:1/IB``, ``GPU Direct RDMA Enabled``.
- enqueue.cc, by rank 0 of a communicator: ``8 Bytes -> Algo 0 proto 0 time 25.200924``, later ``AllGather: 37756928 Bytes ->
  Algo 1 proto 2 time 2860.208008``, from 2.24 on ``AllReduce: 8388608 Bytes -> Algo RING proto LL128
  channel{Lo..Hi}={0..15}``. Up to 2.23 the bytes are those of the larger buffer (``ncclFuncMaxSendRecvCount``), from 2.24 on
  those of the call's count, which is one rank's share for all-gather and reduce-scatter.

Numbers stand for algorithms and protocols in the order of ``NCCL_ALGO_*`` and ``NCCL_PROTO_*`` in
NCCL's headers.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpscope.profiling.records.calibration import COLLECTIVES, Choice, NcclLog
from dpscope.profiling.store.errors import DpscopeError, unreadable

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
# A message begins with host:pid:tid [device], after a launcher's prefix, or in the middle of
# another rank's line.
_BEGIN = re.compile(r"([\w.-]+):(\d+):\d+ \[-?\d+\] (?:\S+ )?NCCL (?:INFO|WARN) ")
_VERSION = re.compile(r"\b([NR]CCL) version ?:? ?v?(\d+\.\d+(?:\.\d+)?)")
_LINK = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? : (\d+)(?:\[[^\]]*\])? -> (\d+)(?:\[[^\]]*\])? (?:\[\w+\] )?via (\S+)"
)
_COMPLETE = re.compile(r"nranks (\d+).*Init COMPLETE\s*$")
_INFINIBAND = re.compile(r"NET/IB ?: Using ")
_GPU_DIRECT = re.compile(r"GPU Direct RDMA (Enabled|Disabled)")
_CALL = re.compile(
    r"(?:(?P<kind>\w+): *)?(?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?: time [\d.]+| (?P<channels>channel\{Lo\.\.Hi\}=\{\d+\.\.\d+\}))$"
)

_ProcessId = tuple[str, str]  # host, process id

_IN_SHARES = ("all_gather", "reduce_scatter")
_SHARES_SINCE = (2, 24)  # the version that prints one rank's share of them


@dataclass(frozen=True)
class _Call:
    """What the line of a call states."""

    kind: str | None
    printed_bytes: int
    algorithm: str
    protocol: str
    names_channels: bool  # the form since version 2.24
    # of the only communicator that it can be of; None: of several sizes, or not in the log
    ranks: int | None

    def size_bytes(self, version: tuple[int, ...] | None) -> int | None:
        """The larger of a rank's buffers; None if the line has a share of an unknown number of
        ranks.
        """
        if self.kind not in _IN_SHARES:
            return self.printed_bytes
        in_shares = version >= _SHARES_SINCE if version is not None else self.names_channels
        if not in_shares:
            return self.printed_bytes
        return None if self.ranks is None else self.printed_bytes * self.ranks


class _Reader:
    def __init__(self) -> None:
        self.facts: dict[str, Any] = {"library": None, "unread_lines": 0}  # fields of NcclLog
        self.version: tuple[int, ...] | None = None
        self.calls: Counter[_Call] = Counter()
        self.links: set[tuple[int, int, str]] = set()  # ranks, transport
        self.ranks_of: defaultdict[_ProcessId, set[int]] = defaultdict(
            set
        )  # sizes of each process's communicators so far

    def read(self, process: _ProcessId, text: str) -> None:
        facts = self.facts
        if version := _VERSION.search(text):
            facts["library"] = f"{version[1]} {version[2]}"
            self.version = tuple(map(int, version[2].split(".")))
        elif complete := _COMPLETE.search(text):
            self.ranks_of[process].add(int(complete[1]))
        elif link := _LINK.search(text):
            self.links.add(
                (int(link[1]), int(link[2]), re.sub(r"(NET/\w+)/\d+(?:\(\d+\))?", r"\1", link[3]))
            )
        elif "Bytes -> " in text:
            self._call(self.ranks_of[process], text)
        elif _INFINIBAND.search(text):
            facts["infiniband"] = True
        elif direct := _GPU_DIRECT.search(text):
            facts["gpu_direct"] = direct[1] == "Enabled" and facts.get("gpu_direct") is not False

    def _call(self, sizes: set[int], text: str) -> None:
        call = _CALL.search(text)
        algorithm = _name(call["algorithm"], ALGORITHMS) if call else None
        protocol = _name(call["protocol"], PROTOCOLS) if call else None
        if call is None or algorithm is None or protocol is None:
            self.facts["unread_lines"] += 1
            return
        kind = COLLECTIVES.get((call["kind"] or "").lower())
        ranks = next(iter(sizes)) if len(sizes) == 1 else None
        names_channels = call["channels"] is not None
        self.calls[_Call(kind, int(call["bytes"]), algorithm, protocol, names_channels, ranks)] += 1

    def choices(self) -> tuple[Choice, ...]:
        """Calls counted by size and choice; those of an unknown size count as unread."""
        counts: Counter[tuple[str | None, int, str, str]] = Counter()
        for call, times in self.calls.items():
            size = call.size_bytes(self.version)
            if size is None:
                self.facts["unread_lines"] += times
            else:
                counts[call.kind, size, call.algorithm, call.protocol] += times
        ordered = sorted(counts.items(), key=lambda entry: (str(entry[0][0]), entry[0][1]))
        return tuple(Choice(*choice, times) for choice, times in ordered)


def read_nccl_logs(paths: Sequence[Path]) -> NcclLog:
    """Read the logs of one job's processes, in any order; ranks may share a file, and a launcher
    may prefix its lines.

    Raises DpscopeError with the name of a file that cannot be read or has no line of NCCL.
    """
    reader = _Reader()
    hosts = dict[str, None]()
    for path in paths:
        empty = True
        for host, process_id, text in _messages(path):
            empty = False
            hosts[host] = None
            reader.read((host, process_id), text)
        if empty:
            raise DpscopeError(
                f"{path} has no line of NCCL at INFO level; run the job with NCCL_DEBUG=INFO and "
                "NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,NET"
            )
    choices = reader.choices()
    return NcclLog(
        **reader.facts,
        hosts=tuple(hosts),
        ranks=max((size for sizes in reader.ranks_of.values() for size in sizes), default=None),
        choices=choices,
        links=dict(Counter(transport for *_, transport in sorted(reader.links))),
    )


def _messages(path: Path) -> Iterator[tuple[str, str, str]]:
    """Host, process id and text of each message; a line that contains messages of several ranks is
    split.
    """
    hosts = set[str]()
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                begins = list(_BEGIN.finditer(line))
                if begins:
                    hosts.add(begins[0][1])
                messages = []
                end = len(line)
                for begin in reversed(begins):
                    name = _host_in(begin[1], hosts)
                    messages.append((name, begin[2], line[begin.end() : end].rstrip()))
                    end = begin.end(1) - len(name)
                yield from reversed(messages)
    except OSError as error:
        raise DpscopeError(unreadable(path, error)) from error


def _host_in(text: str, hosts: set[str]) -> str:
    """The host in a text that may begin with the end of another rank's message."""
    return next((host for host in hosts if text.endswith(host)), text)


def _name(text: str, names: Sequence[str]) -> str | None:
    """The name for a number or a spelling of any version: ``1``, ``RING``, ``CollNetDirect``,
    ``NVLS_TREE``.
    """
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else None
    wanted = text.lower().replace("_", "")
    return next((name for name in names if name.replace("_", "") == wanted), None)
