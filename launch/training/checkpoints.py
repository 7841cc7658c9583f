"""Checkpoints as files, and whether a training can continue from one: what must be the same, and what differs. Imports no torch.

They are written atomically, sealed, kept with their predecessor and verified before reading. A checkpoint is a zip archive of
`torch.save`. The archive's comment, which `torch.load` ignores, is its seal: a line that identifies the file, the SHA-256 of
everything before the comment and of the description, and the description as JSON. The zip format's checksums cover neither its
directory nor a truncated file. `torch.distributed.checkpoint.save` writes a folder with a file per rank, without a digest, which
is not replaced as a whole.
"""

import hashlib
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.planning.run_config import flag_name
from dpscope.profiling.records.config import Optimizer
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.learning_codes import LearningCode
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.settings import settings_of, top_level_settings, value_text
from dpscope.profiling.records.training import (
    CHECKPOINT_FORMAT_VERSION,
    TRAINING_MAY_CHANGE,
    CheckpointDescription,
    TrainConfig,
)
from dpscope.profiling.store.errors import DpscopeError, unreadable
from dpscope.profiling.store.files import atomic_path, write_json
from dpscope.profiling.store.training_folders import TrainingFolder

_MARK = b"dpscope checkpoint\n"
_LONGEST_COMMENT_BYTES = 0xFFFF
_WHAT_TO_DO = "give --resume-from previous for the one before it, another file, or --fresh to start over"


class CheckpointFolder:
    """The checkpoints of one training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last, self.previous, self.best = path / "last.pt", path / "previous.pt", path / "best.pt"

    def write(self, description: CheckpointDescription, write: Callable[[BinaryIO], None], best: bool) -> None:
        """Write the last checkpoint and keep the previous one; with `best` it is also the best one.

        Once `last.pt` has been written, it is complete at every moment.
        """
        if self.last.exists():
            _give_name(self.last, self.previous)
        write_sealed(self.last, description, write)
        if best:
            _give_name(self.last, self.best)

    def go_back(self) -> CheckpointDescription:
        """Replace the last checkpoint by the previous one; raises DpscopeError unless that exists and is complete."""
        description = verify(self.previous)
        _give_name(self.previous, self.last)
        return description


def write_sealed(path: Path, description: CheckpointDescription, write: Callable[[BinaryIO], None]) -> None:
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
    """Give a file a second name, replacing any file of that name; copies it where links are not supported."""
    with atomic_path(name) as temporary:
        temporary.unlink()
        try:
            os.link(file, temporary)
        except OSError:
            shutil.copyfile(file, temporary)


def verify(path: Path) -> CheckpointDescription:
    """The description of a complete and unchanged checkpoint; raises DpscopeError for any other file."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LONGEST_COMMENT_BYTES - 2))
            before, mark, seal = file.read().rpartition(_MARK)
            comment_bytes = len(mark + seal)
            digest, _, encoded = seal.partition(b"\n")
            length = comment_bytes.to_bytes(4, "little")[:2]
            whole = before.endswith(length) and _digest(file, size - comment_bytes - 2, encoded) == digest
    except OSError as error:
        raise DpscopeError(f"the checkpoint: {unreadable(path, error)}; check the path") from error
    if not mark:
        raise DpscopeError(f"{path} is no checkpoint of dpscope's, or is torn: its end is missing; {_WHAT_TO_DO}")
    if not whole:
        raise DpscopeError(f"{path} is damaged or torn: its bytes are not those that were written; {_WHAT_TO_DO}")
    version = msgspec.json.decode(encoded, type=_Version)
    try:  # with a correct digest, one that cannot be decoded was written by another version
        if version.format_version == CHECKPOINT_FORMAT_VERSION:
            return msgspec.json.decode(encoded, type=CheckpointDescription)
        reason = f"it has format {version.format_version}, this dpscope reads {CHECKPOINT_FORMAT_VERSION}"
    except msgspec.ValidationError as error:
        reason = str(error)
    raise DpscopeError(f"{path} was written by dpscope {version.dpscope_version} ({reason}); go on with that version")


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


# What must be the same for a training to be the one that was begun. How batches are loaded and which cells there are
# may change, and so may the number of epochs: learning rates do not depend on it.
_OF_LEARNING = (
    *("model", "data", "samples", "amp"),
    *Optimizer.__struct_fields__,
    *(name for name in top_level_settings(TrainConfig) if name not in (*TRAINING_MAY_CHANGE, "eval_batch_size")),
)


@dataclass(frozen=True)
class Resumption:
    """The checkpoint that a training continues from."""

    path: Path
    had: CheckpointDescription
    findings: tuple[Finding, ...]  # what differs since


def restore_progress(found: Resumption, folder: TrainingFolder) -> None:
    """Make the checkpoint that a training continues from its last one, and remove the records of later epochs."""
    checkpoints = CheckpointFolder(folder.checkpoints_path)
    if found.path == checkpoints.previous:
        checkpoints.go_back()
    if folder.epochs_path.exists():
        write_json(folder.epochs_path, [record for record in folder.epochs() if record.epoch <= found.had.epochs])


def check_same_learning(path: Path, had: CheckpointDescription, config: TrainConfig, cell: Cell, seed: int) -> None:
    """Raise DpscopeError that names the field unless `cell` can continue with `config` from the checkpoint at `path`."""
    trained, requested = settings_of(had.config), settings_of(config)
    pairs = [*((flag_name(name), trained[name], requested[name]) for name in _OF_LEARNING), ("--seeds", had.seed, seed)]
    for flag, then, now in pairs:
        if then != now:
            raise DpscopeError(
                f"{path} was trained with {flag} {value_text(then)}, not {value_text(now)}; give the same settings to go on "
                "from it, or --fresh to start over"
            )
    if had.epochs > config.epochs or (had.epochs == config.epochs and had.step):
        raise DpscopeError(
            f"--epochs {config.epochs}: {path} is at {had.place} already; give more epochs, or start over with --fresh"
        )
    if had.step and had.cell.global_batch_size != cell.global_batch_size:
        raise DpscopeError(
            f"{path} is at {had.place}, in steps of {counted(had.cell.global_batch_size, 'sample')}, and {cell.name} takes "
            f"{cell.global_batch_size}: in the middle of an epoch they do not fit; give a checkpoint from the end of one "
            "(best.pt), or the same global batch"
        )


def what_differs(
    had: CheckpointDescription, cell: Cell, device_type: DeviceType, threads_per_process: int
) -> tuple[Finding, ...]:
    """A finding about everything that differs where a cell continues from another cell's checkpoint, or on another machine.

    Without differences there is none: on a CPU the training then equals an uninterrupted one, bit for bit.
    """
    differences = []
    then = had.cell
    together, before = (one.batch_size // one.options.accumulate for one in (cell, then))  # samples of a micro-batch
    repeated, repeated_before = (-had.train_samples % one.devices for one in (cell, then))  # by DistributedSampler
    if (then.strategy, then.devices) != (cell.strategy, cell.devices):
        differences.append(
            "gradients are summed in another order, so results differ in their last digits from this step on"
        )
    if then.global_batch_size != cell.global_batch_size:
        differences.append(
            f"a step trains on {counted(cell.global_batch_size, 'sample')} instead of {then.global_batch_size}, an epoch has "
            f"{counted(math.ceil(had.train_samples / cell.global_batch_size), 'step')} instead of {had.steps_per_epoch}, "
            "and learning rates are those of this cell"
        )
    elif then.devices != cell.devices:
        differences.append("the global batches stay the same, divided among other devices")
    if together != before:
        differences.append(
            f"batch norm, if the model has it, takes its statistics over {counted(together, 'sample')} instead of {before}"
        )
    if repeated != repeated_before:
        differences.append(f"an epoch repeats {counted(repeated, 'sample')} instead of {repeated_before}")
    if then.processes != cell.processes:
        first, end = sorted((then.processes, cell.processes))
        ranks = f"rank {first}" if end == first + 1 else f"ranks {first} to {end - 1}"
        differences.append(
            f"{ranks} had no random numbers (of dropout) yet and draw new ones from the seed"
            if cell.processes > then.processes
            else f"the random numbers (of dropout) of {ranks} come to an end"
        )
    if then.variant != cell.variant:
        differences.append(f"the variant is {cell.variant or 'the default'} instead of {then.variant or 'the default'}")
    if had.device_type != device_type:
        differences.append(f"it computes on {device_type} instead of {had.device_type}")
    elif had.threads_per_process != threads_per_process:
        differences.append(
            f"a process computes with {counted(threads_per_process, 'thread')} instead of {had.threads_per_process}, "
            "which sum in another order"
        )
    if not differences:
        return ()
    finding = LearningCode.RESUMED_UNDER_OTHER_CONDITIONS.finding(
        message=f"{cell.name} with seed {had.seed} goes on from {had.place} of {had.cell.name}: {'; '.join(differences)}."
    )
    return (finding,)
