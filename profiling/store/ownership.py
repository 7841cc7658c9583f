"""Recognises files that dpscope wrote, so that no other file is ever removed or overwritten.
Imports no torch.

A folder below `out` is dpscope's if its manifest (MANIFEST_OF) decodes. Below a cell that the
manifest records, a file is dpscope's if its path is one that dpscope writes there (`fits_layout`).
Files whose names other programs use as well (reports, figures, TensorBoard events, calibrations,
merged traces) are recognised by a mark in their content (`bears_mark`). All other files stay; if
one is in the way, a DpscopeError reports it before anything is written.
"""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec
from isal import igzip, igzip_lib

from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.equality import EQUALITY_FOLDER, EQUALITY_NAME, EqualitySettings
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import decodes, read_json
from dpscope.profiling.store.folders import (
    ATTACHED_PREFIX,
    CELLS_NAME,
    MANIFEST_NAME,
    REPORT_NAME,
    SETTINGS_NAME,
    TORCHRUN_NAME,
    RunFolder,
    fits_layout,
    is_dpscope_manifest,
    remove_empty_folders,
)
from dpscope.profiling.store.training_folders import (
    TRAIN_MANIFEST_NAME,
    TRAININGS_NAME,
    TrainFolder,
)

TENSORBOARD_NAME = "tensorboard"
CALIBRATION_FIGURE_NAME = "calibration.png"
REPORT_FILES = ("report.html", "comparison.csv", "comparison.md", "training.csv", "training.md")
FIGURE_FORMATS = (".png", ".svg", ".pdf")
CAPTIONS_NAME = "captions.tex"  # next to the figures
CAPTIONS_MARK = "% Captions by dpscope"
EVENTS_SUFFIX = ".dpscope"  # of the names of event files

MANIFEST_OF: dict[str, tuple[str, Callable[[Path], object]]] = {
    CELLS_NAME: (MANIFEST_NAME, lambda path: RunFolder(path.parent).manifest()),
    TRAININGS_NAME: (TRAIN_MANIFEST_NAME, lambda path: TrainFolder(path.parent).manifest()),
    EQUALITY_FOLDER: (
        f"{EQUALITY_FOLDER}/{SETTINGS_NAME}",
        lambda path: read_json(path, EqualitySettings),
    ),
}
"""The manifest of each folder, and its reader, which raises DpscopeError unless this version of
dpscope can read it.
"""

PARTIAL_KEY = "dpscope.partial"  # in the metadata of a partial's Parquet file, at its end
PAGE_MARK = '<meta name="generator" content="dpscope">'  # in the head of every page
BUNDLE_MARK = b"dpscope support bundle"  # the comment at the end of its ZIP file
DPSCOPE_TRACE_HEAD = b'{\n  "schemaVersion": 1,\n  "displayTimeUnit": "ms",\n  "traceEvents": [\n  '
"""The beginning of every trace that dpscope makes from other traces; its last field is the object
`dpscope`.
"""

_DPSCOPE_TRACE_FIELD = b'\n  "dpscope": {'
_TRACE_TAIL_BYTES = 4 << 20  # longer than that field
_HEAD_BYTES = 64 << 10


class ForeignFileError(DpscopeError):
    """A file that dpscope did not write is in a place where dpscope would remove or overwrite
    it.
    """


def is_manifest(path: Path) -> bool:
    """Whether a file is one of the manifests in MANIFEST_OF, of any version."""
    return is_dpscope_manifest(path) or (
        path.name == SETTINGS_NAME and decodes(path, EqualitySettings)
    )


def check_place(out: Path, place: str) -> None:
    """Raise DpscopeError unless dpscope may write and remove its files below `out`/`place`.

    The place must be absent or dpscope's: with its manifest, or with no files except torchrun's
    logs and those of unfinished attached jobs. It must contain no link, and every folder must be writable.
    """
    name, read = MANIFEST_OF[place]
    if begun := os.path.lexists(out / name):
        _check_plain(out / name)
        read(out / name)
    folder = out / place
    check_folder(folder)
    for parent, folders, files in os.walk(folder):
        for inner in folders:
            check_folder(Path(parent) / inner)
        for path in (Path(parent) / file for file in files if not begun):
            if not fits_layout(path.relative_to(out)):
                raise ForeignFileError(f"{folder} was not written by dpscope; name another folder")
            inside = path.relative_to(folder).parts
            # torchrun opens its logs before the first job that is started by hand begins the folder
            if not inside[0].startswith(ATTACHED_PREFIX) and TORCHRUN_NAME not in inside:
                raise ForeignFileError(
                    f"{out / name} is missing, and without it nothing in {folder} is removed; restore it, or name another folder"
                )


def check_report_folder(folder: Path, figures: Iterable[str] = ()) -> None:
    """Raise DpscopeError unless the report's files and figures are absent or dpscope's, and no
    folder is a link.
    """
    check_folder(folder)
    check_folder(folder / "figures")
    for name in REPORT_FILES:
        check_overwritable(folder / name)
    for name in figures:
        check_overwritable(folder / "figures" / name)


def check_training_events(out: Path) -> None:
    """`check_events` for the TensorBoard runs of trainings."""
    folder = out / TENSORBOARD_NAME
    for place in (folder, folder / TRAININGS_NAME, *folder.glob(f"{TRAININGS_NAME}/*")):
        check_folder(place)
    for run in folder.glob(f"{TRAININGS_NAME}/*/*"):
        check_events(run)


def check_events(folder: Path) -> None:
    """Raise DpscopeError unless a TensorBoard run is absent or dpscope's: not a link, and every
    event file bears the mark.
    """
    check_folder(folder)
    events = list(folder.glob("*tfevents*"))
    for path in events:
        check_overwritable(path)
    if not events:  # they are written before the copies of traces
        for path in folder.glob("*.pt.trace.json.gz"):
            check_overwritable(path)


def check_overwritable(path: Path, is_own: Callable[[Path], bool] | None = None) -> None:
    """Raise DpscopeError unless `path` is absent or a file that dpscope wrote, by its content.

    `is_own` recognises the one kind of file that may be replaced (default: any kind with this
    suffix).
    """
    if os.path.lexists(path):
        _check_plain(path)
        if not (is_own or bears_mark)(path):
            raise ForeignFileError(
                f"{path} was not written by dpscope, which does not overwrite it; move it, or name another place"
            )


def bears_mark(path: Path) -> bool:
    """Whether a file's content, or an event file's name, shows that dpscope wrote it."""
    if "tfevents" in path.name:
        return path.name.endswith(EVENTS_SUFFIX)
    has_mark = _MARKS.get(path.suffix)
    return has_mark is not None and path.is_file() and has_mark(path)


def is_dpscope_trace(path: Path) -> bool:
    """Whether a file, plain or gzip, is a trace that dpscope made from other traces."""
    tail = b""
    try:
        with (igzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            if file.read(len(DPSCOPE_TRACE_HEAD)) != DPSCOPE_TRACE_HEAD:
                return False
            while block := file.read(_TRACE_TAIL_BYTES):
                tail = (tail + block)[-_TRACE_TAIL_BYTES:]
    except PermissionError:
        raise
    except (OSError, EOFError, igzip_lib.IsalError):  # type: ignore[misc]  # its stubs call it a plain object
        return False
    return _DPSCOPE_TRACE_FIELD in tail


is_calibration = partial(decodes, kind=Calibration)


def remove_report(out: Path) -> None:
    """Remove the report's files that bear dpscope's mark; other files stay."""
    folder = out / REPORT_NAME
    texts = [folder / name for name in REPORT_FILES]
    for path in [*filter(_is_own_file, texts), *marked_figures(folder)]:
        path.unlink()
    remove_empty_folders(folder)


def marked_figures(folder: Path) -> list[Path]:
    """The figures in a report's folder that dpscope wrote, and their captions."""
    return [
        path
        for path in folder.glob("figures/*")
        if path.suffix in (*FIGURE_FORMATS, ".tex") and _is_own_file(path)
    ]


def _is_own_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and bears_mark(path)


def remove_events(folder: Path) -> None:
    """Remove the event files of a dpscope TensorBoard run and the traces copied next to them; other
    files stay.
    """
    events = [path for path in folder.glob("*tfevents*") if bears_mark(path)]
    copies = list(folder.glob("*.pt.trace.json.gz")) if events else []
    for path in [*copies, *events]:
        path.unlink()
    remove_empty_folders(folder)


def check_folder(folder: Path) -> None:
    """Raise DpscopeError unless `folder` is absent or a writable folder that is not a link."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink():
        raise ForeignFileError(
            f"{folder} is a symbolic link, which dpscope does not write through; put a folder there"
        )
    if not folder.is_dir():
        raise ForeignFileError(f"{folder} is not a folder; move it away, or name another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ForeignFileError(
            f"{folder} cannot be written to; change its permissions, or name another place"
        )


def _check_plain(path: Path) -> None:
    if path.is_symlink() or not path.is_file():
        kind = "a symbolic link" if path.is_symlink() else "not a file"
        raise ForeignFileError(
            f"{path} is {kind} and is not overwritten; move it away, or name another place"
        )


def _head(path: Path, at: int = 0) -> bytes:
    with open(path, "rb") as file:
        file.seek(at)
        return file.read(_HEAD_BYTES)


def _tail(path: Path) -> bytes:
    return _head(path, max(0, path.stat().st_size - _HEAD_BYTES))


class _Equality(msgspec.Struct):
    """Fields that distinguish equality.json from other JSON."""

    schema_version: int
    settings: EqualitySettings


def _marked_json(path: Path) -> bool:
    """Whether a file decodes as calibration.json or equality.json, or is a dpscope manifest."""
    kind = _Equality if path.name == EQUALITY_NAME else Calibration
    return is_dpscope_manifest(path) or decodes(path, kind)


_MARKS: dict[str, Callable[[Path], bool]] = {
    ".json": _marked_json,
    ".html": lambda path: PAGE_MARK.encode() in _head(path),
    ".md": lambda path: _head(path).startswith((b"# dpscope: ", b"# Trainings: ")),
    ".csv": lambda path: _head(path).startswith(b"cell,strategy,devices,"),
    ".png": lambda path: b"tEXtSoftware\0dpscope" in _head(path),
    ".svg": lambda path: b"<dc:title>dpscope</dc:title>" in _head(path),
    ".tex": lambda path: _head(path).startswith(CAPTIONS_MARK.encode()),
    ".pdf": lambda path: b"/Creator (dpscope)" in _head(path) + _tail(path),
    ".dpscope": lambda path: PARTIAL_KEY.encode() in _tail(path),
    ".zip": lambda path: path.read_bytes().endswith(BUNDLE_MARK),
}
