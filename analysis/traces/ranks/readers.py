"""The formats that ranks' tables are read from: one entry each. Which files a command takes, and
its messages, follow.

To add one: a module here whose `read(file, limits)` gives the `RankTables` of the ranks in a file,
and its line in READERS. `of_rank` makes one rank of a `RankRecord` and those of the tables that the
format knows (`rank_tables.COLUMNS`); what it does not know, a table or a column, is left out.
`join_ranks` joins several. Rows name their rank and, on a device, their device and step. A step's
`exposed_us` is split by the stretches of the table `exposed`: give both, or neither. The record's
`TraceSummary` states rank, world size and whether a device worked; without a world size the job's
kind stays unknown. tests/analysis/traces/ranks/test_rank_tables.py has a small one.
"""

import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from dpscope.analysis.traces.ranks.rank_tables import RankTables
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import natural_order
from dpscope.profiling.store.folders import LOCK_NAME

Paths = str | Path | Sequence[str | Path] | Sequence[Path]


@dataclass(frozen=True)
class Reader:
    """A format: what its files are called in messages, how their names end, and the module here
    whose `read` reads one.
    """

    name: str
    suffixes: tuple[str, ...]
    module: str
    has_events: bool = False  # which merge, whatif and TensorBoard need
    content: re.Pattern[bytes] | None = None  # what is found near the start of such a file

    def recognises(self, file: Path) -> bool:
        """By its content or its name; dpscope's event files for TensorBoard, and unfinished files,
        end alike.
        """
        unlike = file.name.startswith(".tmp-") or "tfevents" in file.name
        if unlike or not file.name.endswith(self.suffixes):
            return False
        return self.content is None or bool(self.content.search(_start(file)))

    def read(self, file: Path, limits: ReadLimits) -> RankTables:
        """The tables of the ranks in a file; raises DpscopeError where it cannot be read."""
        tables: RankTables = import_module(f"{__package__}.{self.module}").read(file, limits)
        return tables


PARTIALS = Reader("partial", (".dpscope",), "partial")
RECORDS = Reader(
    "record of collectives",
    ("",),  # Flight Recorder's dumps end in a rank
    "collective_records",
    # a pickle; the fields of Flight Recorder's JSON and of NCCL Inspector
    content=re.compile(
        rb'\A\x80[\x02-\x05]|"collective_seq_id"|"entries": ?\[|"(coll_perf|p2p_perf|dump_stats)"'
    ),
)
EXPORTS = Reader("nsys export", (".sqlite", ".sqlite.gz"), "trace_files", has_events=True)
# refused with advice
REPORTS = Reader("nsys report", (".nsys-rep",), "trace_files", has_events=True)
TRACES = Reader("trace", (".json", ".json.gz"), "trace_files", has_events=True)
_TABLES = (".csv", ".tsv")
MOST_FILES = 10_000  # in a folder and those in it; several times those of a job of 1,024 ranks
READERS = (
    PARTIALS,
    EXPORTS,
    TRACES,  # a folder with partials, too, is read as those
    RECORDS,
    REPORTS,
)


@dataclass(frozen=True)
class FoundFiles:
    """Files of one format, and why others of their folders are not read."""

    reader: Reader
    files: list[Path]
    unread: dict[Path, str] = field(default_factory=dict)


def as_paths(paths: Paths) -> list[Path]:
    """One path or several, as Path."""
    return [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def find_files(paths: Paths) -> FoundFiles:
    """The files among the paths, and what reads them: files as named, folders searched.

    A named file is read as a trace unless its name is another format's. What cannot be searched
    inside a folder is among the files, and its reader reports why. Raises DpscopeError when a path
    does not exist, a folder holds no file or more than MOST_FILES, or paths are of different formats.
    """
    if not as_paths(paths):
        raise DpscopeError("no path is given; name trace files, or a folder of them")
    places: dict[Reader, Path] = {}
    files: list[Path] = []
    unread: dict[Path, str] = {}
    for path in as_paths(paths):
        of_path = _found_in(path)
        places.setdefault(of_path.reader, path)
        files += of_path.files
        unread |= of_path.unread
    (reader, first), *others = places.items()
    for other, place in others:
        raise DpscopeError(
            f"{first} is read as {reader.name} and {place} as {other.name}: give one kind of them alone"
        )
    return FoundFiles(reader, files, unread)


def find_traces(paths: Paths) -> list[Path]:
    """The same for what needs events; raises DpscopeError for files without."""
    if reason := why_no_events(paths):
        raise DpscopeError(reason)
    return find_files(paths).files


def why_no_events(paths: Paths) -> str:
    """Why the files hold no events; empty if they do. Raises DpscopeError as `find_files`."""
    chosen = find_files(paths)
    if chosen.reader.has_events:
        return ""
    named = chosen.reader.name
    return f"{chosen.files[0]} is a {named} and holds no events, which are needed here; name the traces"


def holds_files(path: Path) -> bool:
    """Whether there is a file that some reader reads."""
    try:
        return bool(find_files(path).files)
    except DpscopeError:
        return False


def _found_in(path: Path) -> FoundFiles:
    if not os.path.isdir(path):
        if not _unless_hidden(path.exists):
            raise DpscopeError(
                f"{path} does not exist; name trace files, a folder of them, or a run folder"
            )
        if path.suffix.lower() in _TABLES:
            raise DpscopeError(
                f"{path} is a table, not a trace: give a table of times to dpscope estimate"
            )
        return FoundFiles(_reader_of(path) or TRACES, [path])
    by_reader = _inside(path)
    for reader in READERS:
        if files := by_reader.get(reader):
            return FoundFiles(reader, sorted(files, key=natural_order), _others(by_reader, reader))
    if (path / LOCK_NAME).exists():
        raise DpscopeError(
            f"{path} is the output folder of a command that has measured nothing: see what it printed, fix the cause, and "
            f"repeat it with --out {path}"
        )
    patterns = [f"*{suffix}" for reader in READERS for suffix in reader.suffixes if suffix]
    listed = f"{', '.join(patterns[:-1])} or {patterns[-1]}"
    raise DpscopeError(
        f"{path} holds no trace: no {listed} in it, and no record of collectives (Flight Recorder's dumps, NCCL Inspector's "
        ".log or .jsonl); name a folder with traces"
    )


def _others(by_reader: Mapping[Reader, list[Path]], read: Reader) -> dict[Path, str]:
    """Why files of other formats are not read. An export lies next to its report."""
    return {
        file: f"{file}: {reader.name}, not read, because its folder also holds another kind of file ({read.name})"
        for reader, files in by_reader.items()
        if reader not in (read, REPORTS)
        for file in sorted(files, key=natural_order)
    }


def _inside(folder: Path) -> dict[Reader, list[Path]]:
    by_reader: dict[Reader, list[Path]] = {TRACES: []}
    files: list[Path] = []
    walk = os.walk(folder, onerror=lambda error: by_reader[TRACES].append(Path(error.filename)))
    # by their names first, since each may have to be opened
    for parent, _, names in walk:
        files += (Path(parent, name) for name in names)
        if len(files) > MOST_FILES:
            raise DpscopeError(
                f"{folder} holds more than {MOST_FILES:,} files, as no folder of one job's traces does: "
                "it was not searched; name the folder with the traces, or the files"
            )
    readers = {file: _reader_of(file) for file in files}
    forms = {_form(file) for file, reader in readers.items() if reader is RECORDS}
    for file, reader in readers.items():
        if _form(file) in forms:  # also of a record that lost its start
            reader = RECORDS
        if reader is not None and _unless_hidden(file.is_file):
            by_reader.setdefault(reader, []).append(file)
    return by_reader


def _form(file: Path) -> tuple[Path, str]:
    """The same for files of a folder whose names differ in numbers alone."""
    return file.parent, re.sub(r"\d+", "#", file.name)


def _reader_of(file: Path) -> Reader | None:
    """The reader that knows such a file by its content, else by its name."""
    by_content = sorted(READERS, key=lambda reader: reader.content is None)
    return next((reader for reader in by_content if reader.recognises(file)), None)


_START_BYTES = 4096


def _start(file: Path) -> bytes:
    """The first bytes of a file, decompressed; none where it cannot be read or is no file."""
    try:
        if not file.is_file():
            return b""
        with open(file, "rb") as stream:
            start = stream.read(_START_BYTES)
    except OSError:
        return b""
    # of a gzip file as far as these bytes go
    if start.startswith(b"\x1f\x8b"):
        with suppress(zlib.error):
            return zlib.decompressobj(wbits=31).decompress(start, _START_BYTES)
    return start


def _unless_hidden(check: Callable[[], bool]) -> bool:
    """The check of a path, or True where the permissions of its folder prevent it: its reader
    reports that.
    """
    try:
        return check()
    except OSError:
        return True
