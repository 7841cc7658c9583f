"""Reduces a trace to what dpscope reads, so that every measure stays exactly the same.

It omits events of other categories (Python functions, flows), arguments that are not read (stacks, addresses), and all header
fields except rank, group, host, devices and the clock's base.
"""

import gzip
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from dpscope.analysis.traces.merge.names import RawEvent
from dpscope.analysis.traces.merge.rewrite import RAW_EVENTS
from dpscope.analysis.traces.reading.categories import is_read
from dpscope.analysis.traces.reading.chunk_decoding import DecodedChunk
from dpscope.analysis.traces.reading.json_events import LabelArgs
from dpscope.analysis.traces.reading.limits import RUN_LIMITS
from dpscope.analysis.traces.reading.reader import Reading, read_events
from dpscope.profiling.store.files import atomic_path

_LABELS = ("name", "labels", "sort_index")
_ARGS = tuple(name for name in LabelArgs.__struct_encode_fields__ if name not in _LABELS)
_FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
_LEVEL = 6  # of gzip's 1 to 9
_encode = msgspec.json.Encoder().encode


def reduce_trace(source: Path, target: Path, rename: Callable[[str], str] = lambda text: text) -> None:
    """Write what is read of `source`, a trace of one rank, to `target` (gzip), with all text passed through `rename`.

    Raises DpscopeError if the source cannot be read.
    """
    with _json_lines(target) as write:
        write('{"traceEvents": [\n')
        first = True

        def add(decoded: DecodedChunk[RawEvent]) -> None:
            nonlocal first
            if text := b",\n".join(map(_encode, _reduced(decoded.events))).decode():
                write(("" if first else ",\n") + rename(text))
                first = False

        reading = read_events(source, RUN_LIMITS, RAW_EVENTS, add)
        write("\n]" + "".join(f",\n{json.dumps(key)}: {rename(text)}" for key, text in _header(reading)) + "\n}\n")


def _reduced(events: list[RawEvent]) -> Iterator[dict[str, Any]]:
    for event in events:
        phase, category = event.get("ph"), event.get("cat")
        if phase == "M":
            kept: Collection[str] = _LABELS
        elif phase == "X" and isinstance(category, str) and is_read(category):
            kept = _ARGS
        else:
            continue
        reduced = {key: event[key] for key in _FIELDS if key in event}
        args = event.get("args")
        if isinstance(args, dict) and (read := {key: args[key] for key in kept if key in args}):
            reduced["args"] = read
        yield reduced


def _header(reading: Reading) -> Iterator[tuple[str, str]]:
    """Fields of the header as JSON; the base includes what was subtracted from all times."""
    header = reading.header
    info = {"backend": header.backend, "rank": header.rank, "world_size": header.world_size}
    yield "distributedInfo", json.dumps({key: value for key, value in info.items() if value is not None})
    if header.host is not None:
        yield "host_name", json.dumps(header.host)
    yield "deviceProperties", json.dumps([{"name": name} for name in header.device_names])
    yield "baseTimeNanoseconds", str(header.base_ns + 1000 * reading.subtracted_us)


@contextmanager
def _json_lines(target: Path) -> Iterator[Callable[[str], object]]:
    with atomic_path(target) as temporary, open(temporary, "wb") as file:
        packed: IO[bytes] = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_LEVEL, mtime=0)  # type: ignore[assignment]
        with packed:
            yield lambda text: packed.write(text.encode())
