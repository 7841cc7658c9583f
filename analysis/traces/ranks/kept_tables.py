"""The tables of a run's traces, kept as partials in the user's cache folder, so that a trace is
read once.

A partial of one trace is found by the trace's name, size, time of change and last bytes, and the
version of the code and of NumPy; a run that is moved or copied with its times keeps its tables.
Files that do not match or cannot be read are ignored. The files used least recently are removed
when all together exceed MOST_BYTES.
"""

import contextlib
import hashlib
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import platformdirs

from dpscope.analysis.traces.ranks.origin import Origin, origin_of
from dpscope.analysis.traces.ranks.partial import read_partial, write_partial
from dpscope.analysis.traces.ranks.process_pool import FileOutcome, read_files
from dpscope.analysis.traces.ranks.rank_tables import RankTables
from dpscope.analysis.traces.reading.chunks import RUN_LIMITS
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_bytes
from dpscope.profiling.store.folders import TABLES_SUFFIX

MOST_BYTES = 1 << 30  # of all tables; a trace of 8 ranks and 10 steps takes about 200 kB
CONTENT_SUFFIX = ".content"  # of what `made_once` keeps


def tables_folder() -> Path:
    """Where the tables are kept: below $DPSCOPE_CACHE, or else in the user's cache folder."""
    cache = os.environ.get("DPSCOPE_CACHE")
    return Path(cache or platformdirs.user_cache_dir("dpscope", appauthor=False)) / "tables"


def read_files_once(files: Sequence[Path]) -> list[FileOutcome]:
    """As `read_files`; a file whose tables are kept is not read, and those of the others are
    kept.
    """
    origins = {file: origin_of(file) for file in files}
    kept = {file: _read_kept(file, origin) for file, origin in origins.items()}
    outcomes: dict[Path, FileOutcome] = {}
    for file, tables in kept.items():
        if tables is not None:
            outcomes[file] = tables
    missing = [file for file in files if file not in outcomes]
    for file, outcome in zip(missing, read_files(missing, RUN_LIMITS), strict=True):
        outcomes[file] = outcome
        if not isinstance(outcome, DpscopeError):
            _keep_tables(file, origins[file], outcome)
    if missing:
        _remove_least_recently_used(MOST_BYTES)
    return [outcomes[file] for file in files]


def _keep_tables(file: Path, origin: Origin | None, read: RankTables) -> None:
    """Of one rank, unless the file has changed since."""
    if origin is not None and len(read.ranks) == 1 and origin == origin_of(file):
        _keep(write_partial, read.stored_of(origin), _place(origin.key, TABLES_SUFFIX))


def made_once(files: Sequence[Path], what: str, make: Callable[[], bytes]) -> bytes:
    """What `make` returns, kept with these traces' tables under `what` until a trace or the code
    changes.
    """
    keys = _keys(files)
    if not keys:
        return make()
    head = "\n".join([what, *keys, ""]).encode()
    place = _place(head.decode(), CONTENT_SUFFIX)
    with contextlib.suppress(OSError, zlib.error):
        os.utime(place)
        content = zlib.decompress(place.read_bytes())
        if content.startswith(head):
            return content[len(head) :]
    made = make()
    if keys == _keys(files):
        _keep(write_bytes, place, zlib.compress(head + made, 1))
        _remove_least_recently_used(MOST_BYTES)
    return made


def _keys(files: Sequence[Path]) -> list[str]:
    """What is kept of these traces depends on; empty where one cannot be read."""
    origins = [origin_of(file) for file in files]
    keys = [origin.key for origin in origins if origin is not None]
    return keys if len(keys) == len(files) else []


def _read_kept(trace: Path, origin: Origin | None) -> RankTables | None:
    """One rank's tables; None unless they are whole and were made from this trace as it is, by this
    code.
    """
    if origin is None:
        return None
    place = _place(origin.key, TABLES_SUFFIX)
    with contextlib.suppress(OSError, DpscopeError):
        os.utime(place)
        kept = read_partial(place)
        if [rank.origin.key for rank in kept.ranks] == [origin.key]:
            return _moved(kept, str(trace))
    return None


def _moved(kept: RankTables, now: str) -> RankTables:
    """With another path of the trace, in its source and in what was found."""
    (record,) = kept.ranks
    then = record.summary.source
    findings = [
        msgspec.structs.replace(finding, message=finding.message.replace(then, now))
        for finding in record.findings
    ]
    moved = msgspec.structs.replace(
        record,
        summary=replace(record.summary, source=now),
        findings=tuple(findings),
        origin=Origin(""),
    )
    return replace(kept, ranks=[moved])


def _place(key: str, suffix: str) -> Path:
    return tables_folder() / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}{suffix}"


def _keep(write: Callable[..., object], *arguments: object) -> None:
    """Write a file of the folder, which may not be writable."""
    with contextlib.suppress(OSError, DpscopeError):
        tables_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        write(*arguments)


def _remove_least_recently_used(most_bytes: int) -> None:
    """Remove the oldest files until the rest is within `most_bytes`; a file's time is that of its
    last use.
    """
    with contextlib.suppress(OSError):
        suffixes = (TABLES_SUFFIX, CONTENT_SUFFIX)
        kept = [path for path in tables_folder().iterdir() if path.name.endswith(suffixes)]
        statuses = [path.stat() for path in kept]
        total = sum(status.st_size for status in statuses)
        oldest_first = sorted(
            zip(statuses, kept, strict=True), key=lambda pair: pair[0].st_mtime_ns
        )
        for status, path in oldest_first:
            if total <= most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= status.st_size
