"""The paths that dpscope writes below cells, training and equality of a run folder, and removal of these files only.

profiling/store/folders.py, training_folders.py and profiling/records/equality.py describe the files.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

ATTACHED_PREFIX = (
    ".tmp-attached-"  # of a folder in cells, in which an attached job's processes collect their measurements
)
_TORCHRUN = r"torchrun/[^/]+/attempt_\d+/\d+/(stdout\.log|stderr\.log|error\.json)"
_JOB = rf"result\.json|log\.txt|progress\.txt|job\.txt|failure_\d+_\d+\.json|{_TORCHRUN}"
_TRACE = r"\d+_\d+\.(pt\.trace\.json\.gz|tables\.parquet)"
_MEASURED = rf"rank_\d+_\d+\.json|samples_\d+_\d+\.parquet|traces/{_TRACE}|counters/({_TRACE}|\d+_\d+\.json)"
_RANDOM = r"[a-z0-9_]{8}"  # as the tempfile module ends or begins a name
_TEMPORARY = re.compile(rf"\.tmp-[^/]+-{_RANDOM}")  # of a file that was being written
_LAYOUT = re.compile(
    rf"""
      cells/[^/]+/repeat\d+/ ({_JOB} | {_MEASURED})
    | cells/{re.escape(ATTACHED_PREFIX)}[^/]+/ (result\.json | running_\d+_\d+ | {_MEASURED})
    | training/[^/]+/seed\d+/ ({_JOB} | epochs\.json | checkpoints/(last|previous|best)\.pt)
    | equality/ (settings\.json | [^/]+/({_JOB}) | [^/]+/[^/]+/rank_\d+\.(json|npz))
    | (cells|training|equality)/ (.+/)? \.tmp-([^/]+-{_RANDOM} | {_RANDOM}/trace\.json)
    """,
    re.VERBOSE,
)


def fits_layout(relative: Path) -> bool:
    """Whether dpscope writes this path, relative to a run folder, below cells, training or equality."""
    return _LAYOUT.fullmatch(relative.as_posix()) is not None


def remove_written(out: Path, folder: Path, stays: Callable[[Path], bool] = lambda path: False) -> None:
    """Remove the files that dpscope wrote in a folder below the run folder `out`, except those for which `stays` is true.

    Other files and their folders stay; links are neither followed nor removed. Results are removed first, so that a
    half-removed repeat does not count as done.
    """
    found = [path for path in files_in(folder) if not path.is_symlink() and not stays(path)]
    written = [path for path in found if fits_layout(path.relative_to(out))]
    for path in sorted(written, key=lambda path: path.name != "result.json"):
        path.unlink(missing_ok=True)
    remove_empty_folders(folder)


def remove_torchrun_logs(folder: Path) -> None:
    """Remove torchrun's files from its log folder, which is called torchrun; other files stay."""
    for path in files_in(folder):
        if re.fullmatch(_TORCHRUN, path.relative_to(folder.parent).as_posix()):
            path.unlink(missing_ok=True)
    remove_empty_folders(folder)
    if folder.is_dir() and not folder.is_symlink() and not os.listdir(folder):
        folder.rmdir()


def files_in(folder: Path) -> list[Path]:
    """All files below a folder, without following links to folders; empty if the folder does not exist."""
    return [Path(parent) / name for parent, _, names in os.walk(folder) for name in names]


def remove_temporaries(folder: Path) -> None:
    """Remove unfinished files of killed processes directly in a folder."""
    for path in folder.glob(".tmp-*"):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def remove_empty_folders(folder: Path) -> None:
    """Remove empty folders below a folder."""
    for path, _, _ in os.walk(folder, topdown=False):
        if Path(path) != folder and not os.listdir(path):
            os.rmdir(path)
