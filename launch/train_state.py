"""A training in one process: what it has learned, how far it is, and what it needs to go on."""

from dataclasses import dataclass, field

from torch import nn

from dpscope.launch.learning_sums import LearningSums
from dpscope.launch.training.learning_rate import LearningRateSchedule
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.training import EpochRecord


@dataclass
class TrainState:
    """Everything that changes while training.

    `step` holds the wrapped model, the optimizer, the gradient scaler and the batches. Of the epoch that is being trained,
    `steps` are taken, in `train_s` seconds, the last one with `learning_rate`; `sums` are this process's part of its loss
    and accuracy. Random states are the process's own generators (dropout); batches and augmentation need none.
    """

    model: nn.Module  # unwrapped: its state has the same keys under every strategy
    step: TrainStep
    schedule: LearningRateSchedule
    sums: LearningSums
    records: list[EpochRecord] = field(default_factory=list)  # of finished epochs
    epochs: int = 0  # finished
    steps: int = 0
    train_s: float = 0.0
    learning_rate: float = 0.0
