"""The tables of a run's traces, kept beside them as Parquet, so that what was read is not read again.

A file holds what `read_rank_tables` gave of one trace: a column per table, in a single row as a list of structs, and the rest as
msgpack. It counts only for the trace it was made from (name, size and time of change), and for the code and the pandas that made
it. Any other, and any that cannot be read, is made anew and nothing is said: the trace is what was measured.
"""

import contextlib
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from dpscope.analysis.traces.ranks.process_pool import FileOutcome, read_files
from dpscope.analysis.traces.ranks.rank_tables import RankTables
from dpscope.profiling.records import finding
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path

FORMAT_VERSION = 1  # of the file itself; raise it when what stands in it is arranged otherwise
_KEY = b"dpscope.key"
_REST = "rest"
_TRACE = "\0trace\0"  # stands for the trace's path, which may be another when the run is moved
_CODE = (Path(__file__).parents[1], Path(__file__).parents[2] / "text", Path(finding.__file__).parent)


def read_files_once(files: Sequence[Path], place_of: Callable[[Path], Path], max_bytes: int) -> list[FileOutcome]:
    """As `read_files`; a file whose tables are kept at `place_of` it is not read, and others' tables are kept there."""
    keys = {file: _key(file) for file in files}
    found: dict[Path, FileOutcome] = {}
    for file in files:
        if (tables := _read_kept(file, place_of(file), keys[file])) is not None:
            found[file] = [tables]
    missing = [file for file in files if file not in found]
    for file, outcome in zip(missing, read_files(missing, max_bytes), strict=True):
        found[file] = outcome
        if not isinstance(outcome, DpscopeError) and len(outcome) == 1 and keys[file] == _key(file):
            _keep(outcome[0], file, place_of(file), keys[file])
    return [found[file] for file in files]


def _key(trace: Path) -> bytes:
    """What kept tables depend on; empty where the trace cannot be read."""
    try:
        told = trace.stat()
    except OSError:
        return b""
    made_from = f"{trace.name} {told.st_size} {told.st_mtime_ns}"
    return f"{FORMAT_VERSION} {_code_digest()} {pd.__version__} {made_from}".encode()


@functools.cache
def _code_digest() -> str:
    """Of the sources that read traces and word what they show: a changed line may make other tables."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for folder in _CODE for path in folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _keep(tables: RankTables, trace: Path, place: Path, key: bytes) -> None:
    """Write one rank's tables; not where they cannot be written, nor through a link."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if any(folder.is_symlink() for folder in place.parents[:4]):  # traces, repeat, cell, cells
        return
    frames: list[pd.DataFrame] = []

    def set_aside(frame: Any) -> int:
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f"{type(frame).__name__} cannot be kept")
        frames.append(frame)
        return len(frames) - 1

    with contextlib.suppress(OSError, ValueError, TypeError, pa.ArrowException):
        rest = msgspec.msgpack.encode(_renamed(tables, str(trace), _TRACE), enc_hook=set_aside)
        columns, metadata = {_REST: pa.array([rest], pa.binary())}, {_KEY: key}
        for index, frame in enumerate(frames):
            table = pa.RecordBatch.from_pandas(frame)
            rows = table.to_struct_array()
            columns[str(index)] = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
            metadata[f"pandas.{index}".encode()] = table.schema.metadata[b"pandas"]
        whole = pa.table(columns).replace_schema_metadata(metadata)
        with atomic_path(place) as temporary:
            pq.write_table(whole, temporary, write_page_checksum=True)


def _read_kept(trace: Path, place: Path, key: bytes) -> RankTables | None:
    """One rank's tables; None unless they are whole and were made from this trace as it is, by this code."""
    if not key or not place.is_file():
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    def take(kind: type, index: Any) -> Any:
        assert kind is pd.DataFrame
        table = pa.RecordBatch.from_struct_array(whole.column(str(index)).chunk(0).flatten())  # of the only row
        metadata = {b"pandas": whole.schema.metadata[f"pandas.{index}".encode()]}
        return table.replace_schema_metadata(metadata).to_pandas(use_threads=False)

    try:
        with pq.ParquetFile(place, page_checksum_verification=True) as file:
            if (file.schema_arrow.metadata or {}).get(_KEY) != key:
                return None
            whole = file.read(use_threads=False)
        rest = whole.column(_REST)[0].as_py()
        tables = msgspec.msgpack.decode(rest, type=RankTables, dec_hook=take)
    except (OSError, ValueError, KeyError, pa.ArrowException, msgspec.MsgspecError):
        return None
    return _renamed(tables, _TRACE, str(trace))


def _renamed(tables: RankTables, now: str, then: str) -> RankTables:
    """With another path of the trace, in its summary and in what was found."""
    found = tuple(
        msgspec.structs.replace(one, message=one.message.replace(now, then), next_step=one.next_step.replace(now, then))
        for one in tables.findings
    )
    summary = replace(tables.summary, source=tables.summary.source.replace(now, then))
    return replace(tables, summary=summary, findings=found)
