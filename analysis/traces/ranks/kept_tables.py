"""The tables of a run's traces, kept beside them as Parquet, so that what was read is not read again.

A file holds the row of one trace, as `rank_rows` makes it. It counts only for the trace it was made from (name, size and time of
change), and for the code and the pandas that made it. Any other, and any that cannot be read, is made anew and nothing is said:
the trace is what was measured.
"""

import contextlib
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from dpscope.analysis.traces.ranks.process_pool import RowsOutcome, read_trace_rows
from dpscope.analysis.traces.ranks.rank_rows import SCHEMA, renamed, write_rows
from dpscope.analysis.traces.reading.limits import ReadLimits
from dpscope.profiling.records import finding
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path

FORMAT_VERSION = 2  # of the file itself; raise it when what stands in it is arranged otherwise
_KEY = "dpscope.key"
_TRACE = "\0trace\0"  # stands for the trace's path, which may be another when the run is moved
_CODE = (Path(__file__).parents[1], Path(__file__).parents[2] / "text", Path(finding.__file__).parent)


def read_files_once(files: Sequence[Path], place_of: Callable[[Path], Path], limits: ReadLimits) -> list[RowsOutcome]:
    """As `read_trace_rows`; a file whose tables are kept at `place_of` it is not read, and others' tables are kept there."""
    keys = {file: _key(file) for file in files}
    found: dict[Path, RowsOutcome] = {}
    for file in files:
        if (tables := _read_kept(file, place_of(file), keys[file])) is not None:
            found[file] = tables
    missing = [file for file in files if file not in found]
    for file, outcome in zip(missing, read_trace_rows(missing, limits), strict=True):
        found[file] = outcome
        if not isinstance(outcome, DpscopeError) and outcome.num_rows == 1 and keys[file] == _key(file):
            _keep(outcome, file, place_of(file), keys[file])
    return [found[file] for file in files]


def _key(trace: Path) -> str:
    """What kept tables depend on; empty where the trace cannot be read."""
    try:
        told = trace.stat()
    except OSError:
        return ""
    made_from = f"{trace.name} {told.st_size} {told.st_mtime_ns}"
    return f"{reader_version()} {made_from}"


def reader_version() -> str:
    """Of what reads traces: rows of another one may be otherwise."""
    return f"{FORMAT_VERSION} {_code_digest()} {pd.__version__}"


@functools.cache
def _code_digest() -> str:
    """Of the sources that read traces and word what they show: a changed line may make other tables."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for folder in _CODE for path in folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _keep(rows: pa.Table, trace: Path, place: Path, key: str) -> None:
    """Write one rank's row; not where it cannot be written, nor through a link."""
    if any(folder.is_symlink() for folder in place.parents[:4]):  # traces, repeat, cell, cells
        return
    with contextlib.suppress(OSError, pa.ArrowException), atomic_path(place) as temporary:
        write_rows(renamed(rows, str(trace), _TRACE), temporary, {_KEY: key})


def _read_kept(trace: Path, place: Path, key: str) -> pa.Table | None:
    """One rank's row; None unless it is whole and was made from this trace as it is, by this code."""
    if not key or not place.is_file():
        return None
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(place, page_checksum_verification=True) as file:
            if (file.metadata.metadata or {}).get(_KEY.encode()) != key.encode():
                return None
            rows = file.read(use_threads=False).replace_schema_metadata(None)
    except (OSError, pa.ArrowException):
        return None
    return renamed(rows, _TRACE, str(trace)) if rows.schema.equals(SCHEMA) else None
