"""What nodes of one command tell each other: where they meet, in the run folder, and where each stands, in a store."""

import hashlib
import ipaddress

import msgspec

from dpscope.profiling.records.run import Host


class Meeting(msgspec.Struct, frozen=True):
    """What node 0's file in the run folder says, which only its user may read: who reads it can take part."""

    dpscope: str  # its version
    hostname: str  # of node 0
    count: int
    options: dict[str, str]  # of the command
    on_gpus: bool
    job: str | None  # what started the nodes, where that has a name
    hosts: tuple[str, ...]
    port: int
    secret: str

    @property
    def prefix(self) -> str:
        """Of all keys. The secret itself is never sent: a store tells its keys to every client."""
        return hashlib.sha256(f"prefix {self.secret}".encode()).hexdigest()


class Here(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node is."""

    host: Host
    node0_address: str  # as this node reaches it
    gpus: int | None  # that torch can use; None: on the CPU

    def __post_init__(self) -> None:
        ipaddress.ip_address(self.node0_address.partition("%")[0])  # torchrun is given it


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a node stands: numbers and how it ended, and nothing that another node would execute."""

    beat: int = 0  # increases as long as the node lives
    attempt: int = 0  # at a job, counted by node 0
    job: int | None = (
        None  # node 0: index in the plan that every node derives; None: end what earlier commands left running
    )
    digest: str = ""  # node 0: of that job's command, so that all mean the same one
    port: int = 0  # node 0: at which its torchrun is met
    grace_s: float | None = None  # node 0: the attempt is to end, which has so long to do so by itself
    ended: bool = False  # its part of the attempt is over
    exit_status: int | None = None  # torchrun's, where it ended by itself; at last node 0's own
    signal: int = 0  # that asked this node to stop
    left: str | None = None  # it takes no further part, and why
