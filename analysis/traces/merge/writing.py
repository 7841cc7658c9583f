"""The text of a merged trace: JSON in Kineto's layout, written in parts that are put together, plain or as one gzip stream.

Parts are compressed where they are made, each ending on a byte (a full flush), so that many processes can make them. Joined
they are one gzip member: Perfetto reads no further than the first. The way of pigz (Adler), RFC 1951 and 1952.
"""

import json
import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec
from isal import isal_zlib

from dpscope.analysis.traces.merge.names import RawEvent
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path
from dpscope.profiling.store.ownership import DPSCOPE_TRACE_HEAD

_SEPARATOR = b",\n  "
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # deflate, no name, no time, system unknown
_RAW_DEFLATE = -15
_LEVEL = 2  # of isal's 0 to 3
_BATCH = 4096  # events encoded at once
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class MergedPart:
    """Some events of a merged trace in a separate file: its text's checksum and length, for the gzip trailer."""

    path: Path
    crc: int
    text_bytes: int


class PartWriter:
    """Writes events as they come."""

    def __init__(self, path: Path, file: IO[bytes], compressed: bool) -> None:
        self._path = path
        self._file = file
        self._deflate = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _RAW_DEFLATE) if compressed else None
        self._crc = 0
        self._text_bytes = 0

    def write(self, events: Iterable[RawEvent]) -> None:
        """Append events; each ends on a separate line, where readers may cut."""
        remaining = iter(events)
        while batch := list(islice(remaining, _BATCH)):
            text = _SEPARATOR.join(encoded(event)[:-1] + b"\n  }" for event in batch)
            self._put(_SEPARATOR + text if self._text_bytes else text)

    def _put(self, text: bytes) -> None:
        self._crc = isal_zlib.crc32(text, self._crc)
        self._text_bytes += len(text)
        self._file.write(self._deflate.compress(text) if self._deflate else text)

    def close(self) -> MergedPart:
        """End the part; it can be joined to others."""
        if self._deflate:
            self._file.write(self._deflate.flush(isal_zlib.Z_FULL_FLUSH))
        self._file.flush()
        return MergedPart(self._path, self._crc, self._text_bytes)


class MergedFile:
    """Puts parts together."""

    def __init__(self, file: IO[bytes], compressed: bool) -> None:
        self._file = file
        self._compressed = compressed
        self._crc = 0
        self._text_bytes = 0
        self._has_events = False
        if compressed:
            file.write(_GZIP_HEADER)
        self._text(DPSCOPE_TRACE_HEAD)

    def append(self, part: MergedPart) -> None:
        """Add a part made with the same compression."""
        if not part.text_bytes:
            return
        if self._has_events:
            self._text(_SEPARATOR)
        self._has_events = True
        with open(part.path, "rb") as file:
            shutil.copyfileobj(file, self._file, 1 << 20)
        self._count(part.crc, part.text_bytes)

    def close(self, fields: dict[str, Any]) -> None:
        """End the events and add these fields of the trace."""
        text = "".join(f",\n  {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
        self._text(b"\n  ]" + text.encode() + b"\n}\n", isal_zlib.Z_FINISH)
        if self._compressed:
            self._file.write(struct.pack("<II", self._crc, self._text_bytes % 2**32))

    def _text(self, text: bytes, flush: int = isal_zlib.Z_FULL_FLUSH) -> None:
        if self._compressed:
            deflate = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _RAW_DEFLATE)
            self._file.write(deflate.compress(text) + deflate.flush(flush))
        else:
            self._file.write(text)
        self._count(isal_zlib.crc32(text), len(text))

    def _count(self, crc: int, text_bytes: int) -> None:
        self._crc = isal_zlib.crc32_combine(self._crc, crc, text_bytes)
        self._text_bytes += text_bytes


def encoded(event: RawEvent) -> bytes:
    """An event as strict JSON; halves of characters, which damaged traces hold and UTF-8 does not, become question marks."""
    try:
        return _encode(event)
    except (OverflowError, UnicodeEncodeError):  # also integers beyond 64 bits
        return json.dumps(event, ensure_ascii=False).encode("utf-8", errors="replace")


def is_compressed(path: Path) -> bool:
    """Whether a merged trace of this name is compressed."""
    return path.suffix == ".gz"


@contextmanager
def merged_file(path: Path) -> Iterator[MergedFile]:
    """A merged trace at `path`; whole or not at all."""
    with writing(path), atomic_path(path) as temporary, open(temporary, "wb") as file:
        yield MergedFile(file, is_compressed(path))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An error of the system in writing `path` becomes a DpscopeError."""
    try:
        yield
    except OSError as error:
        raise DpscopeError(f"cannot write {path}: {error.strerror or error}; choose another place with -o") from error
