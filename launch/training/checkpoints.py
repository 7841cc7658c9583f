"""Checkpoints as files. Imports no torch.

They are written atomically, sealed and verified before reading. A checkpoint is a zip archive of
`torch.save`. The archive's comment, which `torch.load` ignores, is its seal: a line that identifies
the file, the SHA-256 of everything before the comment and of the description, and the description
as JSON. The zip format's checksums cover neither its directory nor a truncated file.
`torch.distributed.checkpoint.save` writes a folder with a file per rank, without a digest, which is
not replaced as a whole.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from dpscope.profiling.records.training import CHECKPOINT_FORMAT_VERSION, CheckpointDescription
from dpscope.profiling.store.errors import DpscopeError, unreadable
from dpscope.profiling.store.files import atomic_path, write_json
from dpscope.profiling.store.training_folders import TrainingFolder

_MARK = b"dpscope checkpoint\n"
_LONGEST_COMMENT_BYTES = 0xFFFF
_WHAT_TO_DO = "remove it, or give --fresh, to start over"


class CheckpointFolder:
    """The checkpoints of one training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last, self.best = path / "last.pt", path / "best.pt"

    def write(
        self, description: CheckpointDescription, write: Callable[[BinaryIO], None], best: bool
    ) -> None:
        """Write the last checkpoint, which is complete at every moment; with `best` it is also the
        best one.
        """
        write_sealed(self.last, description, write)
        if best:
            _give_name(self.last, self.best)


def write_sealed(
    path: Path, description: CheckpointDescription, write: Callable[[BinaryIO], None]
) -> None:
    """Write and seal a checkpoint atomically; `write` writes a zip archive without a comment."""
    encoded = msgspec.json.encode(description)
    with atomic_path(path) as temporary, open(temporary, "w+b") as file:
        write(file)
        file.seek(-2, os.SEEK_END)
        body_bytes = file.tell()
        assert file.read() == b"\0\0", "an archive without a comment ends with its length, 0"
        comment = _MARK + _digest(file, body_bytes, encoded) + b"\n" + encoded
        assert len(comment) <= _LONGEST_COMMENT_BYTES
        file.seek(body_bytes)
        file.write(len(comment).to_bytes(2, "little") + comment)
        file.flush()
        os.fsync(file.fileno())


def _give_name(file: Path, name: Path) -> None:
    """Give a file a second name, replacing any file of that name; copies it where links are not
    supported.
    """
    with atomic_path(name) as temporary:
        temporary.unlink()
        try:
            os.link(file, temporary)
        except OSError:
            shutil.copyfile(file, temporary)


def verify(path: Path) -> CheckpointDescription:
    """The description of a complete and unchanged checkpoint; raises DpscopeError for any other
    file.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LONGEST_COMMENT_BYTES - 2))
            before, mark, seal = file.read().rpartition(_MARK)
            comment_bytes = len(mark + seal)
            digest, _, encoded = seal.partition(b"\n")
            length = comment_bytes.to_bytes(4, "little")[:2]
            whole = (
                before.endswith(length)
                and _digest(file, size - comment_bytes - 2, encoded) == digest
            )
    except OSError as error:
        raise DpscopeError(f"the checkpoint: {unreadable(path, error)}; check the path") from error
    if not mark:
        raise DpscopeError(
            f"{path} is no checkpoint of dpscope's, or is torn: its end is missing; {_WHAT_TO_DO}"
        )
    if not whole:
        raise DpscopeError(
            f"{path} is damaged or torn: its bytes are not those that were written; {_WHAT_TO_DO}"
        )
    version = msgspec.json.decode(encoded, type=_Version)
    try:  # with a correct digest, one that cannot be decoded was written by another version
        if version.format_version == CHECKPOINT_FORMAT_VERSION:
            return msgspec.json.decode(encoded, type=CheckpointDescription)
        reason = f"it has format {version.format_version}, this dpscope reads {CHECKPOINT_FORMAT_VERSION}"
    except msgspec.ValidationError as error:
        reason = str(error)
    raise DpscopeError(
        f"{path} was written by dpscope {version.dpscope_version} ({reason}); go on with that version"
    )


def _digest(file: BinaryIO, body_bytes: int, encoded: bytes) -> bytes:
    """Hexadecimal SHA-256 of a file's first bytes and the description."""
    digest = hashlib.sha256()
    file.seek(0)
    while block := file.read(min(body_bytes - file.tell(), 1 << 20)):
        digest.update(block)
    digest.update(encoded)
    return digest.hexdigest().encode()


class _Version(msgspec.Struct):
    """Fields that every version's description has."""

    format_version: int
    dpscope_version: str


def restore_progress(had: CheckpointDescription, folder: TrainingFolder) -> None:
    """Remove the records of epochs after the checkpoint that a training continues from."""
    if folder.epochs_path.exists():
        write_json(
            folder.epochs_path, [record for record in folder.epochs() if record.epoch <= had.epochs]
        )
