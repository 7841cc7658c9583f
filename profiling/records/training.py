"""What trainings store, as types: configuration, plan, epochs, results, what a checkpoint says of itself. Imports no torch.

R/train.json                                  TrainLog: every epoch of every training, rewritten while they run
R/train_manifest.json                         TrainManifest, written once
R/training/<cell>/seed<k>/epochs.json         list of EpochRecord of that training, rewritten whole after each epoch
R/training/<cell>/seed<k>/log.txt             of its torchrun job
R/training/<cell>/seed<k>/checkpoints/        last.pt, previous.pt (the one before), best.pt
R/training/<cell>/seed<k>/result.json         TrainResult; a training without one, or with another status than ok, is not done

They lie beside what `dpscope run --out R` stores, so that accuracy can be set beside measured times. Accuracies are
percent, losses are means over samples, times are seconds.
"""

from typing import Literal

from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.matrix import Matrix, ResolvedMatrix
from dpscope.profiling.records.run import Cell, CellStatus, Environment, Host, PlannedCell
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.records.strategies import CellStrategy

TRAIN_SCHEMA_VERSION = 1
CHECKPOINT_FORMAT_VERSION = 1

TRAINING_MAY_CHANGE = ("seeds", "epochs", "checkpoint_steps", "max_restarts", "timeout_s", "download")
"""Settings that may change when trainings are added or go on: rates do not depend on them."""

LearningRateScaling = Literal["none", "sqrt", "linear"]


class TrainConfig(Stored, frozen=True):
    """What `dpscope train` is asked for: the parts shared with `dpscope run`, and the settings of learning.

    Of `matrix`, `batch_sizes` are global under strong scaling, which is training's default, and per device under weak
    scaling. Of `workload`, `seed` has no meaning here: there are `seeds`.
    """

    workload: Workload
    optimizer: Optimizer
    matrix: Matrix
    epochs: int
    seeds: tuple[int, ...] = (0,)  # of weights, order of samples and augmentation: each is a training of every cell
    milestones: tuple[int, ...] = ()  # epochs after which the learning rate is multiplied by gamma
    gamma: float = 0.1
    learning_rate_scaling: LearningRateScaling = "none"  # by the growth of the global batch over a single device's
    warmup_epochs: int = 0  # over which the learning rate grows linearly, step by step
    label_smoothing: float = 0.0  # of the training loss alone
    augment: bool = True
    eval_batch_size: int = 256  # samples a process evaluates at a time
    checkpoint_steps: int | None = None  # a checkpoint every so many steps, besides that at the end of every epoch
    max_restarts: int = 0  # times torchrun restarts a training that fails, from its last checkpoint
    timeout_s: float = 7 * 24 * 3600.0  # of one training's job


class ResolvedTrainConfig(TrainConfig, frozen=True, kw_only=True):
    """What will be trained: a configuration with nothing left to choose for this machine."""

    matrix: ResolvedMatrix


class PlannedTraining(Stored, frozen=True):
    """A cell to be trained with each seed, or why it is left out, and what follows from its batch."""

    planned: PlannedCell
    learning_rate: float  # after scaling, before milestones
    train_samples: int  # of the data set
    repeated_samples: int  # an epoch trains on these twice, to fill the shares of all devices

    @property
    def cell(self) -> Cell:
        return self.planned.cell


class TrainManifest(Stored, frozen=True):
    """`train_manifest.json`: written once, by `dpscope train`."""

    schema_version: int
    dpscope_version: str
    created_at: str  # ISO 8601, UTC
    config: ResolvedTrainConfig
    device_type: Literal["cuda", "cpu"]
    threads_per_process: int
    environment: Environment
    plan: tuple[PlannedTraining, ...]
    findings: tuple[Finding, ...] = ()
    hosts: tuple[Host, ...] = ()  # of trainings over several nodes, as they were started last


class EpochRecord(Stored, frozen=True):
    """One epoch of one training, over all its processes. `None` is a loss that is not finite: the training diverged."""

    cell: str  # its name, such as ddp-d2-b32
    strategy: CellStrategy
    devices: int
    variant: str
    batch_size: int  # per device
    global_batch_size: int
    seed: int
    epoch: int  # epochs trained so far, this one included: the first is 1
    train_loss: float | None  # the loss that was minimised: mean over the epoch's samples, each before its step
    train_accuracy: float  # percent, of the same forward passes
    test_loss: float | None  # plain cross-entropy, after the epoch
    test_accuracy: float  # percent
    learning_rate: float  # of the epoch's last step
    train_s: float  # wall time of the epoch's steps, loading included, evaluation not
    evaluation_s: float
    trained_s: float  # sum of train_s so far
    ended_at_s: float  # Unix time
    train_samples: int  # trained on, repeated ones included
    test_samples: int


class TrainResult(Stored, frozen=True):
    """`result.json` of a training, renamed into place last."""

    cell: Cell
    seed: int
    status: CellStatus
    epochs: int  # trained
    duration_s: float  # of the job that ended it, start of torchrun to its end
    parameter_count: int | None = None
    findings: tuple[Finding, ...] = ()  # such as what differs since it was resumed under other conditions
    message: str = ""  # why it is not ok, in one line
    log_tail: tuple[str, ...] = ()


class TrainLog(Stored, frozen=True):
    """`train.json`: what all trainings of a run folder learned so far."""

    schema_version: int
    epochs: tuple[EpochRecord, ...]
    findings: tuple[Finding, ...] = ()


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
        return (
            f"epoch {self.epochs + 1}, after {counted(self.step, 'step')}"
            if self.step
            else f"the end of epoch {self.epochs}"
        )
