"""Trainings in TensorBoard while they run: a TensorBoard run per cell and seed. Imports no torch.

R/tensorboard/training/<cell>/seed<k>/    one event file: a session of the HParams page and the scalars of every epoch
"""

from pathlib import Path

from dpscope.profiling.mirrors.event_log import EventLog
from dpscope.profiling.mirrors.mirror import TrainingMirror, training_scalars, training_settings
from dpscope.profiling.records.training import EpochRecord, TrainConfig
from dpscope.profiling.store.ownership import remove_events


def events_folder(run: Path) -> Path:
    """Where the events of a run folder's trainings lie."""
    return run / "tensorboard" / "training"


def training_folder(run: Path, record: EpochRecord) -> Path:
    """Where the events of an epoch's training lie."""
    return events_folder(run) / record.cell / f"seed{record.seed}"


def training_events(run: Path, config: TrainConfig | None) -> TrainingMirror:
    """Shows the trainings of a run folder in TensorBoard; nothing is written before the first epoch."""
    return TrainingMirror(lambda first: _TensorBoardRun(run, first, config))


class _TensorBoardRun:
    def __init__(self, run: Path, first: EpochRecord, config: TrainConfig | None) -> None:
        folder = training_folder(run, first)
        remove_events(folder)
        self._planned = config.epochs if config is not None else 0
        self._trained = 0
        self._log = EventLog(folder)
        self._log.begin_session(training_settings(first, config))

    def epoch(self, record: EpochRecord) -> None:
        for tag, value in training_scalars(record).items():
            self._log.scalar(tag, value, record.epoch, record.ended_at_s)
        self._log.flush()
        self._trained = record.epoch

    def close(self) -> None:
        if self._trained >= self._planned:  # HParams calls a session without an end running
            self._log.end_session()
        self._log.close()
