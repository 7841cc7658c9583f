"""Mirrors epochs of running trainings: the same scalars for TensorBoard and wandb. Imports no
torch.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from dpscope.profiling.records.training import EpochRecord, TrainConfig

TEST_ACCURACY = "accuracy_percent/test"
TEST_LOSS = "loss/test"
TRAINED_S = "seconds/trained"
MEANINGS = {
    "loss/train": "Mean over the epoch's samples before each step, label smoothing included",
    TEST_LOSS: "After the epoch, over the whole test set",
    "accuracy_percent/train": "Percent of the epoch's samples, before each step",
    TEST_ACCURACY: "Percent of the whole test set, after the epoch",
    "learning_rate": "At the epoch's last step",
    "seconds/train_epoch": "Wall time of the epoch's steps, loading included",
    "seconds/evaluation": "Wall time of the test after the epoch",
    TRAINED_S: "Wall time of the steps of all epochs so far",
}
"""What the scalars of `training_scalars` are, by tag."""


WriteEpoch = Callable[[EpochRecord], None]
"""Writes an epoch at once."""


class TrainingMirror:
    """Writes every epoch once; trainings follow one another, each with its own run.

    A resumed training starts its run again with the epochs of the earlier process, so that one run
    holds all epochs.
    """

    def __init__(
        self, open_run: Callable[[EpochRecord], AbstractContextManager[WriteEpoch]]
    ) -> None:
        """`open_run` gets the training's first epoch and replaces the run of an earlier process;
        the context ends the run.
        """
        self._open_run = open_run
        self._training: tuple[str, int] | None = None  # cell and seed
        self._run = ExitStack()
        self._last_epoch = 0
        self._write: WriteEpoch

    def write(self, records: Sequence[EpochRecord]) -> None:
        """Write the epochs that are not written yet; `records` are all epochs of one training so
        far, in order.
        """
        for record in records:
            if self._training != (record.cell, record.seed):
                self.close()
                self._training = (record.cell, record.seed)
                self._last_epoch = 0
                self._write = self._run.enter_context(self._open_run(record))
            if record.epoch > self._last_epoch:
                self._write(record)
                self._last_epoch = record.epoch

    def close(self) -> None:
        """End the run of the training that was written last."""
        self._training = None
        self._run.close()


def training_scalars(record: EpochRecord) -> dict[str, float]:
    """An epoch's numbers by tag, without a loss that is not finite. Accuracies are percent."""
    scalars = {
        "loss/train": record.train_loss,
        TEST_LOSS: record.test_loss,
        "accuracy_percent/train": record.train_accuracy,
        TEST_ACCURACY: record.test_accuracy,
        "learning_rate": record.learning_rate,
        "seconds/train_epoch": record.train_s,
        "seconds/evaluation": record.evaluation_s,
        TRAINED_S: record.trained_s,
    }
    return {tag: value for tag, value in scalars.items() if value is not None}


def training_settings(
    record: EpochRecord, config: TrainConfig | None
) -> dict[str, str | float | int | bool]:
    """The settings of a training; without a config, only those stored with its epochs."""
    settings: dict[str, str | float | int | bool] = {
        "strategy": record.strategy,
        "devices": record.devices,
        "batch_size": record.batch_size,
        "global_batch_size": record.global_batch_size,
        "variant": record.variant or "none",
        "seed": record.seed,
    }
    if config is not None:
        settings |= {
            "model": config.workload.model,
            "data": config.workload.data,
            "amp": config.workload.amp,
            "epochs": config.epochs,
            "base_learning_rate": config.optimizer.learning_rate,
        }
    return settings
