"""Checks and locks for the folder that a command writes to. Imports no torch."""

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpscope.profiling.records.equality import EQUALITY_FOLDER, EQUALITY_NAME
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import (
    CALIBRATION_NAME,
    CELLS_NAME,
    COLLECTIVES_NAME,
    LOCK_NAME,
    REPORT_NAME,
    files_in,
    fits_layout,
)
from dpscope.profiling.store.ownership import (
    CALIBRATION_FIGURE_NAME,
    MANIFEST_OF,
    TENSORBOARD_NAME,
    bears_mark,
    check_overwritable,
    check_place,
    check_report_folder,
    check_training_events,
    is_calibration,
    is_manifest,
)
from dpscope.profiling.store.training_folders import (
    TRAIN_LOG_NAME,
    TRAININGS_NAME,
    holds_epochs,
    is_train_folder,
)

_BEFORE_A_MANIFEST = (
    LOCK_NAME,
    TRAIN_LOG_NAME,
    CALIBRATION_NAME,
    CALIBRATION_FIGURE_NAME,
    EQUALITY_NAME,
)
"""Files at the top of a folder that a killed command leaves, or that others provide for dpscope."""

# as network file systems answer
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF)

_CLAIM_ATTEMPTS, _CLAIM_POLL_S = 20, 0.05


def check_run_place(out: Path) -> None:
    """Raise DpscopeError unless `dpscope run` may write to `out`."""
    _check(out, CELLS_NAME, lambda: check_report_folder(out / REPORT_NAME))


def check_train_place(out: Path) -> None:
    """The same for `dpscope train`."""
    _check(
        out,
        TRAININGS_NAME,
        lambda: check_report_folder(out / REPORT_NAME),
        lambda: check_training_events(out),
    )
    if holds_epochs(out) and not is_train_folder(out):
        raise DpscopeError(
            f"--out {out}: its {TRAIN_LOG_NAME} was not written by dpscope train; move it away, or name another folder"
        )


def check_equality_place(out: Path) -> None:
    """The same for `dpscope equal`, which replaces an earlier comparison."""
    _check(out, EQUALITY_FOLDER, lambda: check_overwritable(out / EQUALITY_NAME))


def _check(out: Path, folder: str, *checks: Callable[[], None]) -> None:
    """Check `out` and the folder in it that the command fills."""
    if _check_begun_by_dpscope(out):
        with _naming(out):
            check_place(out, folder)
            for check in checks:
                check()


def check_calibration_place(out: Path, calibration: Path) -> None:
    """The same for `dpscope calibrate`, which replaces an earlier calibration and its figure."""
    if out != calibration:
        _check_begun_by_dpscope(out)
    else:
        check_writable(out.parent)
    with _naming(out):
        check_overwritable(calibration, is_calibration)
        check_overwritable(calibration.with_suffix(".png"))


@contextmanager
def _naming(out: Path) -> Iterator[None]:
    """Put the option before the message of a DpscopeError."""
    try:
        yield
    except DpscopeError as error:
        raise DpscopeError(f"--out {out}: {error}") from error


def _check_begun_by_dpscope(out: Path) -> bool:
    """Whether `out` exists; raises DpscopeError unless it is writable and all its files can be
    dpscope's.
    """
    check_writable(out)
    if not out.exists():
        return False
    if not out.is_dir():
        raise DpscopeError(f"--out {out}: exists and is not a run folder; name another")
    manifests = [out / name for name, _ in MANIFEST_OF.values()]
    if not any(map(is_manifest, manifests)) and (
        foreign := next(filter(_is_foreign, sorted(out.iterdir())), None)
    ):
        raise DpscopeError(
            f"--out {out}: exists and is not a run folder; name another ({foreign.name} is not dpscope's)"
        )
    return True


def _is_foreign(path: Path) -> bool:
    """Whether dpscope neither writes such a file or folder at the top nor leaves it when it is
    killed at its start.
    """
    if path.name in (CELLS_NAME, COLLECTIVES_NAME, TRAININGS_NAME):
        return not all(fits_layout(file.relative_to(path.parent)) for file in files_in(path))
    if path.name in (EQUALITY_FOLDER, REPORT_NAME, TENSORBOARD_NAME):
        return not all(map(bears_mark, files_in(path)))
    return path.name not in _BEFORE_A_MANIFEST and not path.name.startswith(".tmp-")


def check_writable(out: Path) -> None:
    """Raise DpscopeError unless `out` is, or can become, a folder to write to; leaves nothing
    there.
    """
    path = out.absolute()
    existing = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".tmp-", dir=existing))
    except OSError as error:
        raise _unwritable(out, error, existing) from error


def _unwritable(out: Path, error: OSError, place: Path) -> DpscopeError:
    return DpscopeError(
        f"--out {out}: cannot write in {place} ({error.strerror}); name another folder"
    )


@contextmanager
def locked(folder: Path, wait: bool, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's lock; creates the folder if it is absent.

    Without `wait`, a lock that another process holds is a DpscopeError. On a file system without
    locks, `note` gets a message and the block runs without a lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _unwritable(folder, error, folder) from error
    try:
        held = _lock(descriptor, wait)
        if held is False:
            raise DpscopeError(
                f"--out {folder}: another dpscope is writing it; wait for it, or name another"
            )
        if held is not True:
            note(
                f"note: {folder} cannot be locked ({held}): start no other dpscope with the same --out"
            )
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, wait: bool = False) -> bool | str:
    """Lock an open file or folder; False if another process has, the reason where the file system
    has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return str(error.strerror)
    return True


def claim(folder: Path) -> None:
    """Claim a folder for this process until it ends; `claimed` shows this to others.

    Raises DpscopeError if another process has claimed it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(_CLAIM_ATTEMPTS):  # `claimed` holds it for an instant
        if _lock(descriptor):
            return
        time.sleep(_CLAIM_POLL_S)
    raise DpscopeError(
        f"{folder}: another job is measuring it; wait for that one, then start again"
    )


def claimed(folder: Path) -> bool:
    """Whether a living process has claimed the folder; False where the file system has no locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)
