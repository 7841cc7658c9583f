"""The tables of a run's traces, kept as Parquet in the user's cache folder, so that a trace is read once.

A file holds the row of one trace, as `rank_rows` makes it. Its key: the trace's name, size, time of change and last bytes, and
the version of the code and of NumPy; a run that is moved or copied with its times keeps its tables. Files that do not match or
cannot be read are ignored. The files used least recently are removed when all together exceed MOST_BYTES.
"""

import contextlib
import functools
import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import platformdirs
import pyarrow as pa

from dpscope.analysis.traces.ranks.process_pool import FileOutcome, read_files
from dpscope.analysis.traces.ranks.rank_rows import SCHEMA, join_rows, renamed, to_rows, write_rows
from dpscope.analysis.traces.reading.chunks import RUN_LIMITS
from dpscope.profiling.records import finding
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path, write_bytes
from dpscope.profiling.store.folders import TABLES_SUFFIX

FORMAT_VERSION = 2  # of the file itself; raise it when its layout changes
MOST_BYTES = 1 << 30  # of all tables; a trace of 8 ranks and 10 steps takes about 200 kB
CONTENT_SUFFIX = ".content"  # of what `made_once` keeps
_KEY = "dpscope.key"
_TAIL_BYTES = 4096
_TRACE = "\0trace\0"  # stands for the trace's path, which may be another when the run is moved
_CODE = (Path(__file__).parents[1], Path(__file__).parents[2] / "text", Path(finding.__file__).parent)


def tables_folder() -> Path:
    """Where the tables are kept: below $DPSCOPE_CACHE, or else in the user's cache folder."""
    return Path(os.environ.get("DPSCOPE_CACHE") or platformdirs.user_cache_dir("dpscope", appauthor=False)) / "tables"


def read_files_once(files: Sequence[Path]) -> list[FileOutcome]:
    """As `read_files`; a file whose tables are kept is not read, and those of the others are kept."""
    keys = {file: _key(file) for file in files}
    kept = {file: _read_kept(file, keys[file]) for file in files}
    found: dict[Path, FileOutcome] = {file: [join_rows(rows)] for file, rows in kept.items() if rows is not None}
    missing = [file for file in files if file not in found]
    for file, outcome in zip(missing, read_files(missing, RUN_LIMITS), strict=True):
        found[file] = outcome
        if not isinstance(outcome, DpscopeError) and len(outcome) == 1 and keys[file] == _key(file):
            with contextlib.suppress(OSError, pa.ArrowException):  # the cache folder may not be writable
                tables_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
                with atomic_path(_place(keys[file])) as temporary:
                    write_rows(renamed(to_rows(outcome), str(file), _TRACE), temporary, {_KEY: keys[file]})
    if missing:
        _remove_least_recently_used(MOST_BYTES)
    return [found[file] for file in files]


def made_once(files: Sequence[Path], what: str, make: Callable[[], bytes]) -> bytes:
    """What `make` returns, kept with these traces' tables under `what` until a trace or the code changes."""
    keys = [_key(file) for file in files]
    head = "\n".join([what, *keys, ""]).encode()
    place = _place(head.decode(), CONTENT_SUFFIX)
    with contextlib.suppress(OSError, zlib.error):
        os.utime(place)
        content = zlib.decompress(place.read_bytes())
        if all(keys) and content.startswith(head):
            return content[len(head) :]
    made = make()
    if all(keys) and keys == [_key(file) for file in files]:
        with contextlib.suppress(OSError):
            tables_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bytes(place, zlib.compress(head + made, 1))
            _remove_least_recently_used(MOST_BYTES)
    return made


def _key(trace: Path) -> str:
    """What kept tables depend on; empty where the trace cannot be read."""
    try:
        with open(trace, "rb") as file:
            status = os.fstat(file.fileno())
            file.seek(max(0, status.st_size - _TAIL_BYTES))
            tail = hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except OSError:
        return ""
    return f"{reader_version()} {trace.name} {status.st_size} {status.st_mtime_ns} {tail}"


def _place(key: str, suffix: str = TABLES_SUFFIX) -> Path:
    return tables_folder() / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}{suffix}"


def reader_version() -> str:
    """Of the code that reads traces: another version may make other rows."""
    return f"{FORMAT_VERSION} {code_digest(_CODE)} {np.__version__}"


@functools.cache
def code_digest(folders: Iterable[Path]) -> str:
    """Of the sources in these folders: a changed line may change what they compute."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _remove_least_recently_used(most_bytes: int) -> None:
    """Remove the oldest files until the rest is within `most_bytes`; a file's time is that of its last use."""
    with contextlib.suppress(OSError):
        kept = (path for suffix in (TABLES_SUFFIX, CONTENT_SUFFIX) for path in tables_folder().glob(f"*{suffix}"))
        files = [(path.stat(), path) for path in kept]
        total = sum(status.st_size for status, _ in files)
        for status, path in sorted(files, key=lambda one: one[0].st_mtime_ns):
            if total <= most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= status.st_size


def _read_kept(trace: Path, key: str) -> pa.Table | None:
    """One rank's row; None unless it is whole and was made from this trace as it is, by this code."""
    place = _place(key)
    if not key or not place.is_file():
        return None
    import pyarrow.parquet as pq

    try:
        os.utime(place)
        with pq.ParquetFile(place, page_checksum_verification=True) as file:
            if (file.metadata.metadata or {}).get(_KEY.encode()) != key.encode():
                return None
            rows = file.read(use_threads=False).replace_schema_metadata(None)
    except (OSError, pa.ArrowException):
        return None
    return renamed(rows, _TRACE, str(trace)) if rows.schema.equals(SCHEMA) else None
