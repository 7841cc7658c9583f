"""Curves of trainings in TensorBoard after they ran, and what HParams needs to tell trainings apart.

Scalars are written while trainings run (training_event_log); here only those are written that are not there.
"""

from itertools import groupby

from dpscope.analysis.training.data import TrainingData
from dpscope.profiling.mirrors.event_log import HyperParameter
from dpscope.profiling.mirrors.mirror import TEST_ACCURACY, TEST_LOSS, TRAINED_S, training_settings
from dpscope.profiling.mirrors.tensorboard_mirror import training_events, training_folder
from dpscope.profiling.records.training import EpochRecord
from dpscope.profiling.store.training_folders import TrainFolder

TRAINING_METRICS = (TEST_ACCURACY, TEST_LOSS, TRAINED_S)
"""Tags that HParams sets beside a training's settings, each at its last epoch."""


def training_sessions(data: TrainingData) -> list[dict[str, HyperParameter]]:
    """The settings of every training; none of a train.json of another program, which does not tell them."""
    config = data.manifest.config if data.manifest else None
    return [training_settings(epochs[0], config) for epochs in _stored_epochs(data)]


def write_missing_events(data: TrainingData) -> None:
    """Write the curves of those trainings that TensorBoard's folder does not have."""
    log = training_events(data.folder, data.manifest.config if data.manifest else None)
    for epochs in _stored_epochs(data):
        if not training_folder(data.folder, epochs[0]).exists():
            log.write(epochs)
    log.close()


def _stored_epochs(data: TrainingData) -> list[list[EpochRecord]]:
    """The epochs of each training as dpscope stored them."""
    if data.manifest is None:
        return []
    epochs = TrainFolder(data.folder).log().epochs
    ordered = sorted(epochs, key=lambda record: (record.cell, record.seed, record.epoch))
    return [list(group) for _, group in groupby(ordered, key=lambda record: (record.cell, record.seed))]
