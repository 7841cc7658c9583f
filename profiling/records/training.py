"""What trainings store, as types: configuration, plan, epochs, results. Imports no torch.

R/train.json                                  TrainLog: every epoch of every training, rewritten
while they run R/train_manifest.json                         TrainManifest, written once
R/training/<cell>/seed<k>/epochs.json         list of EpochRecord of that training, rewritten whole
after each epoch R/training/<cell>/seed<k>/log.txt             of its torchrun job
R/training/<cell>/seed<k>/checkpoints/        last.pt, of the last epoch, and best.pt
R/training/<cell>/seed<k>/result.json         TrainResult; a training without one, or with another
status than ok, is not done

They are in the folder of `dpscope run --out R`, so that accuracy can be compared with measured
times. Accuracies are percent, losses are means over samples, times are seconds.
"""

from typing import Any, ClassVar, Literal

import msgspec

from dpscope.profiling.records.config import (
    ABOVE_0,
    BELOW_1,
    SEED_CHECK,
    TIMEOUT_CHECK,
    Optimizer,
    Workload,
    needs_data,
)
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.matrix import Matrix, ResolvedMatrix
from dpscope.profiling.records.quantities import Amount, Count, Duration, Percent, Positive, Stamp
from dpscope.profiling.records.run import Cell, CellStatus, Environment, Host, PlannedCell
from dpscope.profiling.records.settings import AMOUNT, DATA, Config, at_least, setting
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.records.strategies import CellStrategy
from dpscope.profiling.records.typed_text import whole_numbers

TRAIN_SCHEMA_VERSION = 1

TRAINING_MAY_CHANGE = ("seeds", "epochs", "max_restarts", "timeout_s", "download")
"""Settings that may change when trainings are added or go on: rates do not depend on them."""


def _numbers(text: str) -> tuple[int, ...]:
    return whole_numbers(text) if text else ()


def _seeds_fix(seeds: tuple[int, ...]) -> str:
    if not seeds:
        return "no seed; write it as 0,1,2"
    return "every seed must be 0 or more and below 2^63" if any(map(SEED_CHECK, seeds)) else ""


def _rate_scaling_idle(config: Any) -> str:
    grows = config.matrix.scaling != "strong" or config.learning_rate_scaling == "none"
    return "" if grows else "under --scaling strong the global batch does not grow"


class TrainConfig(Config, frozen=True):
    """The settings of `dpscope train`: the parts shared with `dpscope run`, and the settings of
    learning.

    Of `matrix`, `batch_sizes` are global under strong scaling, which is training's default, and per
    device under weak scaling. Of `workload`, `seed` has no meaning here: there are `seeds`. The
    settings of learning are checked by `check_settings` when they are read, not when a manifest is.
    """

    heading: ClassVar[str] = DATA

    workload: Workload
    optimizer: Optimizer
    matrix: Matrix
    epochs: int = setting(
        msgspec.NODEFAULT, "epochs of every training", heading=AMOUNT, check=at_least(1)
    )
    seeds: tuple[int, ...] = setting(
        (0,),
        "seeds, each of which trains every cell: 0,1,2",
        text=_numbers,
        example="0,1,2",
        check=_seeds_fix,
    )  # of weights, order of samples and augmentation
    milestones: tuple[int, ...] = setting(
        (),
        "epochs after which the learning rate is multiplied by --gamma: 6,8",
        text=_numbers,
        example="6,8",
        check=lambda epochs: (
            "" if min(epochs, default=1) >= 1 else "every milestone must be 1 epoch or more"
        ),
    )
    gamma: float = setting(
        0.1,
        "factor at every milestone",
        check=ABOVE_0,
        idle=lambda config: (
            "" if config.milestones else "there is no --milestones at which the learning rate falls"
        ),
    )
    learning_rate_scaling: Literal["none", "sqrt", "linear"] = setting(
        "none", "none, sqrt or linear in the growth of the global batch", idle=_rate_scaling_idle
    )  # by the growth of the global batch over a single device's
    warmup_epochs: int = setting(
        0, "epochs over which the learning rate grows, step by step", check=at_least(0)
    )
    label_smoothing: float = setting(0.0, "of the training loss, 0 for none", check=BELOW_1)
    augment: bool = setting(
        True,
        "random shifts, and flips of cifar10",
        idle=needs_data(("synthetic", "digits", "cifar10"), "fake images are random already"),
    )
    eval_batch_size: int = setting(
        256, "samples a device tests at a time", heading=AMOUNT, check=at_least(1)
    )
    timeout_s: float = setting(
        7 * 24 * 3600.0,
        "seconds one training may take",
        option="timeout",
        heading=AMOUNT,
        check=TIMEOUT_CHECK,
    )


class ResolvedTrainConfig(TrainConfig, frozen=True, kw_only=True):
    """What will be trained: a configuration with nothing left to choose for this machine."""

    matrix: ResolvedMatrix
    max_restarts: int = 0  # in folders of earlier versions


class PlannedTraining(Stored, frozen=True):
    """A cell to be trained with each seed, or why it is left out, and what follows from its
    batch.
    """

    planned: PlannedCell
    learning_rate: Amount  # after scaling, before milestones
    train_samples: Count  # of the data set
    repeated_samples: Count  # an epoch trains on these twice, to fill the shares of all devices

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
    threads_per_process: Positive
    environment: Environment
    plan: tuple[PlannedTraining, ...]
    findings: tuple[Finding, ...] = ()
    hosts: tuple[Host, ...] = ()  # of trainings over several nodes, as they were started last


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of one training, over all its processes; fields with a default are those that
    curves of other programs may lack.
    """

    strategy: CellStrategy
    devices: Positive
    seed: Stamp
    epoch: Count  # epochs trained so far, this one included: the first is 1
    # the loss that was minimised: mean over the epoch's samples, each before its step; None is a
    # loss that is not finite, as of all losses: the training diverged
    train_loss: float | None
    train_accuracy: Percent  # of the same forward passes
    test_loss: float | None  # the same without label smoothing, after the epoch
    test_accuracy: Percent
    learning_rate: Amount  # of the epoch's last step
    train_s: Duration  # wall time of the epoch's steps, loading included, evaluation not
    evaluation_s: Amount
    variant: str = ""
    batch_size: Positive | None = None  # per device
    global_batch_size: Positive | None = None
    cell: str = ""  # its name, such as ddp-d2-b32
    ended_at_s: Amount | None = None  # Unix time


class EpochRecord(Epoch, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An epoch as `dpscope train` stores it, with all that is known of it."""

    cell: str
    variant: str
    batch_size: Positive
    global_batch_size: Positive
    ended_at_s: Amount
    trained_s: Amount  # sum of train_s so far
    train_samples: Count  # trained on, repeated ones included
    test_samples: Count


class TrainResult(Stored, frozen=True):
    """`result.json` of a training, renamed into place last."""

    cell: Cell
    seed: Stamp
    status: CellStatus
    epochs: Count  # trained
    duration_s: Amount  # of the job that ended it, start of torchrun to its end
    parameter_count: Count | None = None
    findings: tuple[Finding, ...] = ()  # such as how long compilation took
    message: str = ""  # why it is not ok, in one line
    log_tail: tuple[str, ...] = ()


class TrainLog(Stored, frozen=True):
    """`train.json`: what all trainings of a run folder learned so far."""

    schema_version: int
    epochs: tuple[EpochRecord, ...]
    findings: tuple[Finding, ...] = ()
