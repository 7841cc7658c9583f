"""`dpscope bundle`: a run in one file that may be given to strangers. Small enough to mail, without names of hosts and users."""

import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dpscope.analysis.bundle.anonymous import Anonymizer
from dpscope.analysis.bundle.members import Member, note_members, repeats_with_traces, run_members, trace_members
from dpscope.analysis.text.text_table import TextTable
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path
from dpscope.profiling.store.folders import CELLS_NAME, RepeatFolder, RunFolder
from dpscope.profiling.store.ownership import BUNDLE_MARK, check_overwritable

MOST_BYTES = 16 << 20
_LEVEL = 9
_ENTRY_BYTES = 300  # of the archive, for each file


@dataclass(frozen=True)
class Bundle:
    """What will be written, and what had no room."""

    name: str  # of the folder that unpacking gives
    members: tuple[Member, ...]
    in_part: tuple[str, ...]  # repeats of which the first rank's trace alone is in it
    left_out: tuple[str, ...]  # repeats whose traces are not in it

    def listing(self) -> TextTable:
        """What the bundle holds: a row for each kind of file."""
        kinds = dict.fromkeys(member.kind for member in self.members)
        rows = []
        for kind in kinds:
            of_kind = [member for member in self.members if member.kind == kind]
            rows.append((kind, str(len(of_kind)), f"{sum(len(member.content) for member in of_kind) / 1e3:,.1f}"))
        notes = [
            "Names of hosts and users, network addresses and folders are replaced by numbers; GPUs keep their names and UUIDs, "
            "models and settings theirs."
        ]
        if self.in_part:
            notes.append(f"Room for the first rank's trace alone of {_counted(self.in_part)}.")
        if self.left_out:
            notes.append(f"No room for the traces of {_counted(self.left_out)}.")
        return TextTable(f"What {self.name} holds", ("what", "files", "size [kB]"), tuple(rows), notes=tuple(notes))


def collect(
    run: Path,
    findings: Sequence[Finding],
    notes: Mapping[str, object],
    most_bytes: int = MOST_BYTES,
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Everything of a run that goes into its bundle, in at most `most_bytes`.

    Traces are taken a repeat at a time, the first of every cell before the second of any, while they fit. `notes` are plain
    data by the name of the file they become. Raises DpscopeError for a folder that is no run, or too large without any trace.
    """
    names = Anonymizer(_hosts(run), (run, Path.cwd()))
    members = [*run_members(run, names), *note_members(names, list(findings), notes)]
    size = sum(_packed_size(member) for member in members)
    if size > most_bytes:
        raise DpscopeError(
            f"{run} has {size / 1e6:.1f} MB of results beside its traces, more than the {most_bytes / 1e6:.1f} MB of a bundle; "
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
    """Traces, a repeat at a time, while there is room: all of a repeat, else the first rank's, else none."""

    def __init__(self, run: Path, names: Anonymizer, room: int) -> None:
        self.taken: list[Member] = []
        self.in_part: list[str] = []
        self.left_out: list[str] = []
        self._run, self._names, self._room = run, names, room
        self._read_bytes = self._reduced_bytes = 0

    def take(self, repeat: RepeatFolder, scratch: Path) -> None:
        """Take what there is room for."""
        name = repeat.path.relative_to(self._run / CELLS_NAME).as_posix()
        whole = [*repeat.traces(), *repeat.counters_traces()]
        if not self._fits(whole, scratch):
            (self.in_part if self._fits(whole[:1], scratch) else self.left_out).append(name)

    def _fits(self, paths: list[Path], scratch: Path) -> bool:
        on_disk = sum(path.stat().st_size for path in paths)
        if self._read_bytes and on_disk * self._reduced_bytes / self._read_bytes > 2 * self._room:
            return False  # not near: reading them would take its time for nothing
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
    """The hosts that a run's files name."""
    folder = RunFolder(run)
    manifest = folder.manifest()
    hosts = [manifest.environment.hostname, *(host.hostname for host in manifest.hosts)]
    for path in folder.path.glob("cells/*/repeat*/rank_*_*.json"):
        try:
            told = msgspec.json.decode(path.read_bytes(), type=_OfRank).environment
        except msgspec.DecodeError:  # it is told where the file itself is taken
            continue
        hosts += [] if told is None else [told.hostname]
    return hosts


class _Host(msgspec.Struct):
    hostname: str = ""


class _OfRank(msgspec.Struct):
    environment: _Host | None = None


def _packed_size(member: Member) -> int:
    return len(zlib.compress(member.content, _LEVEL)) + _ENTRY_BYTES


def write(bundle: Bundle, path: Path) -> None:
    """Write the bundle, whole or not at all; raises DpscopeError where something stands that is no bundle of dpscope's."""
    check_overwritable(path)
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as file,
    ):
        file.comment = BUNDLE_MARK
        for member in bundle.members:
            file.writestr(zipfile.ZipInfo(f"{bundle.name}/{member.name}"), member.content, zipfile.ZIP_DEFLATED, _LEVEL)
