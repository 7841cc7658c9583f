"""The run folder as a place to write to: whether it can be, and by one process at a time. Imports no torch."""

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpscope.profiling.run_store import DpscopeError

LOCK_NAME = ".lock"

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF)  # as file systems over a network answer


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
