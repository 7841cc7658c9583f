"""Trainings as tables, and as JSON and CSV in stored units."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import msgspec
import pandas as pd

from dpscope.analysis.stats.samples import FEWEST_SAMPLES, Range, median_range
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, Unit, choose_unit, show
from dpscope.analysis.training import seed_statistics as statistics
from dpscope.analysis.training.data import TrainedCell, TrainingData
from dpscope.analysis.training.findings import training_findings
from dpscope.analysis.training.seed_statistics import CellDifference, against_default, against_single, final_accuracy
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
        "test_accuracy": _accuracy_table(data),
        "training_speedup": difference_table("Accuracy and training speedup versus one device", against_single(data)),
        "training_time": _time_table(data),
        "time_to_accuracy": _target_table(data),
        "variant_accuracy": difference_table("Variants versus the default", against_default(data)),
    }
    return {name: table for name, table in tables.items() if table is not None and table.rows}


def _accuracy_table(data: TrainingData) -> TextTable:
    rows = []
    for cell in data.cells:
        last = [training.epochs[-1] for training in cell.complete]
        losses = [epoch.test_loss for epoch in last if epoch.test_loss is not None]
        rows.append((
            cell.name,
            *_with_range(final_accuracy(cell), _PERCENT),
            str(len(last)),
            show(statistics.best_accuracy(cell).value, _PERCENT),
            show(median_range([epoch.train_accuracy for epoch in last]).value, _PERCENT),
            show(median_range(losses).value if len(losses) == len(last) else None, _LOSS),
            show(_epochs(cell), _COUNT),
        ))  # fmt: skip
    return TextTable(
        title="Test accuracy after training (median and range over seeds)",
        headings=("cell", "accuracy [%]", "low [%]", "high [%]", "seeds", "best [%]", "train acc. [%]", "test loss", "epochs"),
        rows=tuple(rows),
        notes=("best: highest of any epoch, so selected on the test data; accuracy: after the last epoch",),
        missing=tuple(_missing_trainings(data)),
    )  # fmt: skip


def _missing_trainings(data: TrainingData) -> Iterator[str]:
    """The reasons for missing accuracies: never trained, or not all epochs."""
    yield from (f"{NA} ({cell.name}): {cell.missing}" for cell in data.cells if not cell.trainings)
    for cell in data.trained:
        short = [f"seed {one.seed} with {len(one.epochs)}" for one in cell.trainings if not one.complete]
        if short:
            yield f"{cell.name}: left out with fewer than {counted(data.planned_epochs, 'epoch')}: {', '.join(short)}"


def _time_table(data: TrainingData) -> TextTable:
    unit = _seconds([statistics.epoch_train_s(cell).value for cell in data.cells])
    whole = _seconds([statistics.training_s(cell).value for cell in data.cells])
    headings = (
        "cell", f"epoch [{unit.label}]", f"low [{unit.label}]", f"high [{unit.label}]", "epochs",
        f"evaluation [{unit.label}]", f"training [{whole.label}]",
    )  # fmt: skip
    rows = []
    for cell in data.trained:
        epoch = statistics.epoch_train_s(cell)
        evaluation, training = statistics.evaluation_s(cell).value, statistics.training_s(cell).value
        numbers = (*_with_range(epoch, unit), str(epoch.count), show(evaluation, unit), show(training, whole))
        rows.append((cell.name, *numbers))
    return TextTable(
        title="Training time (median and range over the epochs of all seeds; without evaluation)",
        headings=headings,
        rows=tuple(rows),
        notes=("training: all epochs of a seed, median over seeds",),
    )


def _seconds(values: Sequence[float | None]) -> Unit:
    """The display unit of these seconds."""
    unit = choose_unit("time", [None if value is None else value * 1e6 for value in values])
    return Unit(unit.label, unit.divisor / 1e6, unit.digits)


def _target_table(data: TrainingData) -> TextTable | None:
    """When each cell first reached the target accuracy; None without a target."""
    target = statistics.chosen_target(data)
    if target is None:
        return None
    found = [statistics.time_to_accuracy(cell, target) for cell in data.trained]
    unit = _seconds([one.train_s.value for one in found])
    chosen = "" if data.target_accuracy is not None else ", the highest whole percent that all trainings reached"
    return TextTable(
        title=f"Training time to {target:g}% test accuracy{chosen}",
        headings=(
            "cell", "seeds that reached it", "epoch", f"time [{unit.label}]", f"low [{unit.label}]",
            f"high [{unit.label}]",
        ),
        rows=tuple(
            (one.cell, f"{one.reached} of {one.seeds}", show(one.epoch.value, _EPOCH), *_with_range(one.train_s, unit))
            for one in found
        ),
        notes=("up to and including the first epoch that reached it, without evaluation; median and range over seeds",),
        missing=tuple(
            f"{NA} (epoch, time; {one.cell}): {one.seeds - one.reached} of {counted(one.seeds, 'seed')} did not reach "
            f"{target:g}%; a median over the others would be too optimistic"
            for one in found
            if one.reached < one.seeds
        ),
    )  # fmt: skip


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
        rows=tuple(
            (
                one.cell,
                one.against,
                show(one.accuracy_percent, _PERCENT),
                NA if one.points is None else f"{one.points:+.2f}",
                show(one.spread_points, _POINTS),
                str(one.seeds),
                _VERDICTS[one.verdict],
                *(show(value, _RATIO) for value in (one.speedup.value, one.speedup.low, one.speedup.high)),
            )
            for one in differences
        ),
        notes=(
            "difference: between median test accuracies; seed spread: the wider of the two ranges over seeds; smaller "
            "differences may be chance",
            "speedup: median epoch training time of the other cell over this one's, with its 95% interval",
        ),
        missing=tuple(reason for one in differences for reason in _unknown(one)),
    )  # fmt: skip


def _unknown(one: CellDifference) -> Iterator[str]:
    """The reasons for missing values of a difference."""
    if one.points is None:
        yield f"{NA} (difference; {one.cell}): no training of it, or of {one.against}, has all its epochs"
    elif one.spread_points is None:
        yield f"{NA} (seed spread; {one.cell}): {counted(one.seeds, 'seed')}; a spread needs {statistics.FEWEST_SEEDS}"
    if one.speedup.low is None:
        yield (
            f"{NA} (low, high; {one.cell}): {counted(one.speedup.count, 'epoch')}; an interval needs {FEWEST_SAMPLES}, and two "
            "seeds of one cell"
        )


def _with_range(found: Range, unit: Unit) -> tuple[str, str, str]:
    return show(found.value, unit), show(found.smallest, unit), show(found.largest, unit)


def _epochs(cell: TrainedCell) -> int | None:
    return max((len(training.epochs) for training in cell.complete), default=None)


def training_json(data: TrainingData) -> str:
    """Trainings without measurements as an object with `training` and the list `findings`."""
    content = {"training": training_content(data), "findings": msgspec.to_builtins(training_findings(data))}
    return json.dumps(content, indent=2)


def training_content(data: TrainingData) -> dict[str, object]:
    """An object with the lists cells, differences, variants, time_to_accuracy, epochs; unknown is None."""
    target = statistics.chosen_target(data)
    return {
        "cells": cell_records(data),
        "differences": [asdict(one) for one in against_single(data)],
        "variants": [asdict(one) for one in against_default(data)],
        "time_to_accuracy": [asdict(statistics.time_to_accuracy(cell, target)) for cell in data.trained]
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
    return str(pd.DataFrame(cell_records(data)).to_csv(index=False, na_rep=NA))


def cell_records(data: TrainingData) -> list[dict[str, object]]:
    """One record per cell: accuracies in percent, times in seconds, min and max over seeds (times: over epochs)."""

    def named(name: str, found: Range) -> dict[str, object]:
        return {name: found.value, f"{name}_min": found.smallest, f"{name}_max": found.largest}

    shape = ("strategy", "devices", "batch_size", "global_batch_size", "variant")
    return [
        {
            "cell": cell.name,
            **{name: getattr(cell, name) for name in shape},
            "seeds": len(cell.complete),
            "epochs": _epochs(cell),
            **named("test_accuracy_percent", final_accuracy(cell)),
            **named("best_accuracy_percent", statistics.best_accuracy(cell)),
            **named("train_epoch_s", statistics.epoch_train_s(cell)),
            "evaluation_epoch_s": statistics.evaluation_s(cell).value,
            **named("training_s", statistics.training_s(cell)),
            "missing": cell.missing or ("" if cell.complete else "no training has all its epochs"),
        }
        for cell in data.cells
    ]
