"""What the processes of one training are told. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.training.checkpoint_folder import CheckpointFolder
from dpscope.launch.training.learning_rate_scaling import scaled_learning_rate
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.training import ResolvedTrainConfig
from dpscope.profiling.store.training_folders import TrainingFolder


@dataclass(frozen=True)
class TrainJob:
    """What a job's processes are to train, and where it goes."""

    config: ResolvedTrainConfig
    cell: Cell
    seed: int
    kind: DeviceType
    threads: int
    folder: TrainingFolder
    resume_from: Path | None = None  # the checkpoint to begin from; its own last one comes first

    @property
    def checkpoints(self) -> CheckpointFolder:
        """Where it is saved."""
        return CheckpointFolder(self.folder.checkpoints_path)

    @property
    def workload(self) -> Workload:
        """What is trained, with this training's seed."""
        return msgspec.structs.replace(self.config.workload, seed=self.seed)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer's settings, with this training's learning rate."""
        learning_rate = scaled_learning_rate(self.config, self.cell)
        return msgspec.structs.replace(self.config.optimizer, learning_rate=learning_rate)
