"""Checkpoints as files. Imports no torch.

A checkpoint is a zip archive of `torch.save`, written whole or not at all. The archive's comment,
which `torch.load` ignores, is the description as JSON; its checksums show damage.
"""

import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from dpscope.profiling.records.training import CHECKPOINT_FORMAT_VERSION, CheckpointDescription
from dpscope.profiling.store.errors import DpscopeError, unreadable
from dpscope.profiling.store.files import atomic_path, write_json
from dpscope.profiling.store.training_folders import TrainingFolder

# what zipfile raises for damaged archives, and msgspec for another description
_DAMAGE = (
    zipfile.BadZipFile,
    ValueError,
    RuntimeError,
    EOFError,
    struct.error,
    msgspec.DecodeError,
)


class CheckpointFolder:
    """The checkpoints of one training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last, self.best = path / "last.pt", path / "best.pt"

    def write(
        self, description: CheckpointDescription, write: Callable[[Path], None], best: bool
    ) -> None:
        """Write the last checkpoint, which is complete at every moment; with `best` it is also the
        best one. `write` makes the archive.
        """
        with atomic_path(self.last) as temporary:
            write(temporary)
            with zipfile.ZipFile(temporary, "a") as archive:
                archive.comment = msgspec.json.encode(description)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        if best:
            _give_name(self.last, self.best)


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
    damaged = DpscopeError(
        f"{path} is no checkpoint of this version of dpscope, or is torn or damaged; remove it, or give --fresh, to start over"
    )
    try:
        with zipfile.ZipFile(path) as archive:
            description = msgspec.json.decode(archive.comment, type=CheckpointDescription)
            whole = archive.testzip() is None
    except OSError as error:
        raise DpscopeError(f"the checkpoint: {unreadable(path, error)}; check the path") from error
    except _DAMAGE as error:
        raise damaged from error
    if not whole or description.format_version != CHECKPOINT_FORMAT_VERSION:
        raise damaged
    return description


def restore_progress(had: CheckpointDescription, folder: TrainingFolder) -> None:
    """Remove the records of epochs after the checkpoint that a training continues from."""
    if folder.epochs_path.exists():
        kept = [record for record in folder.epochs() if record.epoch <= had.epochs]
        write_json(folder.epochs_path, kept)
