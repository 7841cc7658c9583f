"""DpscopeError, a user's mistake in one line with exit status 2, and its subclasses with other statuses."""

from pathlib import Path


class DpscopeError(Exception):
    """A mistake of the user or an invalid file, in one line: what, where, what to do."""

    exit_status = 2


def unreadable(path: Path, error: OSError) -> str:
    """Why a file cannot be read, such as ``runs/x.csv does not exist``."""
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist"
    return f"cannot read {path}: {error.strerror}"


class NotComparableError(DpscopeError):
    """Two measurements have nothing in common to compare: a gate can neither pass nor fail."""

    exit_status = 3
