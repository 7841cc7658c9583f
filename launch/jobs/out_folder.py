"""The run folder as a place to write to: whether it can be, and by one process at a time. Imports no torch."""

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpscope.profiling.records.equality import EQUALITY_NAME
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import CALIBRATION_NAME, is_run_folder
from dpscope.profiling.store.training_folders import TRAIN_LOG_NAME, TRAININGS_NAME, is_train_folder

LOCK_NAME = ".lock"

_FOLDERS = ("cells", "report", TRAININGS_NAME, "tensorboard", "wandb")
_STEMS = tuple(Path(name).stem for name in (CALIBRATION_NAME, EQUALITY_NAME, TRAIN_LOG_NAME))
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF)  # as file systems over a network answer

_CLAIM_ATTEMPTS, _CLAIM_POLL_S = 20, 0.05


def check_is_ours(out: Path) -> None:
    """Raise DpscopeError unless `out` can be written to and holds nothing, or what dpscope's commands write."""
    check_writable(out)
    if is_run_folder(out) or is_train_folder(out) or not out.exists():
        return
    if not out.is_dir() or any(map(_is_foreign, out.iterdir())):
        raise DpscopeError(f"--out {out}: exists and is not a run folder; name another")


def _is_foreign(path: Path) -> bool:
    """Whether a file is none that a command, or one that was killed while it began or began afresh, leaves."""
    if path.name in _FOLDERS:
        return not (path.parent / LOCK_NAME).exists()
    return path.name != LOCK_NAME and path.stem not in _STEMS


def check_writable(out: Path) -> None:
    """Raise DpscopeError unless `out` is, or can become, a folder to write to; leaves nothing there."""
    path = out.absolute()
    existing = next(one for one in (path, *path.parents) if os.path.lexists(one))
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".tmp-", dir=existing))
    except OSError as error:
        raise _unwritable(out, error, existing) from error


def _unwritable(out: Path, error: OSError, place: Path) -> DpscopeError:
    return DpscopeError(f"--out {out}: cannot write in {place} ({error.strerror}); name another folder")


@contextmanager
def locked(folder: Path, wait: bool, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's lock, made with the folder where it is absent.

    Without `wait` a lock that another process holds is a DpscopeError. Where the file system has no locks the block
    runs without one, and `note` is told.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unwritable(folder, error, folder) from error
    try:
        _lock(descriptor, folder, wait, note)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, wait: bool, note: Callable[[str], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DpscopeError(f"--out {folder}: another dpscope is writing it; wait for it, or name another") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
        note(f"note: {folder} cannot be locked ({error.strerror}): start no other dpscope with the same --out")


def claim(folder: Path) -> None:
    """Mark a folder as one this process alone writes in, until it ends, however it ends; `claimed` tells others.

    Raises DpscopeError where another process has claimed it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    for attempt in range(_CLAIM_ATTEMPTS):  # `claimed` holds it for an instant
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if attempt == _CLAIM_ATTEMPTS - 1:
                raise DpscopeError(
                    f"{folder}: another job is measuring it; wait for that one, then start again"
                ) from error
            time.sleep(_CLAIM_POLL_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            return


def claimed(folder: Path) -> bool:
    """Whether a living process has claimed the folder; False where the file system has no locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
    finally:
        os.close(descriptor)
    return False
