"""`dpscope bundle`: a run in one file that is small enough to mail and contains no names of hosts
and users.

Traces are reduced to what dpscope reads, so that every measure stays exactly the same: events of
other categories (Python functions, flows), arguments that are not read (stacks, addresses), and all
header fields except rank, group, host, devices and the clock's base are omitted.
"""

import contextlib
import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dpscope.analysis.bundle.anonymous import Anonymizer
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.traces.reading.chunks import RUN_LIMITS, DecodedChunk
from dpscope.analysis.traces.reading.event_table import CATEGORIES, is_unread_device
from dpscope.analysis.traces.reading.json_events import RAW_EVENTS, EventArgs, RawEvent
from dpscope.analysis.traces.reading.reader import Reading, read_events
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.redaction import command_without_secrets, without_secrets
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path, natural_order
from dpscope.profiling.store.folders import (
    CALIBRATION_NAME,
    CELLS_NAME,
    MANIFEST_NAME,
    RepeatFolder,
    RunFolder,
)
from dpscope.profiling.store.ownership import BUNDLE_MARK, check_overwritable
from dpscope.profiling.store.training_folders import (
    TRAIN_LOG_NAME,
    TRAIN_MANIFEST_NAME,
    TRAININGS_NAME,
)

_LOG_LINES = 200  # last lines of each log
_MOST_BYTES = 16 << 20
_LEVEL = 9
_ENTRY_BYTES = 300  # of the archive, for each file


@dataclass(frozen=True)
class Member:
    """One file of a bundle."""

    name: str  # path in the run folder
    kind: str  # description in the listing
    content: bytes


@dataclass(frozen=True)
class Bundle:
    """The content of a bundle, and the traces that did not fit."""

    name: str  # of the folder in the archive
    members: tuple[Member, ...]
    in_part: tuple[str, ...]  # repeats of which only the first rank's trace fits
    left_out: tuple[str, ...]  # repeats of which no trace fits

    def listing(self) -> TextTable:
        """A row for each kind of file in the bundle."""
        rows = []
        for kind in dict.fromkeys(member.kind for member in self.members):
            sizes = [len(member.content) for member in self.members if member.kind == kind]
            rows.append((kind, str(len(sizes)), f"{sum(sizes) / 1e3:,.1f}"))
        notes = [
            "Names of hosts and users, network addresses and folders are replaced by numbers; names and UUIDs of GPUs, models "
            "and settings are kept."
        ]
        for what, repeats in (
            ("Only the first rank's trace fits", self.in_part),
            ("No trace fits", self.left_out),
        ):
            if repeats:
                notes.append(
                    f"{what} for {counted(len(repeats), 'repeat')} ({', '.join(repeats)})."
                )
        return TextTable(
            f"What {self.name} holds",
            ("what", "files", "size [kB]"),
            tuple(rows),
            notes=tuple(notes),
        )


def collect(
    run: Path,
    findings: Sequence[Finding],
    notes: Mapping[str, object],
    most_bytes: int = _MOST_BYTES,
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """The bundle of a run, with at most `most_bytes`.

    Traces are added by repeat while they fit, the first repeat of every cell before any second: all
    traces of a repeat, else the first rank's, else none. `notes` are plain data by file name.
    Raises DpscopeError for a folder that is not a run, for invalid JSON in it, and for a run that
    is too large even without traces.
    """
    names = Anonymizer(_hosts(run), (run, Path.cwd()), _scripts(run))
    members = [*_run_members(run, names), *_made_members(findings, notes, names)]
    size = sum(len(zlib.compress(member.content, _LEVEL)) + _ENTRY_BYTES for member in members)
    if size > most_bytes:
        raise DpscopeError(
            f"{run} has {size / 1e6:.1f} MB of results without its traces, more than the {most_bytes / 1e6:.1f} MB of a bundle; "
            "bundle a run of fewer cells"
        )
    packing = _Packing(run, names, most_bytes - size)
    in_part: list[str] = []
    left_out: list[str] = []
    for repeat in _traced_repeats(run):
        progress(repeat.path.relative_to(run).as_posix())
        name = repeat.path.relative_to(run / CELLS_NAME).as_posix()
        whole = [*repeat.traces(), *repeat.counters_traces()]
        traces = packing.fitting(whole)
        if not traces:
            traces = packing.fitting(whole[:1])
            (in_part if traces else left_out).append(name)
        members += traces
    return Bundle(names.text(run.absolute().name), tuple(members), tuple(in_part), tuple(left_out))


@dataclass
class _Packing:
    """Reduces traces while there is room for them."""

    run: Path
    names: Anonymizer
    room_bytes: int
    read_bytes: int = 0
    packed_bytes: int = 0  # that became of them

    def fitting(self, paths: Sequence[Path]) -> list[Member]:
        """The traces, reduced; none of them where they do not fit together."""
        on_disk_bytes = sum(path.stat().st_size for path in paths)
        packed_share = self.packed_bytes / self.read_bytes if self.read_bytes else 0.0
        # far too large by those before: not worth reading
        if on_disk_bytes * packed_share > 2 * self.room_bytes:
            return []
        traces = [_trace_member(self.run, path, self.names) for path in paths]
        packed_bytes = sum(len(trace.content) for trace in traces)
        self.read_bytes += on_disk_bytes
        self.packed_bytes += packed_bytes
        needed_bytes = packed_bytes + _ENTRY_BYTES * len(traces)
        if needed_bytes > self.room_bytes:
            return []
        self.room_bytes -= needed_bytes
        return traces


def _made_members(
    findings: Sequence[Finding], notes: Mapping[str, object], names: Anonymizer
) -> Iterator[Member]:
    """The files that no run folder holds."""
    records = [
        {
            "code": str(finding.code),
            "severity": finding.severity,
            "message": names.text(finding.message),
        }
        for finding in findings
    ]
    yield Member("bundle/findings.json", "findings", _json(records))
    for name, value in notes.items():
        state = _json(names.value(value))
        yield Member(f"bundle/{name}.json", "the current state of this machine", state)


def _traced_repeats(run: Path) -> list[RepeatFolder]:
    """Repeats with traces, the first of every cell before any second."""
    repeats = map(RepeatFolder, (run / CELLS_NAME).glob("*/repeat*"))
    traced = [repeat for repeat in repeats if repeat.traces()]
    by_cell = sorted(traced, key=lambda repeat: natural_order(repeat.path))
    return sorted(by_cell, key=lambda repeat: natural_order(Path(repeat.path.name)))


class _Host(msgspec.Struct):
    hostname: str = ""


class _OfScript(msgspec.Struct):
    script: str | None = None


class _OfRank(msgspec.Struct):
    environment: _Host | None = None


def _hosts(run: Path) -> list[str]:
    """The host names in a run's files."""
    manifest = RunFolder(run).manifest()
    hosts = [manifest.environment.hostname, *(host.hostname for host in manifest.hosts)]
    for path in run.glob("cells/*/repeat*/rank_*_*.json"):
        with contextlib.suppress(msgspec.DecodeError):  # reported when the file is added
            environment = msgspec.json.decode(path.read_bytes(), type=_OfRank).environment
            hosts += [] if environment is None else [environment.hostname]
    return hosts


def _scripts(run: Path) -> set[str]:
    """The command of an attached script as it is stored and as it is shown."""
    stored = msgspec.json.decode((run / MANIFEST_NAME).read_bytes(), type=_OfScript).script
    return {stored, command_without_secrets(stored)} if stored else set()


def _run_members(run: Path, names: Anonymizer) -> Iterator[Member]:
    """A run's files except its traces: settings, results, samples, counters, calibration, the ends
    of logs.
    """
    for name in (MANIFEST_NAME, CALIBRATION_NAME, TRAIN_MANIFEST_NAME, TRAIN_LOG_NAME):
        if (run / name).is_file():
            yield Member(
                name, "settings, environment, calibration", _anonymous_json(run / name, names)
            )
    paths = (path for folder in (CELLS_NAME, TRAININGS_NAME) for path in (run / folder).rglob("*"))
    for path in sorted(paths, key=natural_order):
        name = path.relative_to(run).as_posix()
        if not path.is_file() or path.is_symlink():
            continue
        if path.name == "log.txt":
            lines = path.read_text(errors="replace").splitlines()
            if left_out := lines[:-_LOG_LINES]:
                of_others = f"[{counted(len(left_out), 'line')} before these are not in the bundle]"
                lines = [of_others, *lines[-_LOG_LINES:]]
            content = names.text(without_secrets("\n".join(lines))).encode() + b"\n"
            yield Member(name, f"last {counted(_LOG_LINES, 'line')} of each log", content)
        elif path.suffix == ".json":
            try:
                yield Member(
                    name, "results and counters of each process", _anonymous_json(path, names)
                )
            except DpscopeError:
                yield Member(name, "damaged files, whose content is left out", b"")
        elif path.name.startswith("samples_") and path.suffix == ".parquet":
            yield Member(name, "times of every step (numbers only)", path.read_bytes())


def _anonymous_json(path: Path, names: Anonymizer) -> bytes:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise DpscopeError(
            f"{path} is not JSON: {error}; remove it from the run, or measure its cell again"
        ) from error
    return _json(names.value(value))


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _trace_member(run: Path, path: Path, names: Anonymizer) -> Member:
    """A trace, reduced; an unreadable one becomes an empty file, which readers report again."""
    content = b""
    with contextlib.suppress(DpscopeError):
        content = reduced_trace(path, names.text)
    return Member(
        path.relative_to(run).as_posix(), "traces, reduced to what dpscope reads", content
    )


def write(bundle: Bundle, path: Path) -> None:
    """Write the bundle atomically; raises DpscopeError if `path` exists and is not a bundle of
    dpscope.
    """
    check_overwritable(path)
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as file,
    ):
        file.comment = BUNDLE_MARK
        for member in bundle.members:
            file.writestr(
                zipfile.ZipInfo(f"{bundle.name}/{member.name}"),
                member.content,
                zipfile.ZIP_DEFLATED,
                _LEVEL,
            )


_LABELS = ("name", "labels", "sort_index")
_ARGS = tuple(name for name in EventArgs.__struct_encode_fields__ if name not in _LABELS)
_FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
_TRACE_LEVEL = 6  # of gzip's 1 to 9


def reduced_trace(source: Path, rename: Callable[[str], str] = lambda text: text) -> bytes:
    """What is read of `source`, a trace of one rank, as gzip, with all text passed through
    `rename`.

    Raises DpscopeError if the source cannot be read.
    """
    encode, file = msgspec.json.Encoder().encode, io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_TRACE_LEVEL, mtime=0) as packed:
        packed.write(b'{"traceEvents": [\n')
        separator = ""

        def add(decoded: DecodedChunk[RawEvent]) -> None:
            nonlocal separator
            if text := b",\n".join(map(encode, _reduced(decoded.events))).decode():
                packed.write((separator + rename(text)).encode())
                separator = ",\n"

        reading = read_events(source, RUN_LIMITS, RAW_EVENTS, add)
        header = (
            f",\n{json.dumps(key)}: {rename(json.dumps(value))}"
            for key, value in _header(reading).items()
        )
        packed.write(f"\n]{''.join(header)}\n}}\n".encode())
    return file.getvalue()


def _reduced(events: list[RawEvent]) -> Iterator[dict[str, Any]]:
    for event in events:
        phase, category = event.get("ph"), event.get("cat")
        if phase == "M":
            kept: Collection[str] = _LABELS
        elif (
            phase == "X"
            and isinstance(category, str)
            and (category in CATEGORIES or is_unread_device(category))
        ):
            kept = _ARGS
        else:
            continue
        reduced = {key: event[key] for key in _FIELDS if key in event}
        args = event.get("args")
        if isinstance(args, dict) and (read := {key: args[key] for key in kept if key in args}):
            reduced["args"] = read
        yield reduced


def _header(reading: Reading) -> dict[str, object]:
    """The header; the base includes what was subtracted from all times."""
    header = reading.header
    info = {"backend": header.backend, "rank": header.rank, "world_size": header.world_size}
    return {
        "distributedInfo": {key: value for key, value in info.items() if value is not None},
        **({} if header.host is None else {"host_name": header.host}),
        "deviceProperties": [{"name": name} for name in header.device_names],
        "baseTimeNanoseconds": header.base_ns + 1000 * reading.subtracted_us,
    }
