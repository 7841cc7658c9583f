"""Trainings made by hand: epochs of known accuracy and time, as dpscope stores them and as other
programs might.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.matrix import ResolvedMatrix
from dpscope.profiling.records.run import Cell, PlannedCell
from dpscope.profiling.records.training import (
    TRAIN_SCHEMA_VERSION,
    EpochRecord,
    PlannedTraining,
    ResolvedTrainConfig,
    TrainLog,
    TrainManifest,
)
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.training_folders import TrainFolder
from tests.helpers.environments import environment


def plain_epochs(
    strategy: str,
    devices: int,
    seed: int,
    accuracies: Sequence[float],
    train_s: Sequence[float],
    losses: Sequence[float | None] | None = None,
    **more: object,
) -> list[dict[str, object]]:
    """Epochs with no more than the fields every train.json has, and `more`."""
    rows = zip(accuracies, train_s, losses or [1.0] * len(accuracies), strict=True)
    return [
        {
            "strategy": strategy, "devices": devices, "seed": seed, "epoch": epoch, "train_loss": loss,
            "train_accuracy": accuracy, "test_loss": loss, "test_accuracy": accuracy, "learning_rate": 0.1,
            "train_s": seconds, "evaluation_s": 0.5, **more,
        }
        for epoch, (accuracy, seconds, loss) in enumerate(rows, start=1)
    ]  # fmt: skip


def write_train_json(folder: Path, epochs: Sequence[dict[str, object]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.json").write_text(json.dumps({"epochs": list(epochs)}))
    return folder


def _config(epochs: int, **workload: Any) -> ResolvedTrainConfig:
    matrix = ResolvedMatrix(devices=(1, 2), batch_sizes=(8,))
    return ResolvedTrainConfig(
        workload=Workload(**workload), optimizer=Optimizer(), matrix=matrix, epochs=epochs
    )


def record(
    cell: str = "ddp-d2-b16", seed: int = 0, epoch: int = 1, test_accuracy: float = 50.0
) -> EpochRecord:
    """An epoch as a training stores it; 2 s of training each."""
    strategy, devices, batch = cell.split("-")[:3]
    return EpochRecord(
        cell=cell, strategy=strategy, devices=int(devices[1:]), variant="", batch_size=int(batch[1:]),  # type: ignore[arg-type]
        global_batch_size=int(devices[1:]) * int(batch[1:]), seed=seed, epoch=epoch, train_loss=1.0 / epoch,
        train_accuracy=test_accuracy, test_loss=2.0 / epoch, test_accuracy=test_accuracy, learning_rate=0.1, train_s=2.0,
        evaluation_s=0.5, trained_s=2.0 * epoch, ended_at_s=1_700_000_000.0 + 3 * epoch, train_samples=1440, test_samples=360,
    )  # fmt: skip


def write_trained(
    folder: Path, cells: Sequence[Cell], records: Sequence[EpochRecord], epochs: int
) -> Path:
    """A folder as `dpscope train` leaves it: a manifest that plans `epochs` for the cells, and what
    was trained.
    """
    plan = [
        PlannedTraining(
            planned=PlannedCell(cell=cell),
            learning_rate=0.1,
            train_samples=1437,
            repeated_samples=1,
        )
        for cell in cells
    ]
    manifest = TrainManifest(
        schema_version=TRAIN_SCHEMA_VERSION, dpscope_version="0.2.0", created_at="2026-01-01T00:00:00Z",
        config=_config(epochs, device="cpu", model="resnet8_test"), device_type="cpu", threads_per_process=1,
        environment=environment(), plan=tuple(plan),
    )  # fmt: skip
    stored = TrainFolder(folder)
    write_json(stored.manifest_path, manifest)
    write_json(
        stored.log_path, TrainLog(schema_version=TRAIN_SCHEMA_VERSION, epochs=tuple(records))
    )
    return folder
