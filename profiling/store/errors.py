"""DpscopeError, a user's mistake in one line with exit status 2, and its subclasses with other
statuses.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_Read = TypeVar("_Read")

FAULT = 70  # exit status of a fault of dpscope itself (EX_SOFTWARE of sysexits.h)
READER_GONE = 141  # exit status: 128 + SIGPIPE, of a command whose output nobody reads any more


class DpscopeError(Exception):
    """A mistake of the user or an invalid file, in one line: what, where, what to do."""

    exit_status = 2


def error_line(error: BaseException) -> str:
    """An error in one line: its type, unless it is dpscope's, and the first line of its message."""
    text = str(error) if isinstance(error, DpscopeError) else f"{type(error).__name__}: {error}"
    return next((line.strip() for line in text.splitlines() if line.strip()), text)


def read_option(option: str, text: str, parse: Callable[[str], _Read]) -> _Read:
    """What `parse` makes of an option's text; its ValueError becomes a DpscopeError that names the
    option.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise DpscopeError(f"{option} {error}") from error


def unreadable(path: Path, error: OSError) -> str:
    """Why a file cannot be read, such as ``runs/x.csv does not exist``."""
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist"
    return f"cannot read {path}: {error.strerror}"


class NotComparableError(DpscopeError):
    """Two measurements have nothing in common to compare: a gate can neither pass nor fail."""

    exit_status = 3
