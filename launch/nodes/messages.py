"""What nodes say to each other, one JSON object a line. Imports no torch."""

import msgspec

from dpscope.profiling.records.run import Environment

PROTOCOL = 1


class _Message(msgspec.Struct, frozen=True, tag_field="is"):
    """Any of them."""


class Hello(_Message, frozen=True, tag="hello"):
    """A node to node 0: who it is, and what it was started with."""

    protocol: int
    version: str  # of dpscope
    node: int
    count: int
    hostname: str
    options: dict[str, str]
    nonce: str
    job: str | None = None  # as NodePlace has it


class Challenge(_Message, frozen=True, tag="challenge"):
    """Node 0: which file of the run folder holds the word that both must know, and that node 0 knows it."""

    file: str
    hostname: str
    nonce: str
    proof: str


class Proof(_Message, frozen=True, tag="proof"):
    """The node: it has read that file."""

    proof: str


class NotShared(_Message, frozen=True, tag="not_shared"):
    """The node: the file is not where it should be."""

    looked_in: str


class Joined(_Message, frozen=True, tag="joined"):
    """The node: what it is, and by which interface it reached node 0."""

    environment: Environment
    address: str
    interface: str | None
    gpus: int | None  # that torch can use; None: on the CPU


class Unable(_Message, frozen=True, tag="unable"):
    """The node: why it cannot take part."""

    reason: str


class Refused(_Message, frozen=True, tag="refused"):
    """Node 0: why nothing comes of it; `elsewhere`: the node's own node 0 may still be found."""

    reason: str
    elsewhere: bool = False


class Beat(_Message, frozen=True, tag="beat"):
    """I am here."""


class Clear(_Message, frozen=True, tag="clear"):
    """Node 0, which holds the run folder now: end what is left of earlier commands in it."""


class Cleared(_Message, frozen=True, tag="cleared"):
    """The node: that is done."""


class Begin(_Message, frozen=True, tag="begin"):
    """Node 0: start this job's processes, meeting node 0's torchrun at this port."""

    job: int
    title: str
    command: tuple[str, ...]
    threads: int
    port: int
    in_run: bool  # of a run folder that node 0 holds


class End(_Message, frozen=True, tag="end"):
    """Node 0: let the job end by itself for so long, then end it."""

    job: int
    grace_s: float


class Ended(_Message, frozen=True, tag="ended"):
    """The node: its part of the job is over; torchrun's exit status where it ended by itself, and its log."""

    job: int
    exit_status: int | None
    log: str


class ToldToStop(_Message, frozen=True, tag="told_to_stop"):
    """The node: it was sent this signal."""

    signal: int


class Dismissed(_Message, frozen=True, tag="dismissed"):
    """Node 0: all is done, and how it ended."""

    exit_status: int
    message: str


Message = (
    Hello
    | Challenge
    | Proof
    | NotShared
    | Joined
    | Unable
    | Refused
    | Beat
    | Clear
    | Cleared
    | Begin
    | End
    | Ended
    | ToldToStop
    | Dismissed
)
_decoder = msgspec.json.Decoder(Message)


def message_line(message: Message) -> bytes:
    """A line of it."""
    return msgspec.json.encode(message) + b"\n"


def message_of_line(line: bytes) -> Message:
    """The message of a line; raises msgspec.MsgspecError for another line."""
    message: Message = _decoder.decode(line)
    return message
