"""The folder in which a job's processes gather what they measure, held by each of them while it lives. Imports no torch."""

import fcntl
import os
from pathlib import Path

from dpscope.profiling.store.folders import CELLS_NAME, RepeatFolder
from dpscope.profiling.store.layout import ATTACHED_PREFIX, remove_written

_HELD = (
    "running_"  # one for each process, which holds a lock on it: the system takes that back however the process ends
)


def gathering_folder(out: Path, job: str) -> RepeatFolder:
    """Where the processes of a job put what they measure until all of it is there."""
    return RepeatFolder(out / CELLS_NAME / f"{ATTACHED_PREFIX}{job}")


class HeldFolder:
    """A job's folder that this process writes to."""

    def __init__(self, folder: RepeatFolder, node: int, rank: int) -> None:
        self._path = folder.path / f"{_HELD}{node}_{rank}"
        self._traces = (folder.trace_path(node, rank), folder.counters_trace_path(node, rank))
        cells = folder.path.parent
        self._made = [path for path in (cells, cells.parent) if not path.exists()]
        folder.path.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a file system without locks: what lies there is never removed
            self._path.unlink(missing_ok=True)

    def release(self, keep: bool) -> None:
        """Hold it no more. Without measurements to `keep` this process removes what it wrote, and the last one the folder."""
        if self._descriptor is None:
            return
        os.close(self._descriptor)
        self._descriptor = None
        if keep:
            return
        for path in (self._path, *self._traces):
            path.unlink(missing_ok=True)
        for path in (*(one.parent for one in self._traces), self._path.parent, *self._made):
            _remove_if_empty(path)


def forget_processes(folder: RepeatFolder) -> None:
    """Remove the marks of a job's processes: all that they measure is there."""
    for path in folder.path.glob(f"{_HELD}*"):
        path.unlink(missing_ok=True)


def remove_unfinished_jobs(out: Path) -> None:
    """Remove what jobs left in a run folder that ended before all their processes had saved; none of these lives any more."""
    for path in (out / CELLS_NAME).glob(f"{ATTACHED_PREFIX}*"):
        marks = list(path.glob(f"{_HELD}*"))
        if marks and not path.is_symlink() and not any(_is_held(mark) for mark in marks):
            remove_written(out, path)
            _remove_if_empty(path)


def _is_held(mark: Path) -> bool:
    try:
        descriptor = os.open(mark, os.O_RDWR)
    except OSError:
        return True  # removed by its process just now, or another user's
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove_if_empty(path: Path) -> None:
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
