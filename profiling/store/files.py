"""Files written whole or not at all, and read into types."""

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from dpscope.profiling.store.errors import DpscopeError, unreadable

_Stored = TypeVar("_Stored")


def natural_order(path: Path) -> list[tuple[int, str]]:
    """A key that sorts numbers in paths by value: repeat2 before repeat10.

    >>> sorted(map(Path, ("repeat10", "repeat2", "a10/b")), key=natural_order)[1:]
    [PosixPath('repeat2'), PosixPath('repeat10')]
    """
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.split(r"(\d+)", str(path))
    ]


@contextmanager
def atomic_path(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A temporary file next to `path`, renamed to it when the block ends, removed if the block
    fails.

    It has this mode, less what the user's umask withholds. To be written in place: another file of
    its name would have its mode.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{path.name}-{secrets.token_hex(4)}")  # as folders.py expects
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file whole or not at all."""
    with atomic_path(path, mode) as temporary, open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_together(contents: Mapping[Path, bytes | str]) -> None:
    """Write several files, text as UTF-8, and rename them into place only once all are written."""
    with ExitStack() as stack:
        for path, content in contents.items():
            temporary = stack.enter_context(atomic_path(path))
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_text(path: Path, content: str) -> None:
    """Write a UTF-8 text file whole or not at all."""
    write_bytes(path, content.encode())


def write_json(path: Path, value: object, mode: int = 0o666) -> None:
    """Write a stored type (or plain data) as indented JSON, whole or not at all."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n", mode)


def read_json(path: Path, kind: type[_Stored]) -> _Stored:
    """Read a stored type; raises DpscopeError naming file and field when it does not fit."""
    if (stored := read_json_if_there(path, kind)) is None:
        raise DpscopeError(f"{path} does not exist")
    return stored


def read_json_if_there(path: Path, kind: type[_Stored]) -> _Stored | None:
    """`read_json`, or None if the file does not exist; another process may remove it at any
    moment.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DpscopeError(unreadable(path, error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise DpscopeError(
            f"{path} is not a {kind.__name__} this version of dpscope can read: {reason}; "
            "measure the run again, or read it with the dpscope that wrote it"
        ) from error


def decodes(path: Path, kind: type[object]) -> bool:
    """Whether a file exists and fits a stored type."""
    try:
        return read_json_if_there(path, kind) is not None
    except DpscopeError:
        return False
