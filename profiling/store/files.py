"""Files written whole or not at all, and read into types."""

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.settings import declarations, in_parts
from dpscope.profiling.records.stored import with_current_names
from dpscope.profiling.store.errors import DpscopeError, unreadable

_Stored = TypeVar("_Stored")


def natural_order(path: Path) -> list[tuple[int, str]]:
    """A key that sorts numbers in paths by value: repeat2 before repeat10.

    >>> sorted(map(Path, ("repeat10", "repeat2", "a10/b")), key=natural_order)[1:]
    [PosixPath('repeat2'), PosixPath('repeat10')]
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


@contextmanager
def atomic_path(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A temporary file next to `path`, renamed to it when the block ends, removed if the block fails.

    It has this mode, less what the user's umask withholds. To be written in place: another file of its name would have its mode.
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
    """`read_json`, or None if the file does not exist; another process may remove it at any moment."""
    try:
        return decoded(path.read_bytes(), kind)
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


def decoded(content: bytes, kind: type[_Stored]) -> _Stored:
    """A stored file's content as a type, in the form of this version or an earlier one; raises msgspec.DecodeError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        plain = msgspec.json.decode(content)
        if (current := _with_config_in_parts(with_current_names(plain), kind)) == plain:
            raise
        return msgspec.convert(current, kind, str_keys=True)


def _with_config_in_parts(content: object, kind: object) -> object:
    """Plain data of a file of an earlier version with its `config` in the parts of the type `kind`; other data unchanged.

    Earlier versions stored all settings of a run in one object, and those that a training shares with a run under `run`.
    Unknown settings stay outside the parts, so that decoding refuses them.
    """
    config_kind = getattr(kind, "__annotations__", {}).get("config")
    if not isinstance(content, dict) or not isinstance(config := content.get("config"), dict):
        return content
    if not (isinstance(config_kind, type) and issubclass(config_kind, msgspec.Struct)):
        return content
    shared = config.get("run", {})
    if in_parts({}, config_kind).keys() & config.keys() or not isinstance(shared, dict):
        return content
    settings = {**shared, **{name: value for name, value in config.items() if name != "run"}}
    known = declarations(RunConfig) | declarations(config_kind)
    unknown = {name: value for name, value in settings.items() if name not in known}
    return {**content, "config": {**in_parts(settings, config_kind), **unknown}}
