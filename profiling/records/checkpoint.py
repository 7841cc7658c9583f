"""What a checkpoint says of itself, as types; it can be read without torch. Imports no torch."""

from typing import Literal

from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.records.training import ResolvedTrainConfig

CHECKPOINT_FORMAT_VERSION = 1


class CheckpointDescription(Stored, frozen=True, kw_only=True):
    """Which training a checkpoint is of, and where in it.

    `epochs` are finished; `step` of the next one's steps are taken, and where that is all of them, only its evaluation
    is missing.
    """

    format_version: int = CHECKPOINT_FORMAT_VERSION
    dpscope_version: str
    torch_version: str
    created_at: str  # ISO 8601, UTC
    config: ResolvedTrainConfig
    cell: Cell
    seed: int
    device_type: Literal["cuda", "cpu"]
    threads_per_process: int
    train_samples: int  # of the data set, repeated ones not counted
    steps_per_epoch: int
    epochs: int
    step: int
    test_accuracy: float | None  # percent, after the last finished epoch
    findings: tuple[Finding, ...] = ()  # what differs because the training was begun by another cell

    @property
    def place(self) -> str:
        """Such as ``epoch 3, after 40 steps``."""
        return f"epoch {self.epochs + 1}, after {self.step} steps" if self.step else f"the end of epoch {self.epochs}"
