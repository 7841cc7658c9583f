"""What NCCL's own NVTX ranges say of each collective: size, communicator, ranks.

NCCL annotates every call with a payload (src/include/nvtx_payload_schemas.h), which nsys exports as
bytes and its layout as tables. A kernel is launched inside the call, or at the end of the group
that the call is in.
"""

import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpscope.analysis.traces.reading.event_table import CommunicationArgs
from dpscope.analysis.traces.reading.json_events import count_of, ordinal
from dpscope.analysis.traces.reading.nsys_database import NsysDatabase

CALL = re.compile(r"^p?nccl[A-Z]\w+$")
"""NCCL's functions, by which its ranges are called."""
_MOVES = r"^p?nccl(?:All|Reduce|Bcast|Broadcast|Send|Recv|Gather|Scatter"
_MOVING = re.compile(rf"{_MOVES})")
LAUNCHING_CALL = re.compile(rf"{_MOVES}|GroupEnd$)")
"""Those in which kernels are launched."""
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_SEND, _RECEIVE = "ncclSend", "ncclRecv"
ALL_TO_ALL = "all_to_all"
_OUTPUT_ALONE = (_RECEIVE, "ncclReduceScatter", "ncclScatter")
_INPUT_ALONE = (_SEND, "ncclAllGather", "ncclGather")

# Names of payload entries: nvtx_payload_schemas.h.
_COMMUNICATOR = "NCCL communicator ID"
_SIZE = "Message size [bytes]"
_RANKS, _RANK, _PEER = "No. of ranks", "Rank", "Peer rank"
# Types of entries by number: nvtx3/nvToolsExtPayload.h, NVTX_PAYLOAD_ENTRY_TYPE_*.
_FORMATS = {5: "<i", 6: "<I", 9: "<q", 10: "<Q", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}
# An exported payload: domain, schema, size of the data, and where they begin.
_HEADER = struct.Struct("<4Q")

Values = dict[str, int]
Layouts = Mapping[int, Mapping[str, tuple[int, str]]]
"""By the number of a schema, the offset and format of each entry."""


def read_layouts(database: NsysDatabase) -> Layouts:
    """The layouts of NCCL's payloads; without an entry that two libraries lay out differently."""
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not {"schemaId", "type", "name", "offset"} <= database.columns(table):
        return {}
    rows = database.query(f'SELECT schemaId, name, ifnull("offset", 0), "type" FROM {table}')
    layouts: dict[int, dict[str, tuple[int, str]]] = defaultdict(dict)
    for schema, name, offset, kind in rows:
        entry = (offset, _FORMATS.get(kind, ""))
        if layouts[schema].setdefault(name, entry) != entry:
            layouts[schema][name] = (0, "")
    return layouts


def decoded(content: object, layouts: Layouts) -> Values:
    """The entries of an exported payload by name; none of one that is absent or damaged."""
    if not isinstance(content, bytes) or len(content) < _HEADER.size:
        return {}
    _, schema, size, _ = _HEADER.unpack_from(content)
    data = content[_HEADER.size : _HEADER.size + size]
    values: Values = {}
    for name, (offset, form) in layouts.get(schema, {}).items():
        if form and offset + struct.calcsize(form) <= len(data):
            (values[name],) = struct.unpack_from(form, data, offset)
    return values


@dataclass(frozen=True)
class Call:
    """One of NCCL's ranges: its row in the table of its process."""

    row: int
    thread: int
    start_ns: int
    name: str
    values: Values

    @property
    def moves_data(self) -> bool:
        return bool(_MOVING.match(self.name))

    @property
    def communicator(self) -> int | None:
        """None where it is not recorded, and where NCCL had none."""
        return self.values.get(_COMMUNICATOR) or None


class Member(NamedTuple):
    """A process's place among all: the rank it has in its largest communicator."""

    rank: int
    ranks: int


def member(calls: Sequence[Call]) -> Member | None:
    """By what was recorded when communicators were made; None where nothing was."""
    largest = None
    for call in calls:
        rank, ranks = ordinal(call.values.get(_RANK)), ordinal(call.values.get(_RANKS))
        if rank is None or ranks is None or rank >= ranks:
            continue
        if largest is None or ranks > largest.ranks:
            largest = Member(rank, ranks)
    return largest


def communicator_sizes(processes: Sequence[Sequence[Call]]) -> dict[int, int]:
    """Ranks of each communicator: as recorded when it was made, else how many of these processes
    use it.
    """
    users = Counter[int]()
    recorded: dict[int, int] = {}
    for calls in processes:
        used = set()
        for call in calls:
            if call.communicator is None:
                continue
            used.add(call.communicator)
            ranks = ordinal(call.values.get(_RANKS))
            if ranks:
                recorded[call.communicator] = ranks
        users.update(used)
    several = {communicator: count for communicator, count in users.items() if count > 1}
    return several | recorded


def communication_of(
    calls: Sequence[Call], sizes: Mapping[int, int], processes: int
) -> dict[int, CommunicationArgs]:
    """Row of a range -> what the kernels launched in it move.

    `sizes` are those of communicators, `processes` those of the job, for calls without payload.
    """
    args: dict[int, CommunicationArgs] = {}
    for call in calls:
        if call.moves_data and call.values:
            args[call.row] = _together([call], sizes, None)
    for end, inside in _groups(calls):
        kinds = {call.name for call in inside}
        if _sends_to_every_rank(inside, sizes, processes):
            args[end.row] = _together(inside, sizes, ALL_TO_ALL)
        elif kinds == {_SEND, _RECEIVE}:
            args[end.row] = _together(inside, sizes, None)
        elif len(kinds) == 1:
            args[end.row] = _together(inside, sizes, kinds.pop())
    return args


def only_messages(
    args: Mapping[int, CommunicationArgs], calls: Sequence[Call]
) -> CommunicationArgs | None:
    """What every group of a process carries out, without sizes, if that is one all-to-all after
    the other; `args` are those of `communication_of`.
    """
    ends = set()
    for call in calls:
        if call.name == _GROUP_END and call.row in args:
            ends.add(replace(args[call.row], input_bytes=None, output_bytes=None))
    only = ends.pop() if len(ends) == 1 else None
    return only if only is not None and only.collective_name == ALL_TO_ALL else None


def _groups(calls: Sequence[Call]) -> Iterator[tuple[Call, list[Call]]]:
    """Each end of an outermost group with the calls that move data in it."""
    inside: dict[int, list[Call]] = defaultdict(list)
    depth = Counter[int]()
    for call in sorted(calls, key=lambda launched: launched.start_ns):
        thread = call.thread
        if call.name == _GROUP_START:
            depth[thread] += 1
        elif call.name == _GROUP_END and depth[thread]:
            depth[thread] -= 1
            if not depth[thread]:
                yield call, inside.pop(thread, [])
        elif depth[thread] and call.moves_data:
            inside[thread].append(call)


def _sends_to_every_rank(calls: Sequence[Call], sizes: Mapping[int, int], processes: int) -> bool:
    """Whether a group sends to every rank and receives from every rank: no other exchange sends a
    rank's own part to itself (torch/csrc/cuda/nccl.cpp, all2all).
    """
    names = [call.name for call in calls]
    if set(names) != {_SEND, _RECEIVE}:
        return False
    communicator = calls[0].communicator
    ranks = processes
    if communicator is not None:
        ranks = sizes.get(communicator, processes)
    peers = {(call.name, call.values[_PEER]) for call in calls if _PEER in call.values}
    to_each_once = len(peers) in (0, len(calls))
    return to_each_once and ranks > 1 and names.count(_SEND) == names.count(_RECEIVE) == ranks


def _together(
    calls: Sequence[Call], sizes: Mapping[int, int], name: str | None
) -> CommunicationArgs:
    """The arguments of calls that one kernel carries out."""
    communicators = {call.communicator for call in calls}
    communicator = communicators.pop() if len(communicators) == 1 else None
    group, ranks = None, None
    if communicator is not None:
        group, ranks = f"{communicator:#018x}", sizes.get(communicator)
    inputs = [_bytes(call, ranks) for call in calls if call.name not in _OUTPUT_ALONE]
    outputs = [_bytes(call, ranks) for call in calls if call.name not in _INPUT_ALONE]
    return CommunicationArgs(
        collective_name=name,
        input_bytes=_sum(inputs),
        output_bytes=_sum(outputs),
        group=group,
        group_size=ranks,
    )


def _bytes(call: Call, ranks: int | None) -> int | None:
    """Of the buffer that a payload states; of an all-to-all it states the part of one rank
    (src/collectives.cc).
    """
    size = count_of(call.values.get(_SIZE))
    if size is None or call.name.lower() != "ncclalltoall":
        return size
    return None if ranks is None else size * ranks


def _sum(parts: Sequence[int | None]) -> int | None:
    """None where there is none, or one is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None
