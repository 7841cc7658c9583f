"""Two folders of trainings side by side: what a setting, such as mixed precision, changes in accuracy and time."""

from dataclasses import replace

from dpscope.analysis.training.data import TrainingData
from dpscope.analysis.training.seed_statistics import CellDifference, cell_difference, epoch_spread
from dpscope.profiling.machine.conditions import SETTINGS, difference_findings, setting_differences
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.settings import own_settings, setting_names
from dpscope.profiling.records.training import TrainConfig

_SHARED = tuple(name for name in SETTINGS if name in setting_names(TrainConfig))
_OF_NO_RESULT = ("seeds", "eval_batch_size", "timeout_s")
_LEARNING = tuple(name for name in own_settings(TrainConfig) if name not in _OF_NO_RESULT)


def compare_trained_cells(before: TrainingData, after: TrainingData) -> list[CellDifference]:
    """Every cell that both folders trained: after beside before."""
    spread = epoch_spread([*before.trained, *after.trained])
    earlier = {cell.name: cell for cell in before.trained}
    return [
        replace(cell_difference(cell, earlier[cell.name], spread), against=str(before.folder))
        for cell in after.trained
        if cell.name in earlier
    ]


def training_setting_findings(before: TrainingData, after: TrainingData) -> list[Finding]:
    """Settings and machines that differ; nothing is known of trainings of other programs."""
    first, second = before.manifest, after.manifest
    if first is None or second is None:
        return []
    return difference_findings(first, second, setting_differences(first.config, second.config, (*_SHARED, *_LEARNING)))
