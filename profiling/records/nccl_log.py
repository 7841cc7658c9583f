"""Types for NCCL's choices as its log reports them: algorithms, channels, transports, cost table. Imports no torch."""

import msgspec

from dpscope.profiling.records.stored import Stored


class Choice(Stored, frozen=True):
    """An algorithm chosen for calls of one size; `kind` None and `channels` None where that version does not print them.

    `predicted_us` is NCCL's own estimate of the time, by its cost table.
    """

    kind: str | None
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int | None
    predicted_us: float | None
    calls: int


class TableEntry(Stored, frozen=True):
    """An entry of the cost table that NCCL prints; a bandwidth of 0 means that the algorithm is not available."""

    kind: str
    algorithm: str
    protocol: str
    latency_us: float
    bandwidth_gb_per_s: float


class Communicator(Stored, frozen=True):
    """A communicator of `ranks` ranks, with NCCL's cost table for it."""

    ranks: int
    channels: int | None = None
    collnet_channels: int | None = None
    nvls_channels: int | None = None
    cost_table: tuple[TableEntry, ...] = ()

    def entry(self, kind: str, algorithm: str, protocol: str) -> TableEntry | None:
        """An entry of the cost table; None where the table has none, or the algorithm is not available."""
        wanted = (kind, algorithm, protocol)
        found = (one for one in self.cost_table if (one.kind, one.algorithm, one.protocol) == wanted)
        return next((one for one in found if one.bandwidth_gb_per_s > 0), None)

    def estimate_us(self, kind: str, size_bytes: float, algorithm: str, protocol: str) -> float | None:
        """Latency + S/B by NCCL's cost table; None where the table has no such entry.

        Source: ``ncclTopoGetAlgoTime`` in ``graph/tuning.cc``, without its correction factors for trees.
        """
        entry = self.entry(kind, algorithm, protocol)
        return entry.latency_us + size_bytes / entry.bandwidth_gb_per_s / 1e3 if entry is not None else None


class NcclLog(Stored, frozen=True):
    """The logs of one job. `links` counts pairs of ranks by transport, such as ``NET/IB/GDRDMA``; `peers` lists them.

    Ranks are those of the communicator that connects them; each direction is a pair. A call does not name its communicator:
    `choices` are those of all communicators together.
    """

    library: str | None  # "NCCL 2.27.5"
    hosts: tuple[str, ...]
    communicators: tuple[Communicator, ...]  # the largest first
    choices: tuple[Choice, ...]
    links: dict[str, int] = msgspec.field(default_factory=dict)
    networks: tuple[str, ...] = ()
    infiniband: bool = False  # whether InfiniBand or RoCE devices were found
    gpu_direct: bool | None = None  # GPU Direct RDMA, if the log reports it
    unread_lines: int = 0  # of choices and tables, cut or of another form
    network_ports: int | None = None  # that NCCL uses on a host, if a line lists them
    peer_access_off: str | None = None  # the message that peer-to-peer access between GPUs is off
    peers: dict[str, tuple[tuple[int, int], ...]] = msgspec.field(default_factory=dict)  # empty in older records
