"""What a support bundle holds, file by file, made anonymous: a run folder in itself, with what was found about it beside."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpscope.analysis.bundle.anonymous import Anonymizer
from dpscope.analysis.bundle.reduced_trace import reduce_trace
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import natural_order
from dpscope.profiling.store.folders import CALIBRATION_NAME, CELLS_NAME, MANIFEST_NAME, TRACE_SUFFIX, RepeatFolder
from dpscope.profiling.store.training_folders import TRAIN_LOG_NAME, TRAIN_MANIFEST_NAME, TRAININGS_NAME

LOG_LINES = 200  # of the end of each log
NOTES_FOLDER = "bundle"  # beside the run's own files


@dataclass(frozen=True)
class Member:
    """One file of a bundle."""

    name: str  # its path in the run folder
    kind: str  # what it is, as the listing says
    content: bytes


def run_members(run: Path, names: Anonymizer) -> Iterator[Member]:
    """Everything of a run but its traces: settings, results, samples, counters, calibration, the ends of logs.

    Raises DpscopeError for a file that is no JSON, which cannot be made anonymous.
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
            yield Member(name, "times of every step (numbers alone)", path.read_bytes())


def _files(run: Path) -> Iterator[Path]:
    for folder in (run / CELLS_NAME, run / TRAININGS_NAME):
        yield from (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _anonymous_json(path: Path, names: Anonymizer) -> bytes:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise DpscopeError(f"{path} is no JSON: {error}; take it out of the run, or measure its cell again") from error
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
    """What was found about the run, and what the machine says of itself now: each note a JSON file of its own."""
    told = [{"code": str(one.code), "severity": one.severity, "message": names.text(one.message)} for one in findings]
    yield Member(f"{NOTES_FOLDER}/findings.json", "findings", plain_json(told))
    for name, value in notes.items():
        yield Member(f"{NOTES_FOLDER}/{name}.json", "what this machine answers now", plain_json(names.value(value)))


def repeats_with_traces(run: Path) -> list[RepeatFolder]:
    """Repeats that hold traces: the first repeat of every cell, then the second of every cell, and so on."""
    found = [RepeatFolder(path) for path in (run / CELLS_NAME).glob("*/repeat*") if RepeatFolder(path).traces()]
    return sorted(found, key=lambda one: (natural_order(Path(one.path.name)), natural_order(one.path)))


def trace_members(run: Path, paths: Iterable[Path], names: Anonymizer, scratch: Path) -> list[Member]:
    """These traces, reduced; one that cannot be read as an empty file, so that reading it says so again."""
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
