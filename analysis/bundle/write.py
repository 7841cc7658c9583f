"""`dpscope bundle`: a run in one file that is small enough to mail and contains no names of hosts and users.

Traces are reduced to what dpscope reads, so that every measure stays exactly the same: events of other categories (Python
functions, flows), arguments that are not read (stacks, addresses), and all header fields except rank, group, host, devices and
the clock's base are omitted.
"""

import gzip
import json
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from dpscope.analysis.bundle.anonymous import Anonymizer
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.traces.reading.categories import is_read
from dpscope.analysis.traces.reading.chunk_decoding import DecodedChunk
from dpscope.analysis.traces.reading.chunks import RUN_LIMITS
from dpscope.analysis.traces.reading.json_events import RAW_EVENTS, EventArgs, RawEvent
from dpscope.analysis.traces.reading.reader import Reading, read_events
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path, natural_order
from dpscope.profiling.store.folders import (
    CALIBRATION_NAME,
    CELLS_NAME,
    MANIFEST_NAME,
    TRACE_SUFFIX,
    RepeatFolder,
    RunFolder,
)
from dpscope.profiling.store.ownership import BUNDLE_MARK, check_overwritable
from dpscope.profiling.store.training_folders import TRAIN_LOG_NAME, TRAIN_MANIFEST_NAME, TRAININGS_NAME

LOG_LINES = 200  # last lines of each log
NOTES_FOLDER = "bundle"  # next to the run's files


@dataclass(frozen=True)
class Member:
    """One file of a bundle."""

    name: str  # path in the run folder
    kind: str  # description in the listing
    content: bytes


def run_members(run: Path, names: Anonymizer) -> Iterator[Member]:
    """A run's files except its traces: settings, results, samples, counters, calibration, the ends of logs.

    Raises DpscopeError for invalid JSON, which cannot be made anonymous.
    """
    for name in (MANIFEST_NAME, CALIBRATION_NAME, TRAIN_MANIFEST_NAME, TRAIN_LOG_NAME):
        if (run / name).is_file():
            yield Member(name, "settings, environment, calibration", _anonymous_json(run / name, names))
    for path in sorted(_files(run), key=natural_order):
        name = path.relative_to(run).as_posix()
        if path.name == "log.txt":
            yield Member(name, f"last {counted(LOG_LINES, 'line')} of each log", _log_end(path, names))
        elif path.suffix == ".json":
            yield Member(name, "results and counters of each process", _anonymous_json(path, names))
        elif path.name.startswith("samples_") and path.suffix == ".parquet":
            yield Member(name, "times of every step (numbers only)", path.read_bytes())


def _files(run: Path) -> Iterator[Path]:
    for folder in (run / CELLS_NAME, run / TRAININGS_NAME):
        yield from (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _anonymous_json(path: Path, names: Anonymizer) -> bytes:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise DpscopeError(f"{path} is not JSON: {error}; remove it from the run, or measure its cell again") from error
    return plain_json(names.value(value))


def plain_json(value: object) -> bytes:
    """Plain data as indented JSON."""
    return json.dumps(value, indent=1).encode() + b"\n"


def _log_end(path: Path, names: Anonymizer) -> bytes:
    lines = path.read_text(errors="replace").splitlines()
    kept = lines[-LOG_LINES:]
    left_out = (
        [f"[{counted(len(lines) - len(kept), 'line')} before these are not in the bundle]"]
        if len(kept) < len(lines)
        else []
    )
    return names.text("\n".join([*left_out, *kept])).encode() + b"\n"


def note_members(names: Anonymizer, findings: list[Finding], notes: Mapping[str, object]) -> Iterator[Member]:
    """The findings about the run and the notes (such as the machine's current state), each as a JSON file."""
    content = [
        {"code": str(one.code), "severity": one.severity, "message": names.text(one.message)} for one in findings
    ]
    yield Member(f"{NOTES_FOLDER}/findings.json", "findings", plain_json(content))
    for name, value in notes.items():
        yield Member(f"{NOTES_FOLDER}/{name}.json", "the current state of this machine", plain_json(names.value(value)))


def repeats_with_traces(run: Path) -> list[RepeatFolder]:
    """Repeats that hold traces: the first repeat of every cell, then the second of every cell, and so on."""
    found = [RepeatFolder(path) for path in (run / CELLS_NAME).glob("*/repeat*") if RepeatFolder(path).traces()]
    return sorted(found, key=lambda one: (natural_order(Path(one.path.name)), natural_order(one.path)))


def trace_members(run: Path, paths: Iterable[Path], names: Anonymizer, scratch: Path) -> list[Member]:
    """These traces, reduced; an unreadable one becomes an empty file, which readers report again."""
    members = []
    for path in paths:
        target = scratch / f"reduced{TRACE_SUFFIX}"
        try:
            reduce_trace(path, target, names.text)
            content = target.read_bytes()
        except DpscopeError:
            content = b""
        members.append(Member(path.relative_to(run).as_posix(), "traces, reduced to what dpscope reads", content))
    return members


MOST_BYTES = 16 << 20
_LEVEL = 9
_ENTRY_BYTES = 300  # of the archive, for each file


@dataclass(frozen=True)
class Bundle:
    """The content of a bundle, and the traces that did not fit."""

    name: str  # of the folder in the archive
    members: tuple[Member, ...]
    in_part: tuple[str, ...]  # repeats of which only the first rank's trace fits
    left_out: tuple[str, ...]  # repeats of which no trace fits

    def listing(self) -> TextTable:
        """A row for each kind of file in the bundle."""
        kinds = dict.fromkeys(member.kind for member in self.members)
        rows = []
        for kind in kinds:
            of_kind = [member for member in self.members if member.kind == kind]
            rows.append((kind, str(len(of_kind)), f"{sum(len(member.content) for member in of_kind) / 1e3:,.1f}"))
        notes = [
            "Names of hosts and users, network addresses and folders are replaced by numbers; names and UUIDs of GPUs, models "
            "and settings are kept."
        ]
        if self.in_part:
            notes.append(f"Only the first rank's trace fits for {_counted(self.in_part)}.")
        if self.left_out:
            notes.append(f"No trace fits for {_counted(self.left_out)}.")
        return TextTable(f"What {self.name} holds", ("what", "files", "size [kB]"), tuple(rows), notes=tuple(notes))


def collect(
    run: Path,
    findings: Sequence[Finding],
    notes: Mapping[str, object],
    most_bytes: int = MOST_BYTES,
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """The bundle of a run, with at most `most_bytes`.

    Traces are added by repeat while they fit, the first repeat of every cell before any second. `notes` are plain data by file
    name. Raises DpscopeError for a folder that is not a run, and for a run that is too large even without traces.
    """
    names = Anonymizer(_hosts(run), (run, Path.cwd()))
    members = [*run_members(run, names), *note_members(names, list(findings), notes)]
    size = sum(_packed_size(member) for member in members)
    if size > most_bytes:
        raise DpscopeError(
            f"{run} has {size / 1e6:.1f} MB of results without its traces, more than the {most_bytes / 1e6:.1f} MB of a bundle; "
            "bundle a run of fewer cells"
        )
    traces = _Traces(run, names, most_bytes - size)
    with tempfile.TemporaryDirectory(prefix="dpscope-bundle-") as scratch:
        for repeat in repeats_with_traces(run):
            progress(repeat.path.relative_to(run).as_posix())
            traces.take(repeat, Path(scratch))
    return Bundle(
        names.text(run.absolute().name), (*members, *traces.taken), tuple(traces.in_part), tuple(traces.left_out)
    )


class _Traces:
    """Adds traces by repeat while they fit: all traces of a repeat, else the first rank's, else none."""

    def __init__(self, run: Path, names: Anonymizer, room: int) -> None:
        self.taken: list[Member] = []
        self.in_part: list[str] = []
        self.left_out: list[str] = []
        self._run, self._names, self._room = run, names, room
        self._read_bytes = self._reduced_bytes = 0

    def take(self, repeat: RepeatFolder, scratch: Path) -> None:
        """Add the traces of a repeat that fit."""
        name = repeat.path.relative_to(self._run / CELLS_NAME).as_posix()
        whole = [*repeat.traces(), *repeat.counters_traces()]
        if not self._fits(whole, scratch):
            (self.in_part if self._fits(whole[:1], scratch) else self.left_out).append(name)

    def _fits(self, paths: list[Path], scratch: Path) -> bool:
        on_disk = sum(path.stat().st_size for path in paths)
        if self._read_bytes and on_disk * self._reduced_bytes / self._read_bytes > 2 * self._room:
            return False  # far too large: not worth reading
        members = trace_members(self._run, paths, self._names, scratch)
        size = sum(len(member.content) for member in members)
        self._read_bytes += on_disk
        self._reduced_bytes += size
        if size + _ENTRY_BYTES * len(members) > self._room:
            return False
        self._room -= size + _ENTRY_BYTES * len(members)
        self.taken += members
        return True


def _counted(repeats: tuple[str, ...]) -> str:
    return f"{counted(len(repeats), 'repeat')} ({', '.join(repeats)})"


def _hosts(run: Path) -> list[str]:
    """The host names in a run's files."""
    folder = RunFolder(run)
    manifest = folder.manifest()
    hosts = [manifest.environment.hostname, *(host.hostname for host in manifest.hosts)]
    for path in folder.path.glob("cells/*/repeat*/rank_*_*.json"):
        try:
            environment = msgspec.json.decode(path.read_bytes(), type=_OfRank).environment
        except msgspec.DecodeError:  # reported when the file is added
            continue
        hosts += [] if environment is None else [environment.hostname]
    return hosts


class _Host(msgspec.Struct):
    hostname: str = ""


class _OfRank(msgspec.Struct):
    environment: _Host | None = None


def _packed_size(member: Member) -> int:
    return len(zlib.compress(member.content, _LEVEL)) + _ENTRY_BYTES


def write(bundle: Bundle, path: Path) -> None:
    """Write the bundle atomically; raises DpscopeError if `path` exists and is not a bundle of dpscope."""
    check_overwritable(path)
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as file,
    ):
        file.comment = BUNDLE_MARK
        for member in bundle.members:
            file.writestr(zipfile.ZipInfo(f"{bundle.name}/{member.name}"), member.content, zipfile.ZIP_DEFLATED, _LEVEL)


_LABELS = ("name", "labels", "sort_index")
_ARGS = tuple(name for name in EventArgs.__struct_encode_fields__ if name not in _LABELS)
_FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
_TRACE_LEVEL = 6  # of gzip's 1 to 9
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
        packed: IO[bytes] = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_TRACE_LEVEL, mtime=0)  # type: ignore[assignment]
        with packed:
            yield lambda text: packed.write(text.encode())
