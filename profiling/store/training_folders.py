"""The files of trainings in a run folder; profiling/records/training.py lists them. Imports no
torch.
"""

from pathlib import Path

from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.training import (
    TRAIN_SCHEMA_VERSION,
    EpochRecord,
    TrainLog,
    TrainManifest,
    TrainResult,
)
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json, read_json_if_there
from dpscope.profiling.store.folders import (
    JobFolder,
    is_dpscope_manifest,
    read_manifest,
    remove_written,
)

TRAIN_LOG_NAME = "train.json"
TRAIN_MANIFEST_NAME = "train_manifest.json"
TRAININGS_NAME = "training"


class TrainingFolder(JobFolder):
    """One training: a cell with a seed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.epochs_path = path / "epochs.json"
        self.last_path = path / "checkpoints" / "last.pt"  # of the last whole epoch
        self.best_path = path / "checkpoints" / "best.pt"  # of the highest test accuracy

    def epochs(self) -> list[EpochRecord]:
        """Its epochs so far, in order."""
        return read_json_if_there(self.epochs_path, list[EpochRecord]) or []

    def result(self) -> TrainResult | None:
        """The training's result, None while it has not ended."""
        return read_json_if_there(self.result_path, TrainResult)

    def clear_attempt(self) -> None:
        """Remove an earlier attempt's files, except its checkpoints and the epochs that led to
        them.
        """
        kept = {self.last_path, self.best_path, self.epochs_path}
        if not self.last_path.exists():
            kept = set()
        remove_written(self.path.parents[2], self.path, lambda path: path in kept)


class TrainFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / TRAIN_MANIFEST_NAME
        self.log_path = path / TRAIN_LOG_NAME

    def training(self, cell: Cell, seed: int) -> TrainingFolder:
        return TrainingFolder(self.path / TRAININGS_NAME / cell.name / f"seed{seed}")

    def manifest(self) -> TrainManifest:
        """The manifest; raises DpscopeError if nothing was trained here, or with another schema."""
        if not self.path.exists():
            raise DpscopeError(
                f"{self.path} does not exist; name a folder that `dpscope train` made"
            )
        if not self.manifest_path.exists():
            raise DpscopeError(
                f"{self.path} holds no training: it has no {TRAIN_MANIFEST_NAME}; see `dpscope train`"
            )
        return read_manifest(self.manifest_path, TrainManifest, TRAIN_SCHEMA_VERSION)

    def log(self) -> TrainLog:
        return read_json(self.log_path, TrainLog)


def holds_epochs(path: Path) -> bool:
    """Whether a folder has a train.json, whether dpscope or another program wrote it."""
    return (path / TRAIN_LOG_NAME).is_file()


def is_train_folder(path: Path) -> bool:
    return is_dpscope_manifest(path / TRAIN_MANIFEST_NAME)
