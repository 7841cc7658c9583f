"""Columns of what was trained in the same run folder."""

from dpscope.analysis.cells.view import CellView, Group, once
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.stats.samples import Range
from dpscope.analysis.traces.ranks.job import TRACES_ALONE
from dpscope.analysis.training.data import TrainedCell, TrainingData
from dpscope.analysis.training.seed_statistics import final_accuracy
from dpscope.profiling.records.run import Cell

LEARNING = Group("learning", "Learning")


@once
def trained(cell: CellView) -> TrainedCell:
    """The trained cell that a measured one stands for."""
    planned, workload = cell.data.cell, known(cell.workload, TRACES_ALONE)
    training = known(cell.training, "nothing was trained here (`dpscope train` into this folder)")
    of_training = training.manifest.config.workload if training.manifest is not None else workload
    _same("amp", of_training.amp, workload.amp)
    _same("model", of_training.model, workload.model)
    return trained_like(training, planned)


def _same(what: str, of_training: str, of_measurement: str) -> None:
    if of_training != of_measurement:
        raise Missing(f"trained with {what} {of_training}, measured with {of_measurement}")


def trained_like(training: TrainingData, cell: Cell) -> TrainedCell:
    """Strategy, devices and variant are the same; the batch per device too where that was trained.

    Else the global batch, else the only one that was. Raises Missing where there is none.
    """
    place = (cell.strategy, cell.devices, cell.variant)
    alike = [
        other
        for other in training.trained
        if (other.strategy, other.devices, other.variant) == place
    ]
    same_batch = [other for other in alike if other.batch_size == cell.batch_size]
    same_global = [other for other in alike if other.global_batch_size == cell.global_batch_size]
    for same in (same_batch, same_global, alike):
        if len(same) == 1:
            return same[0]
    if alike:
        raise Missing(
            f"trained with other batches only: {', '.join(other.name for other in alike)}"
        )
    raise Missing("its strategy on that many devices was not trained")


@once
def _accuracy(cell: CellView) -> Range:
    accuracy = final_accuracy(trained(cell))
    known(accuracy.value, f"no training of {trained(cell).name} has all its epochs")
    return accuracy


@LEARNING.column("test accuracy", "percent", "After training: median over seeds")
def test_accuracy_percent(cell: CellView) -> float:
    return known(_accuracy(cell).value, "not known")


@LEARNING.column("seeds", "count", "Complete trainings behind the accuracy")
def test_accuracy_seeds(cell: CellView) -> int:
    return _accuracy(cell).count


@LEARNING.column(
    "trained with batch",
    "count",
    "Global batch of the trainings; where the cell's own was not trained, the one that was",
)
def trained_global_batch_size(cell: CellView) -> int:
    return known(trained(cell).global_batch_size, "train.json does not hold the batch")
