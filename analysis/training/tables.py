"""Trainings as tables, and as JSON and CSV in stored units."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import msgspec

from dpscope.analysis.stats.samples import FEWEST_SAMPLES, Range, median_range
from dpscope.analysis.text.text_table import (
    CELL,
    Field,
    TextTable,
    Unknown,
    estimate_fields,
    table_of,
)
from dpscope.analysis.text.units import NA, Unit, choose_unit
from dpscope.analysis.training import seed_statistics as statistics
from dpscope.analysis.training.answer import training_answer
from dpscope.analysis.training.data import TrainedCell, TrainingData
from dpscope.analysis.training.findings import training_findings
from dpscope.analysis.training.seed_statistics import CellDifference
from dpscope.profiling.records.finding import counted

_PERCENT = Unit("%", 1.0, 2)
_POINTS = Unit("points", 1.0, 2)
_LOSS = Unit("", 1.0, 4)
_EPOCH = Unit("", 1.0, 0)
_RATIO = Unit("x", 1.0, 2)
_VERDICTS = {
    "no_difference_shown": "not significant",
    "above": "higher",
    "below": "lower",
    "too_few_samples": "undecided",
}


_OF_SEEDS = ("Lowest of the seeds", "Highest of the seeds")


def _with_range(
    heading: str, name: str, unit: Unit, meaning: str, ends: tuple[str, str] = _OF_SEEDS
) -> tuple[Field, Field, Field]:
    """A median and its range, of the keys that `_range` makes."""
    low, high = ends
    return (
        Field(heading, name, unit, meaning),
        Field("low", f"{name}_min", unit, low),
        Field("high", f"{name}_max", unit, high),
    )


def _range(name: str, values: Range) -> dict[str, float | None]:
    """A single value has no range."""
    smallest = largest = None
    if values.count > 1:
        smallest, largest = values.smallest, values.largest
    return {name: values.value, f"{name}_min": smallest, f"{name}_max": largest}


_MEDIAN = "Median test accuracy over seeds, after the last epoch"
_BEST = "Highest test accuracy of any epoch, median over seeds: chosen on the test data"
_TRAINED = "Training accuracy of the last epoch, median over seeds"
_ACCURACY = (
    CELL,
    *_with_range("accuracy", "test_accuracy_percent", _PERCENT, _MEDIAN),
    Field("seeds", "seeds", meaning="Trainings with all their epochs"),
    Field("best", "best_accuracy_percent", _PERCENT, _BEST),
    Field("train acc.", "train_accuracy_percent", _PERCENT, _TRAINED),
    Field(
        "test loss",
        "test_loss",
        _LOSS,
        "Cross-entropy on the test data after the last epoch, median over seeds",
    ),
    Field("epochs", "epochs", meaning="Epochs of a training"),
)


def accuracy_table(data: TrainingData) -> TextTable:
    """A row per cell: its accuracy over seeds."""
    best = (
        "best: highest of any epoch, so selected on the test data; accuracy: after the last epoch; "
        "a single seed has no range"
    )
    unknown = [Unknown(cell.missing, "", cell.name) for cell in data.cells if not cell.trainings]
    return table_of(
        "Test accuracy after training (median and range over seeds)",
        _ACCURACY,
        cell_records(data),
        [best],
        unknown,
    )


def time_table(data: TrainingData) -> TextTable:
    """A row per trained cell: its times over the epochs of all seeds."""
    names = {cell.name for cell in data.trained}
    trained = [cell for cell in cell_records(data) if cell["cell"] in names]
    unit = _seconds([cell["train_epoch_s"] for cell in trained])
    whole = _seconds([cell["training_s"] for cell in trained])
    epoch = "Median training time of an epoch over all seeds; evaluation is not in it"
    fields = (
        CELL,
        *_with_range("epoch", "train_epoch_s", unit, epoch, ("Shortest epoch", "Longest epoch")),
        Field("epochs", "timed_epochs", meaning="Epochs behind the median, all seeds together"),
        Field("evaluation", "evaluation_epoch_s", unit, "Median time of an evaluation"),
        Field(
            "training",
            "training_s",
            whole,
            "Training time of all epochs of a seed, median over seeds",
        ),
    )
    return table_of(
        "Training time (median and range over the epochs of all seeds; without evaluation)",
        fields,
        trained,
        ["training: all epochs of a seed, median over seeds"],
    )


def _seconds(values: Sequence[float | None]) -> Unit:
    """The display unit of these seconds."""
    unit = choose_unit("time", [None if value is None else value * 1e6 for value in values])
    return Unit(unit.label, unit.divisor / 1e6, unit.digits)


_OF_ALL = "Of all seeds that have trained an epoch"
_UNTIL = "Training time up to and including that epoch without evaluation, median over seeds"


def target_table(data: TrainingData) -> TextTable | None:
    """When each cell first reached the target accuracy; None without a target."""
    target = statistics.chosen_target(data)
    if target is None:
        return None
    times = [statistics.time_to_accuracy(cell, target) for cell in data.trained]
    chosen = (
        ""
        if data.target_accuracy is not None
        else ", the highest whole percent that all trainings reached"
    )
    unit = _seconds([time.train_s.value for time in times])
    fields = (
        CELL,
        Field(
            "seeds that reached it",
            lambda row: f"{row['reached']} of {row['seeds']}",
            meaning=_OF_ALL,
        ),
        Field(
            "epoch",
            lambda row: row["epoch"]["value"],
            _EPOCH,
            "The first epoch that reached it, median over seeds: of two middle ones the later",
        ),
        *_with_range("time", "time_s", unit, _UNTIL),
    )
    return table_of(
        f"Training time to {target:g}% test accuracy{chosen}",
        fields,
        [asdict(time) | _range("time_s", time.train_s) for time in times],
        [
            "up to and including the first epoch that reached it, without evaluation; median and range over "
            "seeds, of a single seed none"
        ],
        (Unknown(time.reason, "epoch, time", time.cell) for time in times if time.reason),
    )


_MINUS = "Its median test accuracy minus the other's, in percentage points"
_WIDER = "The wider of the two ranges over seeds; unknown with fewer than three"
_EXCEEDS = "Whether the difference exceeds the spread over seeds"
_FASTER = "Median epoch training time of the other cell over this cell's"
_DIFFERENCE = (
    CELL,
    Field("against", "against", meaning="The cell that it is compared with"),
    Field("accuracy", "accuracy_percent", _PERCENT, _MEDIAN),
    Field("difference", "shown_points", _POINTS, _MINUS),
    Field("seed spread", "spread_points", _POINTS, _WIDER),
    Field("seeds", "seeds", meaning="Complete trainings, of the side with fewer"),
    Field("verdict", lambda difference: _VERDICTS[difference.verdict], meaning=_EXCEEDS),
    *estimate_fields("speedup", _RATIO, _FASTER),
)


def difference_table(title: str, differences: Sequence[CellDifference]) -> TextTable | None:
    """Cells versus their reference cells; None without any."""
    if not differences:
        return None
    notes = (
        "difference: between median test accuracies; seed spread: the wider of the two ranges over seeds; smaller "
        "differences may be chance",
        "speedup: median epoch training time of the other cell over this one's, with its 95% interval",
    )
    return table_of(
        title, _DIFFERENCE, differences, notes, chain.from_iterable(map(_unknown, differences))
    )


def _unknown(difference: CellDifference) -> Iterator[Unknown]:
    """The reasons for missing values of a difference."""
    cell, seeds, epochs = difference.cell, difference.seeds, difference.speedup.count
    if difference.points is None:
        why = f"no training of it, or of {difference.against}, has all its epochs"
        yield Unknown(why, "difference", cell)
    elif difference.spread_points is None:
        why = f"{counted(seeds, 'seed')}; a spread needs {statistics.FEWEST_SEEDS}"
        yield Unknown(why, "seed spread", cell)
    if difference.speedup.low is None:
        why = f"{counted(epochs, 'epoch')}; an interval needs {FEWEST_SAMPLES}"
        if epochs >= FEWEST_SAMPLES:
            why = "no cell has two seeds, or its few seeds lie too far apart"
        yield Unknown(why, "low, high", cell)


TRAINING_TABLES: Mapping[str, Callable[[TrainingData], TextTable | None]] = {
    "test_accuracy": accuracy_table,
    "training_speedup": lambda data: difference_table(
        "Accuracy and training speedup (versus one device; variants: versus the default)",
        statistics.differences(data),
    ),
    "training_time": time_table,
    "time_to_accuracy": target_table,
}
"""Each table by name, in the order in which people read them.

Without a requested target accuracy, the target is the highest whole percent that all trainings
reached.
"""


def training_tables(data: TrainingData) -> dict[str, TextTable]:
    """All tables with rows."""
    tables = {name: table(data) for name, table in TRAINING_TABLES.items()}
    return {name: table for name, table in tables.items() if table is not None and table.rows}


def training_json(data: TrainingData) -> str:
    """Trainings without measurements as an object with `answer`, `training` and the list
    `findings`.
    """
    content = {
        "answer": training_answer(data).text,
        "training": training_content(data),
        "findings": msgspec.to_builtins(training_findings(data)),
    }
    return json.dumps(content, indent=2)


def training_content(data: TrainingData) -> dict[str, object]:
    """An object with the lists cells, differences, time_to_accuracy, epochs; unknown is
    None.
    """
    target = statistics.chosen_target(data)
    return {
        "cells": cell_records(data),
        "differences": [asdict(difference) for difference in statistics.differences(data)],
        "time_to_accuracy": [
            asdict(statistics.time_to_accuracy(cell, target)) for cell in data.trained
        ]
        if target
        else [],
        "epochs": [
            {**msgspec.to_builtins(epoch), "cell": cell.name}
            for cell in data.trained
            for training in cell.trainings
            for epoch in training.epochs
        ],
    }


def training_csv(data: TrainingData) -> str:
    """One row per cell with its accuracy and times over seeds; `missing` is the reason for NA."""
    import pandas as pd

    return str(pd.DataFrame(cell_records(data)).to_csv(index=False, na_rep=NA))


def cell_records(data: TrainingData) -> list[dict[str, Any]]:
    """One record per cell: accuracies in percent, of complete trainings; times in seconds; min and
    max over seeds (times: over epochs).
    """
    return [_cell_record(cell) for cell in data.cells]


def _cell_record(cell: TrainedCell) -> dict[str, Any]:
    complete, epoch_s = cell.complete, statistics.epoch_train_s(cell)
    last = [training.epochs[-1] for training in complete]
    evaluations_s = [epoch.evaluation_s for training in cell.trainings for epoch in training.epochs]
    best = [training.best_accuracy for training in complete]
    return {
        "cell": cell.name,
        "strategy": cell.strategy,
        "devices": cell.devices,
        "batch_size": cell.batch_size,
        "global_batch_size": cell.global_batch_size,
        "variant": cell.variant,
        "seeds": len(last),
        "epochs": max((len(training.epochs) for training in complete), default=None),
        **_range("test_accuracy_percent", statistics.final_accuracy(cell)),
        **_range("best_accuracy_percent", median_range(best)),
        "train_accuracy_percent": median_range([epoch.train_accuracy for epoch in last]).value,
        "test_loss": statistics.final_loss(cell),
        **_range("train_epoch_s", epoch_s),
        "timed_epochs": epoch_s.count,
        "evaluation_epoch_s": median_range(evaluations_s).value,
        **_range("training_s", median_range([sum(training.train_s) for training in complete])),
        "missing": cell.missing or ("" if complete else "no training has all its epochs"),
    }
