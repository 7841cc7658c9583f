"""Trainings in formats other programs read: JSON and CSV, in stored units, unknown as null or NA with the reason."""

import json
from dataclasses import asdict

import msgspec
import pandas as pd

from dpscope.analysis.stats.samples import Range
from dpscope.analysis.text.units import NA
from dpscope.analysis.training.data import TrainedCell, TrainingData
from dpscope.analysis.training.findings import training_findings
from dpscope.analysis.training.seed_statistics import (
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


def training_json(data: TrainingData) -> str:
    """Trainings without measurements: an object with `training` and the list `findings`."""
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
    """A row per cell with its accuracy and times over seeds; `missing` says why values are NA."""
    return str(pd.DataFrame(cell_records(data)).to_csv(index=False, na_rep=NA))


def cell_records(data: TrainingData) -> list[dict[str, object]]:
    """A record per cell; accuracies are percent, times seconds, min and max the range over seeds (times: epochs)."""
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
