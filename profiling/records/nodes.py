"""What the nodes of a command exchange: node 0's address, in the run folder, and each node's state, in a store."""

import hashlib
import ipaddress

import msgspec

from dpscope.profiling.records.run import Host


class Meeting(msgspec.Struct, frozen=True):
    """Node 0's file in the run folder, readable by its user alone: any reader can take part."""

    dpscope: str  # its version
    hostname: str  # of node 0
    count: int
    options: dict[str, str]  # of the command
    on_gpus: bool
    job: str | None  # the identifier of this start, if the launcher has one
    hosts: tuple[str, ...]
    port: int
    secret: str

    @property
    def prefix(self) -> str:
        """Prefix of all keys. The secret itself is never sent: a store lists its keys to every client."""
        return hashlib.sha256(f"prefix {self.secret}".encode()).hexdigest()


class NodeInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that has joined."""

    host: Host
    node0_address: str  # as this node reaches it
    gpus: int | None  # that torch can use; None: on the CPU

    def __post_init__(self) -> None:
        ipaddress.ip_address(self.node0_address.partition("%")[0])  # it is passed to torchrun


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a node; it holds nothing that another node would execute."""

    beat: int = 0  # increases as long as the node lives
    attempt: int = 0  # at a job, counted by node 0
    job: int | None = None  # node 0: index in the plan that every node derives; None: end leftovers of earlier commands
    digest: str = ""  # node 0: of that job's command, so that all nodes run the same
    port: int = 0  # node 0: of its torchrun
    grace_s: float | None = None  # node 0: the attempt must end; it has this time to end by itself
    ended: bool = False  # its part of the attempt is over
    exit_status: int | None = None  # torchrun's, if it ended by itself; with `left`, node 0's own
    signal: int = 0  # that requested this node to stop
    left: str | None = None  # why the node takes no further part
