"""The error that stands for a user's mistake: one line, exit status 2; and its kinds that have another status."""

from pathlib import Path


class DpscopeError(Exception):
    """A mistake of the user's or of a file's, told in one line: what, where, what to do."""

    exit_status = 2


def unreadable(path: Path, error: OSError) -> str:
    """Why a file cannot be read, such as ``runs/x.csv does not exist``."""
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist"
    return f"cannot read {path}: {error.strerror}"


class NotComparableError(DpscopeError):
    """Two measurements that were to be compared have nothing in common: a gate can neither pass nor fail."""

    exit_status = 3
