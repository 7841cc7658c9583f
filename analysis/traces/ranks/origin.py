"""Which trace the tables of a rank are of, and which code read it: what kept tables depend on."""

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from dpscope.profiling.records import finding
from dpscope.profiling.records.quantities import Count

_CODE = (
    Path(__file__).parents[1],
    Path(__file__).parents[2] / "text",
    Path(finding.__file__).parent,
)
_TAIL_BYTES = 4096


class Origin(msgspec.Struct, frozen=True, order=True):
    """A trace and its reader: the same file, unchanged, and read by the same code, gives the same
    tables.
    """

    file: str  # its path when it was read
    size_bytes: Count = 0
    modified_ns: int = 0
    tail: str = ""  # digest of its last bytes
    reader: str = ""  # version of the code that read it

    @property
    def content(self) -> tuple[str, int, str]:
        """The same for a copy of the file, wherever it lies."""
        return Path(self.file).name, self.size_bytes, self.tail

    @property
    def key(self) -> str:
        """All of it but the folder, which may be moved."""
        return msgspec.json.encode(
            msgspec.structs.replace(self, file=Path(self.file).name)
        ).decode()


def origin_of(trace: Path) -> Origin | None:
    """The origin of what this code makes of a trace as it is now; None where the trace cannot be
    read.
    """
    try:
        with open(trace, "rb") as file:
            status = os.fstat(file.fileno())
            file.seek(max(0, status.st_size - _TAIL_BYTES))
            tail = hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except OSError:
        return None
    return Origin(str(trace.absolute()), status.st_size, status.st_mtime_ns, tail, reader_version())


def reader_version() -> str:
    """Of the code that reads traces: another version may make other tables."""
    return f"{code_digest(_CODE)} {np.__version__}"


@functools.cache
def code_digest(folders: Iterable[Path]) -> str:
    """Of the sources in these folders: a changed line may change what they compute."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
