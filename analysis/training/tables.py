"""Trainings as tables, and as JSON and CSV in stored units."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import msgspec
import pandas as pd

from dpscope.analysis.stats.samples import FEWEST_SAMPLES, Range, median_range
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, Unit, choose_unit, show
from dpscope.analysis.training.data import TrainedCell, TrainingData
from dpscope.analysis.training.findings import training_findings
from dpscope.analysis.training.seed_statistics import (
    FEWEST_SEEDS,
    CellDifference,
    TimeToAccuracy,
    against_default,
    against_single,
    best_accuracy,
    chosen_target,
    epoch_train_s,
    evaluation_s,
    final_accuracy,
    time_to_accuracy,
    training_s,
)
from dpscope.profiling.records.finding import counted

TRAINING_TABLES = ("test_accuracy", "training_speedup", "training_time", "time_to_accuracy", "variant_accuracy")
"""Names of the tables, in the order people read them."""

_PERCENT = Unit("%", 1.0, 2)
_POINTS = Unit("points", 1.0, 2)
_LOSS = Unit("", 1.0, 4)
_COUNT = Unit("", 1.0, 0)
_EPOCH = Unit("", 1.0, 1)  # the median of an even number of seeds may lie between two
_RATIO = Unit("x", 1.0, 2)
_VERDICTS = {
    "no_difference_shown": "not significant",
    "above": "higher",
    "below": "lower",
    "too_few_samples": "unknown",
}


def training_tables(data: TrainingData) -> dict[str, TextTable]:
    """All tables with rows by name, in the order people read them.

    Without a requested target accuracy, the target is the highest whole percent that all trainings reached.
    """
    tables = {
        "test_accuracy": accuracy_table(data),
        "training_speedup": difference_table("Accuracy and training speedup versus one device", against_single(data)),
        "training_time": time_table(data),
        "time_to_accuracy": target_table(data),
        "variant_accuracy": difference_table("Variants versus the default", against_default(data)),
    }
    return {name: table for name, table in tables.items() if table is not None and table.rows}


def accuracy_table(data: TrainingData) -> TextTable:
    """The accuracy of each cell."""
    return TextTable(
        title="Test accuracy after training (median and range over seeds)",
        headings=("cell", "accuracy [%]", "low [%]", "high [%]", "seeds", "best [%]", "train acc. [%]", "test loss", "epochs"),
        rows=tuple(_accuracy_row(cell) for cell in data.cells),
        notes=("best: highest of any epoch, so selected on the test data; accuracy: after the last epoch",),
        missing=tuple(_missing_trainings(data)),
    )  # fmt: skip


def _accuracy_row(cell: TrainedCell) -> tuple[str, ...]:
    last = [training.epochs[-1] for training in cell.complete]
    losses = [epoch.test_loss for epoch in last if epoch.test_loss is not None]
    loss = median_range(losses).value if len(losses) == len(last) else None
    return (
        cell.name,
        *_with_range(final_accuracy(cell), _PERCENT),
        str(len(cell.complete)),
        show(best_accuracy(cell).value, _PERCENT),
        show(median_range([epoch.train_accuracy for epoch in last]).value, _PERCENT),
        show(loss, _LOSS),
        show(max((len(training.epochs) for training in cell.complete), default=None), _COUNT),
    )


def time_table(data: TrainingData) -> TextTable:
    """The time of an epoch and of the whole training."""
    unit = _seconds([epoch_train_s(cell).value for cell in data.cells])
    whole = _seconds([training_s(cell).value for cell in data.cells])
    return TextTable(
        title="Training time (median and range over the epochs of all seeds; without evaluation)",
        headings=(
            "cell", f"epoch [{unit.label}]", f"low [{unit.label}]", f"high [{unit.label}]", "epochs",
            f"evaluation [{unit.label}]", f"training [{whole.label}]",
        ),
        rows=tuple(_time_row(cell, unit, whole) for cell in data.trained),
        notes=("training: all epochs of a seed, median over seeds",),
    )  # fmt: skip


def _time_row(cell: TrainedCell, unit: Unit, whole: Unit) -> tuple[str, ...]:
    epoch = epoch_train_s(cell)
    return (
        cell.name,
        *_with_range(epoch, unit),
        str(epoch.count),
        show(evaluation_s(cell).value, unit),
        show(training_s(cell).value, whole),
    )


def _seconds(values: Sequence[float | None]) -> Unit:
    """The display unit of these seconds."""
    unit = choose_unit("time", [None if value is None else value * 1e6 for value in values])
    return Unit(unit.label, unit.divisor / 1e6, unit.digits)


def target_table(data: TrainingData) -> TextTable | None:
    """When each cell first reached the target accuracy; None without a target."""
    target = chosen_target(data)
    if target is None:
        return None
    found = [time_to_accuracy(cell, target) for cell in data.trained]
    unit = _seconds([one.train_s.value for one in found])
    chosen = "" if data.target_accuracy is not None else ", the highest whole percent that all trainings reached"
    return TextTable(
        title=f"Training time to {target:g}% test accuracy{chosen}",
        headings=(
            "cell", "seeds that reached it", "epoch", f"time [{unit.label}]", f"low [{unit.label}]",
            f"high [{unit.label}]",
        ),
        rows=tuple(_target_row(one, unit) for one in found),
        notes=("up to and including the first epoch that reached it, without evaluation; median and range over seeds",),
        missing=tuple(_not_reached(one) for one in found if one.reached < one.seeds),
    )  # fmt: skip


def _target_row(found: TimeToAccuracy, unit: Unit) -> tuple[str, ...]:
    return (
        found.cell,
        f"{found.reached} of {found.seeds}",
        show(found.epoch.value, _EPOCH),
        *_with_range(found.train_s, unit),
    )


def _not_reached(found: TimeToAccuracy) -> str:
    lacking = found.seeds - found.reached
    return (
        f"{NA} (epoch, time; {found.cell}): {lacking} of {counted(found.seeds, 'seed')} did not reach {found.target:g}%; "
        "a median over the others would be too optimistic"
    )


def difference_table(title: str, differences: Sequence[CellDifference]) -> TextTable | None:
    """Cells versus their reference cells; None without any."""
    if not differences:
        return None
    return TextTable(
        title=title,
        headings=(
            "cell", "against", "accuracy [%]", "difference [points]", "seed spread [points]", "seeds", "verdict",
            "speedup [x]", "low [x]", "high [x]",
        ),
        rows=tuple(_difference_row(one) for one in differences),
        notes=(
            "difference: between median test accuracies; seed spread: the wider of the two ranges over seeds; smaller "
            "differences may be chance",
            "speedup: median epoch training time of the other cell over this one's, with its 95% interval",
        ),
        missing=tuple(reason for one in differences for reason in _unknown(one)),
    )  # fmt: skip


def _difference_row(one: CellDifference) -> tuple[str, ...]:
    points = NA if one.points is None else f"{one.points:+.2f}"
    return (
        one.cell,
        one.against,
        show(one.accuracy_percent, _PERCENT),
        points,
        show(one.spread_points, _POINTS),
        str(one.seeds),
        _VERDICTS[one.verdict],
        *(show(value, _RATIO) for value in (one.speedup.value, one.speedup.low, one.speedup.high)),
    )


def _unknown(one: CellDifference) -> Iterator[str]:
    """The reasons for missing values of a difference."""
    if one.points is None:
        yield f"{NA} (difference; {one.cell}): no training of it, or of {one.against}, has all its epochs"
    elif one.spread_points is None:
        yield f"{NA} (seed spread; {one.cell}): {counted(one.seeds, 'seed')}; a spread needs {FEWEST_SEEDS}"
    if one.speedup.low is None:
        yield (
            f"{NA} (low, high; {one.cell}): {counted(one.speedup.count, 'epoch')}; an interval needs {FEWEST_SAMPLES}, and two "
            "seeds of one cell"
        )


def _missing_trainings(data: TrainingData) -> list[str]:
    """The reasons for missing accuracies: never trained, or not all epochs."""
    lines = [f"{NA} ({cell.name}): {cell.missing}" for cell in data.cells if not cell.trainings]
    for cell in data.trained:
        short = [training for training in cell.trainings if not training.complete]
        if short:
            seeds = ", ".join(f"seed {one.seed} with {len(one.epochs)}" for one in short)
            lines.append(f"{cell.name}: left out with fewer than {counted(data.planned_epochs, 'epoch')}: {seeds}")
    return lines


def _with_range(found: Range, unit: Unit) -> tuple[str, str, str]:
    return show(found.value, unit), show(found.smallest, unit), show(found.largest, unit)


def training_json(data: TrainingData) -> str:
    """Trainings without measurements as an object with `training` and the list `findings`."""
    content = {"training": training_content(data), "findings": msgspec.to_builtins(training_findings(data))}
    return json.dumps(content, indent=2)


def training_content(data: TrainingData) -> dict[str, object]:
    """An object with the lists cells, differences, variants, time_to_accuracy, epochs; unknown is None."""
    target = chosen_target(data)
    return {
        "cells": cell_records(data),
        "differences": [asdict(one) for one in against_single(data)],
        "variants": [asdict(one) for one in against_default(data)],
        "time_to_accuracy": [asdict(time_to_accuracy(cell, target)) for cell in data.trained] if target else [],
        "epochs": [
            {**msgspec.to_builtins(epoch), "cell": cell.name}
            for cell in data.trained
            for training in cell.trainings
            for epoch in training.epochs
        ],
    }


def training_csv(data: TrainingData) -> str:
    """One row per cell with its accuracy and times over seeds; `missing` is the reason for NA."""
    return str(pd.DataFrame(cell_records(data)).to_csv(index=False, na_rep=NA))


def cell_records(data: TrainingData) -> list[dict[str, object]]:
    """One record per cell: accuracies in percent, times in seconds, min and max over seeds (times: over epochs)."""
    return [_record(cell) for cell in data.cells]


def _record(cell: TrainedCell) -> dict[str, object]:
    complete = cell.complete
    return {
        "cell": cell.name,
        "strategy": cell.strategy,
        "devices": cell.devices,
        "batch_size": cell.batch_size,
        "global_batch_size": cell.global_batch_size,
        "variant": cell.variant,
        "seeds": len(complete),
        "epochs": max((len(training.epochs) for training in complete), default=None),
        **_named("test_accuracy_percent", final_accuracy(cell)),
        **_named("best_accuracy_percent", best_accuracy(cell)),
        **_named("train_epoch_s", epoch_train_s(cell)),
        "evaluation_epoch_s": evaluation_s(cell).value,
        **_named("training_s", training_s(cell)),
        "missing": cell.missing or ("" if complete else "no training has all its epochs"),
    }


def _named(name: str, found: Range) -> dict[str, object]:
    return {name: found.value, f"{name}_min": found.smallest, f"{name}_max": found.largest}
