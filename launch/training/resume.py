"""Resuming from a checkpoint: whether its settings are the same, and what differs under another cell. Imports no torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.planning.run_config import flag_name
from dpscope.launch.training.cells import TrainJob
from dpscope.launch.training.checkpoint_folder import CheckpointFolder, verify
from dpscope.profiling.records.config import Optimizer
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.learning_codes import LearningCode
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.settings import settings_of, top_level_settings, value_text
from dpscope.profiling.records.training import TRAINING_MAY_CHANGE, CheckpointDescription, TrainConfig
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.training_folders import TrainingFolder

# What must be the same for a training to be the one that was begun. How batches are loaded and which cells there are
# may change, and so may the number of epochs: learning rates do not depend on it.
_OF_LEARNING = (
    *("model", "data", "samples", "amp"),
    *Optimizer.__struct_fields__,
    *(name for name in top_level_settings(TrainConfig) if name not in (*TRAINING_MAY_CHANGE, "eval_batch_size")),
)

PREVIOUS = "previous"
"""Instead of a checkpoint's path: the one before a training's last one."""

OwnCheckpoint = Literal["last", "previous", "none"]


@dataclass(frozen=True)
class Resumption:
    """The checkpoint that a training continues from."""

    path: Path
    had: CheckpointDescription
    findings: tuple[Finding, ...]  # what differs since


def resumption(job: TrainJob, own: OwnCheckpoint = "last") -> Resumption | None:
    """The verified checkpoint that a training continues from; None if it starts from the beginning.

    This is a checkpoint of this training, chosen by `own`, or, if it has none, the job's `resume_from`. Raises DpscopeError for
    a checkpoint that is incomplete or has other settings.
    """
    mine, path = job.checkpoints, job.resume_from
    if own == PREVIOUS and mine.previous.exists():
        path = mine.previous
    elif own != "none" and mine.last.exists():
        if own == PREVIOUS:
            raise DpscopeError(
                f"--resume-from {PREVIOUS}: {mine.path} holds none before its last one; remove {job.folder.path} to start this "
                "training over"
            )
        path = mine.last
    if path is None:
        return None
    had = verify(path)
    check_same_learning(path, had, job.config, job.cell, job.seed)
    if path == job.resume_from and had.epochs >= job.config.epochs:
        raise DpscopeError(
            f"--resume-from {path}: it is at {had.place} already, and --epochs {job.config.epochs} leaves nothing to "
            "train; give more epochs"
        )
    return Resumption(path=path, had=had, findings=what_differs(had, job.cell, job.kind, job.threads))


def restore_progress(found: Resumption, folder: TrainingFolder) -> None:
    """Make the checkpoint that a training continues from its last one, and remove the records of later epochs."""
    checkpoints = CheckpointFolder(folder.checkpoints_path)
    if found.path == checkpoints.previous:
        checkpoints.go_back()
    if folder.epochs_path.exists():
        write_json(folder.epochs_path, [record for record in folder.epochs() if record.epoch <= found.had.epochs])


def describe_saved_state(folder: TrainingFolder) -> str:
    """The position at which a training that ended early was saved."""
    last = CheckpointFolder(folder.checkpoints_path).last
    return f"saved at {verify(last).place}" if last.exists() else "nothing was saved yet"


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
    differences = list(_differences(had, cell, device_type, threads_per_process))
    if not differences:
        return ()
    finding = LearningCode.RESUMED_UNDER_OTHER_CONDITIONS.finding(
        message=f"{cell.name} with seed {had.seed} goes on from {had.place} of {had.cell.name}: {'; '.join(differences)}."
    )
    return (finding,)


def _differences(
    had: CheckpointDescription, cell: Cell, device_type: DeviceType, threads_per_process: int
) -> Iterator[str]:
    then = had.cell
    together, before = (one.batch_size // one.options.accumulate for one in (cell, then))  # samples of a micro-batch
    repeated, repeated_before = (-had.train_samples % one.devices for one in (cell, then))  # by DistributedSampler
    if (then.strategy, then.devices) != (cell.strategy, cell.devices):
        yield "gradients are summed in another order, so results differ in their last digits from this step on"
    if then.global_batch_size != cell.global_batch_size:
        yield (
            f"a step trains on {counted(cell.global_batch_size, 'sample')} instead of {then.global_batch_size}, an epoch has "
            f"{counted(math.ceil(had.train_samples / cell.global_batch_size), 'step')} instead of {had.steps_per_epoch}, "
            "and learning rates are those of this cell"
        )
    elif then.devices != cell.devices:
        yield "the global batches stay the same, divided among other devices"
    if together != before:
        yield f"batch norm, if the model has it, takes its statistics over {counted(together, 'sample')} instead of {before}"
    if repeated != repeated_before:
        yield f"an epoch repeats {counted(repeated, 'sample')} instead of {repeated_before}"
    if then.processes != cell.processes:
        first, end = sorted((then.processes, cell.processes))
        ranks = f"rank {first}" if end == first + 1 else f"ranks {first} to {end - 1}"
        yield (
            f"{ranks} had no random numbers (of dropout) yet and draw new ones from the seed"
            if cell.processes > then.processes
            else f"the random numbers (of dropout) of {ranks} come to an end"
        )
    if then.variant != cell.variant:
        yield f"the variant is {cell.variant or 'the default'} instead of {then.variant or 'the default'}"
    if had.device_type != device_type:
        yield f"it computes on {device_type} instead of {had.device_type}"
    elif had.threads_per_process != threads_per_process:
        yield (
            f"a process computes with {counted(threads_per_process, 'thread')} instead of {had.threads_per_process}, "
            "which sum in another order"
        )
