"""Flight Recorder's dumps of one process: pickles or JSON, which hold plain values.

Format: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (`getCollectiveTrace`, `dump_json`).
Neither rank nor host is in a dump: the rank is in the file's name. Times at which a watchdog found a
collective started or completed (`time_discovered_*`) are the times of its polls and are not read.
"""

import io
import math
import pickle
import re
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from dpscope.analysis.traces.reading.tensor_sizes import element_bytes
from dpscope.analysis.traces.steps.event_kind import collective_kind
from dpscope.analysis.whole_job.records import UNKNOWN_NS, Call, Group, Process, Recording
from dpscope.profiling.store.errors import DpscopeError

_RANK = re.compile(r"(\d+)(?:\.[A-Za-z]+)*$")
_PAIR = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
_MOST_BYTES_OF_RANKS = 1 << 20
_DEFAULT = "default_pg"


class _Entry(msgspec.Struct, gc=False):
    """A call; what a version of torch does not record has its default."""

    process_group: tuple[str, str]
    collective_seq_id: int
    profiling_name: str
    record_id: int
    p2p_seq_id: int = 0
    time_created_ns: int | None = None
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_dtypes: list[str] = []
    state: str = ""
    retired: bool = False
    is_p2p: bool = False
    duration_ms: float | None = None


class _Config(msgspec.Struct):
    desc: str = ""
    ranks: str = ""


class _Dump(msgspec.Struct):
    """A dump; `rank` and `host` are in the first of those that dpscope writes."""

    version: str
    entries: list[_Entry] = []
    pg_config: dict[str, _Config] = {}
    rank: int | None = None
    host: str | None = None


class _PlainValues(pickle.Unpickler):
    """Builds lists, tuples, dictionaries, numbers and text, and nothing else: no code of a file is
    looked up, let alone run.
    """

    def find_class(self, module: str, name: str) -> NoReturn:
        raise DpscopeError(f"it names {module}.{name}, and dumps hold plain values alone")

    def persistent_load(self, identifier: Any) -> NoReturn:
        raise DpscopeError("it refers to objects outside of the file")


def read(file: Path, content: bytes) -> list[Process]:
    """The process of a dump, or of several dumps one after another that dpscope wrote; raises
    DpscopeError.
    """
    dumps = _unpickled(file, content) if content[:1] == b"\x80" else _from_json(file, content)
    configs: dict[str, _Config] = {}
    entries: dict[int, _Entry] = {}
    for dump in dumps:
        configs |= dump.pg_config
        for entry in dump.entries:
            # of one that several dumps hold, the last knows most
            entries[entry.record_id] = entry
    groups = {name: _group(file, name, config) for name, config in configs.items()}
    rank = _rank(file, dumps[0], groups)
    recording = Recording()
    for entry in entries.values():
        _add(recording, entry, groups)
    process = recording.process(
        source=str(file),
        rank=rank,
        host=dumps[0].host,
        process_id=None,
        version=f"Flight Recorder {dumps[-1].version}",
        groups=tuple(groups.values()),
        group_ranks={},
        groups_by_name=groups,
    )
    return [process]


def _unpickled(file: Path, content: bytes) -> list[_Dump]:
    """The dumps of a file; a killed process may leave the last of several unfinished."""
    stream = io.BytesIO(content)
    dumps: list[_Dump] = []
    while stream.tell() < len(content):
        try:
            dumps.append(msgspec.convert(_PlainValues(stream).load(), _Dump))
        except DpscopeError as error:
            raise DpscopeError(
                f"{file}: {error}: this pickle is no Flight Recorder dump and was not read; name the dumps"
            ) from error
        except msgspec.ValidationError as error:
            raise _unlike(file, error) from error
        except Exception as error:  # a damaged pickle raises almost any exception
            if len(dumps) > 1:
                break
            raise _damaged(file) from error
    return dumps


def _from_json(file: Path, content: bytes) -> list[_Dump]:
    try:
        return [msgspec.json.decode(content, type=_Dump)]
    except msgspec.ValidationError as error:
        raise _unlike(file, error) from error
    except msgspec.DecodeError as error:
        raise _damaged(file) from error


def _damaged(file: Path) -> DpscopeError:
    return DpscopeError(
        f"{file}: the dump is cut short or damaged; copy it again, or analyse the other ranks"
    )


def _unlike(file: Path, error: Exception) -> DpscopeError:
    return DpscopeError(f"{file}: is not like Flight Recorder's dumps ({error}); name the dumps")


def _group(file: Path, name: str, config: _Config) -> Group:
    numbers = re.findall(r"\d+", config.ranks)
    ranks = tuple(map(int, numbers))
    if not ranks or len(config.ranks) > _MOST_BYTES_OF_RANKS:
        raise DpscopeError(f"{file}: the ranks of group {name!r} are not listed; name the dumps")
    shown = config.desc or name or _DEFAULT
    return Group(f"{config.desc} {ranks}", shown, len(ranks), ranks)


def rank_in_name(file: Path) -> int | None:
    match = _RANK.search(file.name)
    return int(match[1]) if match else None


def _rank(file: Path, dump: _Dump, groups: dict[str, Group]) -> int:
    """By dpscope or by the file's name; it must be in each of the process's groups."""
    members = [set(group.ranks) for group in groups.values()]
    shared = set.intersection(*members) if members else set()
    rank = dump.rank
    if rank is None:
        rank = rank_in_name(file)
    if rank is None and len(shared) == 1:
        rank = min(shared)
    if rank is None:
        raise DpscopeError(
            f"{file}: no rank in its name, and a dump does not record it; rename it to end in the rank, such as _dump_0"
        )
    if groups and rank not in shared:
        raise DpscopeError(
            f"{file}: is named as rank {rank}, which is not in all of its groups; rename it to end in its rank"
        )
    return rank


def _add(recording: Recording, entry: _Entry, groups: dict[str, Group]) -> None:
    key = (
        entry.process_group,
        entry.profiling_name,
        entry.is_p2p,
        str(entry.input_sizes),
        str(entry.output_sizes),
        *entry.input_dtypes[:1],
    )
    code = recording.codes.get(key)
    if code is None:
        code = recording.new_call(key, _call(entry, groups))
    recording.add(
        code,
        number=entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id,
        created_ns=entry.time_created_ns or UNKNOWN_NS,
        duration_us=None if entry.duration_ms is None else entry.duration_ms * 1e3,
        unfinished=not entry.retired and entry.state != "completed",
    )


def _call(entry: _Entry, groups: dict[str, Group]) -> Call:
    # such as nccl:all_reduce, or nccl:send 0->1
    clock, _, words = entry.profiling_name.partition(":")
    return Call(
        group=_group_of(entry, groups),
        kind=collective_kind(entry.profiling_name),
        name=words.partition(" ")[0] or clock,
        bytes=_bytes(entry),
        pair=_pair(entry.profiling_name) if entry.is_p2p else "",
        clock=clock,
    )


def _group_of(entry: _Entry, groups: dict[str, Group]) -> Group:
    name, description = entry.process_group
    if name in groups:
        return groups[name]
    if description == _DEFAULT and "" in groups:
        return groups[""]  # gloo's default group is configured without a name
    return Group(f"{description} {name}", description or name, 0)


def _pair(name: str) -> str:
    """Sender and receiver, which are the same text on both."""
    match = _PAIR.search(name)
    if match is None:
        return name
    kind, own, other = match.groups()
    return f"{own}->{other}" if kind == "send" else f"{other}->{own}"


def _bytes(entry: _Entry) -> int | None:
    """Of the larger of the buffers; None for a type that is not known."""
    inputs = _buffer_bytes(entry.input_sizes, entry.input_dtypes)
    outputs = _buffer_bytes(entry.output_sizes, entry.output_dtypes or entry.input_dtypes)
    if inputs is None or outputs is None:
        return None
    return max(inputs, outputs) or None


def _buffer_bytes(shapes: list[list[int]], types: list[str]) -> int | None:
    if not shapes:
        return 0
    size = element_bytes(types[0]) if types else None
    if size is None:
        return None
    return size * sum(map(math.prod, shapes))
