"""The text of a merged trace: JSON in Kineto's layout, plain or compressed, written as the events come."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from isal import igzip

from dpscope.analysis.merge_names import RawEvent
from dpscope.profiling.run_store import DpscopeError, atomic_path

_HEAD = b'{\n  "schemaVersion": 1,\n  "displayTimeUnit": "ms",\n  "traceEvents": [\n'
_BATCH = 4096  # events encoded at once
_encode = msgspec.json.Encoder().encode


class MergedFile:
    """An open file: events as they come, then `close` with what the trace says beside them."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._begun = False

    def write(self, events: Iterable[RawEvent]) -> None:
        """Append events; each ends on a line of its own, where readers may cut."""
        remaining = iter(events)
        while batch := list(islice(remaining, _BATCH)):
            text = b",\n  ".join(encoded(event)[:-1] + b"\n  }" for event in batch)
            self._write((b",\n  " if self._begun else b"  ") + text)
            self._begun = True

    def close(self, fields: dict[str, Any]) -> None:
        """End the events and add these fields of the trace."""
        told = "".join(f",\n  {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
        self._write(b"\n  ]" + told.encode() + b"\n}\n")


def encoded(event: RawEvent) -> bytes:
    """An event as strict JSON; halves of characters, which damaged traces hold and UTF-8 does not, become question marks."""
    try:
        return _encode(event)
    except (OverflowError, UnicodeEncodeError):  # also integers beyond 64 bits
        return json.dumps(event, ensure_ascii=False).encode("utf-8", errors="replace")


def _begun(write: Callable[[bytes], object]) -> MergedFile:
    write(_HEAD)
    return MergedFile(write)


@contextmanager
def merged_file(path: Path) -> Iterator[MergedFile]:
    """A merged trace at `path`, compressed if its name ends in `.gz`; whole or not at all."""
    try:
        with atomic_path(path) as temporary, open(temporary, "wb") as raw:
            if path.suffix == ".gz":
                with igzip.open(raw, "wb") as file:  # type: ignore[no-untyped-call]
                    yield _begun(file.write)
            else:
                yield _begun(raw.write)
    except OSError as error:
        raise DpscopeError(f"cannot write {path}: {error.strerror or error}; choose another place with -o") from error
