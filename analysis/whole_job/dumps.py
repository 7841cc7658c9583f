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
import numpy as np

from dpscope.analysis.traces.steps.event_kind import collective_kind
from dpscope.analysis.whole_job.records import UNKNOWN_NS, Call, Columns, Group, Process, process_of
from dpscope.profiling.store.errors import DpscopeError

_RANK = re.compile(r"(\d+)(?:\.[A-Za-z]+)*$")
_PAIR = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)")
_MOST_BYTES_OF_RANKS = 1 << 20
_DEFAULT = "default_pg"

_ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "UInt16": 2,
    "UInt32": 4, "UInt64": 8, "Long": 8, "Double": 8, "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e5m2": 1, "Float8_e4m3fn": 1, "Float8_e5m2fnuz": 1, "Float8_e4m3fnuz": 1, "Float8_e8m0fnu": 1,
}  # fmt: skip


class _Entry(msgspec.Struct, gc=False):
    """A call; what a version of torch does not record has its default."""

    process_group: tuple[str, str]
    collective_seq_id: int
    profiling_name: str
    p2p_seq_id: int = 0
    record_id: int = 0
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
    first = dumps[0]
    entries = {one.record_id: one for dump in dumps for one in dump.entries}
    if len(dumps) == 1 and len(entries) < len(first.entries):
        raise DpscopeError(f"{file}: two of its records have one number; write the dump again")
    groups = _groups(file, {name: one for dump in dumps for name, one in dump.pg_config.items()})
    rank = _rank(file, first, groups)
    ordered = [entries[number] for number in sorted(entries)]
    process = process_of(
        _columns(ordered, groups),
        source=str(file),
        rank=rank,
        host=first.host,
        process_id=None,
        version=f"Flight Recorder {dumps[-1].version}",
        groups=tuple(groups.values()),
        group_ranks={
            group.key: group.ranks.index(rank) for group in groups.values() if rank in group.ranks
        },
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


def _groups(file: Path, configs: dict[str, _Config]) -> dict[str, Group]:
    """By the names that entries use."""
    groups: dict[str, Group] = {}
    for name, config in configs.items():
        ranks = tuple(int(digits) for digits in re.findall(r"\d+", config.ranks))
        if not ranks or len(config.ranks) > _MOST_BYTES_OF_RANKS:
            raise DpscopeError(
                f"{file}: the ranks of group {name!r} are not listed; name the dumps"
            )
        named = config.desc or name or _DEFAULT
        groups[name] = Group(f"{config.desc} {ranks}", named, len(ranks), ranks)
    return groups


def _rank(file: Path, dump: _Dump, groups: dict[str, Group]) -> int:
    """By dpscope or by the file's name; it must be in each of the process's groups."""
    shared = set.intersection(*(set(group.ranks) for group in groups.values())) if groups else set()
    match = _RANK.search(file.name)
    rank = dump.rank
    if rank is None and match:
        rank = int(match[1])
    if rank is None and len(shared) == 1:
        (rank,) = shared
    if rank is None:
        raise DpscopeError(
            f"{file}: no rank in its name, and a dump does not record it; rename it to end in the rank, such as _dump_0"
        )
    if groups and rank not in shared:
        raise DpscopeError(
            f"{file}: is named as rank {rank}, which is not in all of its groups; rename it to end in its rank"
        )
    return rank


def _columns(entries: list[_Entry], groups: dict[str, Group]) -> Columns:
    calls: dict[tuple[object, ...], int] = {}
    described: list[Call] = []
    call: list[int] = []
    number: list[int] = []
    duration_us: list[float] = []
    for entry in entries:
        key = (
            entry.process_group,
            entry.profiling_name,
            entry.is_p2p,
            str(entry.input_sizes),
            str(entry.output_sizes),
            *entry.input_dtypes[:1],
        )
        place = calls.get(key)
        if place is None:
            place = calls[key] = len(described)
            described.append(_call(entry, groups))
        call.append(place)
        number.append(entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id)
        # JSON has 0 where a pickle has no value
        duration_us.append(entry.duration_ms * 1e3 if entry.duration_ms else math.nan)
    return Columns(
        calls=described,
        call=np.array(call, dtype=np.int32),
        number=np.array(number, dtype=np.int64),
        created_ns=np.array(
            [entry.time_created_ns or UNKNOWN_NS for entry in entries], dtype=np.int64
        ),
        duration_us=np.array(duration_us, dtype=np.float64),
        unfinished=np.array(
            [not entry.retired and entry.state != "completed" for entry in entries], dtype=bool
        ),
    )


def _call(entry: _Entry, groups: dict[str, Group]) -> Call:
    name, description = entry.process_group
    group = groups.get(name)
    if group is None and description == _DEFAULT:
        group = groups.get("")  # gloo's default group is configured without a name
    if group is None:
        group = Group(f"{description} {name}", description or name, 0)
    pair = ""
    if entry.is_p2p:
        match = _PAIR.search(entry.profiling_name)
        pair = entry.profiling_name
        if match:
            kind, own, _, other = match.groups()
            pair = f"{own}->{other}" if kind == "send" else f"{other}->{own}"
    return Call(
        group=group,
        kind=collective_kind(entry.profiling_name),
        name=entry.profiling_name.partition(":")[2].partition(" ")[0] or entry.profiling_name,
        bytes=_bytes(entry),
        pair=pair,
        clock=entry.profiling_name.partition(":")[0],
    )


def _bytes(entry: _Entry) -> int | None:
    """Of the larger of the buffers; None for a type that is not known."""
    sizes = []
    for shapes, types in (
        (entry.input_sizes, entry.input_dtypes),
        (entry.output_sizes, entry.output_dtypes or entry.input_dtypes),
    ):
        if not shapes:
            continue
        element = _ELEMENT_BYTES.get(types[0]) if types else None
        if element is None:
            return None
        sizes.append(element * sum(math.prod(shape) for shape in shapes))
    return max(sizes, default=None)
