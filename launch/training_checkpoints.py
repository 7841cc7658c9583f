"""The checkpoints of a training, for whoever starts and ends its jobs. Imports no torch."""

from dpscope.launch.checkpoint_files import CheckpointFolder, verify
from dpscope.launch.resume import Resumption
from dpscope.profiling.run_store import write_json
from dpscope.profiling.train_store import TrainingFolder

SAVING_GRACE_S = 35.0
"""For a job that was told to end: torchrun gives its workers 30 seconds, as Slurm does by default."""


def take_up(found: Resumption, folder: TrainingFolder) -> None:
    """Make the checkpoint that a training goes on from its last one, and forget the epochs after it."""
    checkpoints = CheckpointFolder(folder.checkpoints_path)
    if found.path == checkpoints.previous:
        checkpoints.go_back()
    if folder.epochs_path.exists():
        write_json(folder.epochs_path, [record for record in folder.epochs() if record.epoch <= found.had.epochs])


def told_place(folder: TrainingFolder) -> str:
    """Where a training that ended early was saved."""
    last = CheckpointFolder(folder.checkpoints_path).last
    return f"saved at {verify(last).place}" if last.exists() else "nothing was saved yet"
