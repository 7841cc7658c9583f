"""The learning curves of a run folder's train.json: cells with their seeds and epochs.

Only the list `epochs` with the fields of `Epoch` that have no default here is required, so that curves of other programs load,
too; further fields that dpscope stores are optional.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import msgspec

from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import CellStrategy, StrategyTraits, traits_of
from dpscope.profiling.records.training import TrainManifest, TrainResult
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import natural_order, read_json
from dpscope.profiling.store.training_folders import TRAININGS_NAME, TrainFolder, TrainingFolder, is_train_folder


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch of one training. Accuracies are percent; a loss that is not finite is None."""

    strategy: CellStrategy
    devices: int
    seed: int
    epoch: int
    train_loss: float | None
    train_accuracy: float
    test_loss: float | None
    test_accuracy: float
    learning_rate: float
    train_s: float  # without evaluation
    evaluation_s: float
    variant: str = ""
    batch_size: int | None = None  # per device
    global_batch_size: int | None = None
    cell: str = ""
    ended_at_s: float | None = None  # Unix time

    @property
    def cell_name(self) -> str:
        """The stored name of the cell, or else one made of strategy, devices, batch and variant."""
        batch = f"-b{self.batch_size}" if self.batch_size is not None else ""
        base = f"{self.strategy}-d{self.devices}{batch}"
        return self.cell or (f"{base}-{self.variant}" if self.variant else base)


class TrainFile(msgspec.Struct, frozen=True):
    """The fields of train.json that are read."""

    epochs: tuple[Epoch, ...]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Training:
    """One seed of one cell, with its epochs in order; complete if it has all planned epochs."""

    seed: int
    epochs: tuple[Epoch, ...]
    complete: bool

    @property
    def final_accuracy(self) -> float:
        """Test accuracy after the last epoch, percent."""
        return self.epochs[-1].test_accuracy

    @property
    def best_accuracy(self) -> float:
        """Highest test accuracy of any epoch, percent."""
        return max(epoch.test_accuracy for epoch in self.epochs)

    @property
    def train_s(self) -> list[float]:
        """Training time of each epoch."""
        return [epoch.train_s for epoch in self.epochs]


@dataclass(frozen=True)
class TrainedCell:
    """All trainings of one cell by seed; `missing` is the reason if there are none."""

    name: str
    strategy: CellStrategy
    devices: int
    variant: str
    batch_size: int | None
    global_batch_size: int | None
    trainings: tuple[Training, ...]
    missing: str = ""

    @property
    def traits(self) -> StrategyTraits:
        """The traits of the strategy."""
        return traits_of(self.strategy)

    @property
    def complete(self) -> list[Training]:
        """The trainings with all their epochs: only these are compared."""
        return [training for training in self.trainings if training.complete]


@dataclass(frozen=True, eq=False)  # compared by identity, so that derived results can be cached
class TrainingData:
    """The trainings of a run folder. `manifest` is None for a train.json written by another program."""

    folder: Path
    cells: tuple[TrainedCell, ...]
    planned_epochs: int
    manifest: TrainManifest | None
    findings: tuple[Finding, ...]  # stored when the trainings were planned and run
    target_accuracy: float | None = None  # percent, requested

    @property
    def trained(self) -> list[TrainedCell]:
        """The cells that have at least one epoch."""
        return [cell for cell in self.cells if cell.trainings]


class NoEpochError(DpscopeError):
    """No training has finished an epoch."""


def load_training(folder: Path, target_accuracy: float | None = None) -> TrainingData:
    """Read a run folder's trainings; `target_accuracy` (percent) is that of the time to an accuracy.

    Raises DpscopeError for invalid files.
    """
    stored_in = TrainFolder(folder)
    path = stored_in.log_path
    stored = read_json(path, TrainFile)
    if not stored.epochs:
        why = f"; train with `dpscope train --out {folder}`"
        for one in failed_trainings(folder)[:1]:
            why = f": {one.cell.name}, seed {one.seed}: {one.status}: {one.message}"
        raise NoEpochError(f"{path} holds no epoch{why}")
    for index, epoch in enumerate(stored.epochs):
        if wrong := _wrong(epoch):
            raise DpscopeError(f"{path}: epochs[{index}]: {wrong}")
    manifest = stored_in.manifest() if is_train_folder(folder) else None
    counts = Counter((one.cell_name, one.seed) for one in stored.epochs)
    planned = manifest.config.epochs if manifest else max(counts.values())
    cells = _cells(path, stored.epochs, planned)
    findings = dict.fromkeys((*(manifest.findings if manifest else ()), *stored.findings))
    return TrainingData(
        folder=folder,
        cells=(*cells, *(_untrained(folder, manifest, {cell.name for cell in cells}) if manifest else ())),
        planned_epochs=planned,
        manifest=manifest,
        findings=tuple(findings),
        target_accuracy=target_accuracy,
    )


def _wrong(epoch: Epoch) -> str | None:
    """The reason why an epoch is invalid, None if it is valid."""
    if epoch.devices < 1:
        return f"devices {epoch.devices}: must be 1 or more"
    for name in ("train_accuracy", "test_accuracy"):
        if not 0 <= (value := getattr(epoch, name)) <= 100:
            return f"{name} {value:g}: accuracies are percent, 0 to 100"
    if epoch.train_s <= 0:
        return f"train_s {epoch.train_s:g}: an epoch takes more than 0 seconds"
    if epoch.evaluation_s < 0:
        return f"evaluation_s {epoch.evaluation_s:g}: a time cannot be negative"
    return None


def _cells(path: Path, epochs: Sequence[Epoch], planned: int) -> list[TrainedCell]:
    """Cells in the order in which they first appear."""
    by_cell: dict[str, list[Epoch]] = {}
    for epoch in epochs:
        by_cell.setdefault(epoch.cell_name, []).append(epoch)
    return [_cell(path, name, group, planned) for name, group in by_cell.items()]


def _cell(path: Path, name: str, epochs: list[Epoch], planned: int) -> TrainedCell:
    ordered = sorted(epochs, key=lambda epoch: (epoch.seed, epoch.epoch))
    trainings = []
    for seed, group in groupby(ordered, key=lambda epoch: epoch.seed):
        curve = tuple(group)
        for before, after in pairwise(curve):
            if after.epoch != before.epoch + 1:
                raise DpscopeError(
                    f"{path}: {name}, seed {seed}: epoch {after.epoch} follows epoch {before.epoch}; every epoch "
                    "must occur once"
                )
        trainings.append(Training(seed, curve, complete=len(curve) >= planned))
    return _trained_cell(name, epochs[0], tuple(trainings))


def _trained_cell(name: str, of: Epoch | Cell, trainings: tuple[Training, ...], missing: str = "") -> TrainedCell:
    batches = of.batch_size, of.global_batch_size
    return TrainedCell(name, of.strategy, of.devices, of.variant, *batches, trainings, missing)


def _untrained(folder: Path, manifest: TrainManifest, trained: set[str]) -> list[TrainedCell]:
    """Planned cells without an epoch, with the reason."""
    failures = {one.cell.name: f"{one.status}: {one.message}" for one in reversed(failed_trainings(folder))}
    cells = [(one.cell, one.planned.skip_reason) for one in manifest.plan if one.cell.name not in trained]
    return [
        _trained_cell(cell.name, cell, (), skipped or failures.get(cell.name) or "not trained yet")
        for cell, skipped in cells
    ]


def failed_trainings(folder: Path) -> list[TrainResult]:
    """Trainings of a run folder that failed."""
    folders = [TrainingFolder(path) for path in sorted((folder / TRAININGS_NAME).glob("*/seed*"), key=natural_order)]
    results = [training.result() for training in folders]
    return [result for result in results if result is not None and result.status != "ok"]
