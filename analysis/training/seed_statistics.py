"""Accuracy and time of trained cells over their seeds, and differences between two cells or two
folders.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

import numpy as np

from dpscope.analysis.stats import samples
from dpscope.analysis.stats.samples import Range, median_range
from dpscope.analysis.training.data import TrainedCell, TrainingData
from dpscope.profiling.machine.conditions import (
    SETTINGS,
    ConditionDifference,
    difference_findings,
    setting_differences,
)
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.settings import declarations, top_level_settings
from dpscope.profiling.records.training import TrainConfig

FEWEST_SEEDS = 3  # below this the spread over seeds is unknown and no accuracies are compared
_ROUNDING = 1e-9  # percentage points
_EXACT_DIGITS = 9  # that a difference of percentages keeps
_SHARED = tuple(name for name in SETTINGS if name in declarations(TrainConfig))
_WITHOUT_EFFECT = ("seeds", "eval_batch_size", "timeout_s")
_LEARNING = tuple(name for name in top_level_settings(TrainConfig) if name not in _WITHOUT_EFFECT)


def final_accuracy(cell: TrainedCell) -> Range:
    """Test accuracy after the last epoch, percent: median and range over complete trainings."""
    return median_range([training.epochs[-1].test_accuracy for training in cell.complete])


def last_rise_points(cell: TrainedCell) -> float | None:
    """By how much the last epoch raised test accuracy, median over complete trainings; None where
    these have one epoch.
    """
    rises = []
    for training in cell.complete:
        if len(training.epochs) > 1:
            before, last = training.epochs[-2:]
            rises.append(last.test_accuracy - before.test_accuracy)
    return median_range(rises).value


def final_loss(cell: TrainedCell) -> float | None:
    """Median test loss after the last epoch; unknown where one seed's is not finite."""
    losses = [training.epochs[-1].test_loss for training in cell.complete]
    finite = [loss for loss in losses if loss is not None]
    return median_range(finite).value if len(finite) == len(losses) else None


def epoch_train_s(cell: TrainedCell) -> Range:
    """Training time of an epoch without evaluation: median and range over all epochs of all
    seeds.
    """
    return median_range([value for training in cell.trainings for value in training.train_s])


@dataclass(frozen=True)
class TimeToAccuracy:
    """When a test accuracy was first reached. `epoch` and `train_s` are unknown, for `reason`,
    unless every seed reached it.

    `train_s` is the training time without evaluation, up to and including the first epoch that
    reached the accuracy.
    """

    cell: str
    target: float  # percent
    reached: int  # seeds
    seeds: int
    epoch: Range
    train_s: Range
    reason: str


def time_to_accuracy(cell: TrainedCell, target: float) -> TimeToAccuracy:
    """Over all seeds of a cell, including incomplete trainings: a median over only the fast seeds
    would be biased.
    """
    epochs, times = [], []
    for training in cell.trainings:
        for number, epoch in enumerate(training.epochs, 1):
            if epoch.test_accuracy >= target:
                epochs.append(number)
                times.append(sum(training.train_s[:number]))
                break
    seeds, reason = len(cell.trainings), ""
    if len(epochs) < seeds:
        missed = f"{seeds - len(epochs)} of {counted(seeds, 'seed')} did not reach {target:g}%"
        reason = f"{missed}; a median over the others would be too optimistic"
    first_epoch, train_s = median_range(epochs), median_range(times)
    if epochs:
        # there is no epoch 1.5: of two middle ones the later
        first_epoch = replace(first_epoch, value=float(statistics.median_high(epochs)))
    if reason:
        first_epoch = train_s = samples.NOTHING
    return TimeToAccuracy(cell.name, target, len(epochs), seeds, first_epoch, train_s, reason)


def chosen_target(data: TrainingData) -> float | None:
    """The requested accuracy, or else the highest whole percent that every training reached; None
    below 1.
    """
    if data.target_accuracy is not None:
        return data.target_accuracy
    bests = [training.best_accuracy for cell in data.trained for training in cell.trainings]
    lowest = math.floor(min(bests)) if bests else 0
    return float(lowest) if lowest >= 1 else None


@dataclass(frozen=True)
class CellDifference:
    """A cell versus a reference cell.

    `points`: the cell's median final test accuracy minus the reference's, in percentage points.
    `spread_points`: the wider of the two ranges over seeds, unknown below FEWEST_SEEDS seeds.
    `speedup`: the reference's median epoch training time over the cell's, with a 95% interval from
    the spread between seeds.
    """

    cell: str
    against: str
    accuracy_percent: float | None
    points: float | None
    spread_points: float | None
    seeds: int  # of the side with fewer
    verdict: samples.Verdict
    speedup: samples.Estimate

    @property
    def shown_points(self) -> float | None:
        """The difference between both accuracies as they are shown, with two decimals each."""
        if self.accuracy_percent is None or self.points is None:
            return None
        against_percent = round(self.accuracy_percent - self.points, _EXACT_DIGITS)
        return round(self.accuracy_percent, 2) - round(against_percent, 2)


def cell_difference(
    cell: TrainedCell, against: TrainedCell, pool: samples.Spread
) -> CellDifference:
    """The difference in accuracy and training time; `pool` is the spread of median epochs over the
    seeds of all cells.

    Accuracies differ if their medians are farther apart than the seeds of either cell. For equal
    cells with normally distributed seeds this happens by chance in 6% of pairs with 3 seeds, 1.2%
    with 4, 0.4% with 5 (simulated).
    """
    mine, other = final_accuracy(cell), final_accuracy(against)
    seeds = min(mine.count, other.count)
    points = (
        mine.value - other.value if mine.value is not None and other.value is not None else None
    )
    widths = [(side.largest or 0.0) - (side.smallest or 0.0) for side in (mine, other)]
    spread = max(widths) if seeds >= FEWEST_SEEDS else None
    verdict: samples.Verdict = "too_few_samples"
    if points is not None and spread is not None:
        differs = abs(points) > spread + _ROUNDING
        verdict = ("above" if points > 0 else "below") if differs else "no_difference_shown"
    speedup = samples.ratio_estimate(_epoch_times(against), _epoch_times(cell), pool)
    return CellDifference(
        cell.name, against.name, mine.value, points, spread, seeds, verdict, speedup
    )


def _epoch_times(cell: TrainedCell) -> list[samples.Samples]:
    return [np.array(training.train_s) for training in cell.trainings]


@lru_cache(maxsize=4)
def differences(data: TrainingData) -> tuple[CellDifference, ...]:
    """Every variant versus the default of the same strategy, devices and batch, and every other
    cell on several devices, and a variant without a default, versus a single device.
    """
    spread = samples.pooled_spread(map(_epoch_times, data.trained))
    pairs = [(cell, reference_of(data.trained, cell)) for cell in data.trained]
    return tuple(
        cell_difference(cell, reference, spread)
        for cell, reference in pairs
        if reference is not None
    )


def reference_of(cells: Sequence[TrainedCell], cell: TrainedCell) -> TrainedCell | None:
    """What a cell is compared with; None for the default of a single device."""
    shape = attrgetter("strategy", "devices", "batch_size")
    if cell.variant:
        for other in cells:
            if shape(other) == shape(cell) and not other.variant:
                return other
    if cell.traits.baseline:
        return None

    def unlike(single: TrainedCell) -> tuple[bool, bool, bool]:
        # the options that a single device has, too, end the names of variants
        return (
            single.global_batch_size != cell.global_batch_size,
            single.batch_size != cell.batch_size,
            not single.variant or not cell.variant.endswith(single.variant),
        )

    return min((other for other in cells if other.traits.baseline), key=unlike, default=None)


def compare_trained_cells(before: TrainingData, after: TrainingData) -> list[CellDifference]:
    """Every cell that both folders trained: after versus before."""
    spread = samples.pooled_spread(map(_epoch_times, [*before.trained, *after.trained]))
    earlier = {cell.name: cell for cell in before.trained}
    return [
        replace(cell_difference(cell, earlier[cell.name], spread), against=str(before.folder))
        for cell in after.trained
        if cell.name in earlier
    ]


def trained_model_differences(
    before: TrainingData, after: TrainingData
) -> list[ConditionDifference]:
    """Differences in the model that the common cells trained: a model may have two import names,
    and a name two models. Models of unknown size are compared by their names.
    """
    first, second = before.manifest, after.manifest
    if first is None or second is None:
        return []
    then, now = before.parameter_counts, after.parameter_counts
    common = [name for name in then if name in now]
    if not common:
        return setting_differences(first.config, second.config, ["model"])
    return [
        ConditionDifference("parameter count", *counts)
        for counts in dict.fromkeys((then[name], now[name]) for name in common)
        if counts[0] != counts[1]
    ]


def training_setting_findings(before: TrainingData, after: TrainingData) -> list[Finding]:
    """Models, settings and machines that differ; empty for trainings of other programs, whose
    settings are unknown.
    """
    first, second = before.manifest, after.manifest
    if first is None or second is None:
        return []
    models = trained_model_differences(before, after)
    names = [name for name in (*_SHARED, *_LEARNING) if models or name != "model"]
    settings = setting_differences(first.config, second.config, names)
    return difference_findings(first, second, [*dict.fromkeys((*models, *settings))])
