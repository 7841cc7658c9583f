"""Accuracy in the comparison of measured cells: what was trained in the same run folder, beside its speed."""

from dpscope.analysis.cells.columns import VALUE_RANGE
from dpscope.analysis.cells.row import Row
from dpscope.analysis.runs.cell_data import TRACES_ALONE, AnyCell
from dpscope.analysis.training.data import TrainedCell, TrainingData
from dpscope.analysis.training.seed_statistics import final_accuracy
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.run import Cell

_COLUMNS = ("test_accuracy_percent", *VALUE_RANGE.of("test_accuracy_percent"), "test_accuracy_seeds")


def put_accuracy(row: Row, cell: AnyCell, workload: Workload | None, training: TrainingData | None) -> None:
    """Fill a measured cell's columns of learning, or say why they are missing; `workload` is the measurement's, None: traces."""
    if workload is None or not isinstance(cell, Cell):
        trained: TrainedCell | str = TRACES_ALONE
    elif training is None:
        trained = "nothing was trained here (`dpscope train` into this folder)"
    else:
        trained = _other_settings(training, workload) or trained_like(training, cell)
    if isinstance(trained, str):
        row.clear((*_COLUMNS, "trained_global_batch_size"), trained)
        return
    accuracy = final_accuracy(trained)
    values = (accuracy.value, accuracy.smallest, accuracy.largest, accuracy.count or None)
    row.put(f"no training of {trained.name} has all its epochs", **dict(zip(_COLUMNS, values, strict=True)))
    row.put("train.json does not tell the batch", trained_global_batch_size=trained.global_batch_size)


def _other_settings(training: TrainingData, workload: Workload) -> str | None:
    """Why the trainings say nothing about these measurements, None if they do or do not tell how they were made."""
    if training.manifest is None:
        return None
    trained = training.manifest.config.workload
    for name in ("model", "amp"):
        if getattr(trained, name) != getattr(workload, name):
            return f"trained with {name} {getattr(trained, name)}, measured with {getattr(workload, name)}"
    return None


def trained_like(training: TrainingData, cell: Cell) -> TrainedCell | str:
    """The trained cell that a measured one stands for, or why there is none.

    Strategy, devices and variant are the same; the batch per device too where that was trained, else the global batch,
    else the only one that was.
    """
    alike = [
        other
        for other in training.trained
        if (other.strategy, other.devices, other.variant) == (cell.strategy, cell.devices, cell.variant)
    ]
    for same in (
        [other for other in alike if other.batch_size == cell.batch_size],
        [other for other in alike if other.global_batch_size == cell.global_batch_size],
        alike,
    ):
        if len(same) == 1:
            return same[0]
    if alike:
        return f"trained with other batches only: {', '.join(other.name for other in alike)}"
    return "its strategy on that many devices was not trained"
