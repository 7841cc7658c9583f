"""The learning curves of a run folder's train.json: cells with their seeds and epochs.

Only the list `epochs` with the fields of `Epoch` that have no default here is required, so that
curves of other programs load, too; further fields that dpscope stores are optional.
"""

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from operator import attrgetter
from pathlib import Path

import msgspec

from dpscope.profiling.records.finding import Finding, grouped
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import CellStrategy, StrategyTraits, traits_of
from dpscope.profiling.records.training import Epoch, TrainManifest, TrainResult
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import natural_order, read_json
from dpscope.profiling.store.training_folders import (
    TRAININGS_NAME,
    TrainFolder,
    TrainingFolder,
    is_train_folder,
)


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
    """The trainings of a run folder. `manifest` is None for a train.json written by another
    program.
    """

    folder: Path
    cells: tuple[TrainedCell, ...]
    planned_epochs: int
    manifest: TrainManifest | None
    findings: tuple[Finding, ...]  # stored when the trainings were planned and run
    results: tuple[TrainResult, ...] = ()  # of the trainings that have ended
    target_accuracy: float | None = None  # percent, requested

    @property
    def trained(self) -> list[TrainedCell]:
        """The cells that have at least one epoch."""
        return [cell for cell in self.cells if cell.trainings]

    @property
    def failed(self) -> list[TrainResult]:
        """The trainings that ended before their last epoch."""
        return [result for result in self.results if result.status != "ok"]

    @property
    def untrained(self) -> list[tuple[str, int]]:
        """Cell and seed of each planned training without an epoch; empty if the plan is unknown."""
        if self.manifest is None:
            return []
        planned = [training.planned for training in self.manifest.plan]
        names = [one.cell.name for one in planned if one.skip_reason is None]
        trained = {(cell.name, training.seed) for cell in self.cells for training in cell.trainings}
        every = product(names, self.manifest.config.seeds)
        return [training for training in every if training not in trained]

    @property
    def parameter_counts(self) -> dict[str, int]:
        """Of the model of each cell, where it is known."""
        counts = {result.cell.name: result.parameter_count for result in self.results}
        return {name: count for name, count in counts.items() if count is not None}


class NoEpochError(DpscopeError):
    """No training has finished an epoch."""


def load_training(folder: Path, target_accuracy: float | None = None) -> TrainingData:
    """Read a run folder's trainings; `target_accuracy` (percent) is that of the time to an
    accuracy.

    Raises DpscopeError for invalid files.
    """
    path = TrainFolder(folder).log_path
    stored = read_json(path, TrainFile)
    results = tuple(_results(folder))
    if not stored.epochs:
        why = f"; train with `dpscope train --out {folder}`"
        for result in results[:1]:
            why = f": {result.cell.name}, seed {result.seed}: {failure(result)}"
        raise NoEpochError(f"{path} holds no epoch{why}")
    by_cell = grouped((_cell_name(epoch), epoch) for epoch in stored.epochs)
    counts = Counter((_cell_name(epoch), epoch.seed) for epoch in stored.epochs)
    planned = max(counts.values())
    manifest, findings = None, stored.findings
    if is_train_folder(folder):
        manifest = TrainFolder(folder).manifest()
        planned = manifest.config.epochs
        findings = (*manifest.findings, *findings)
    cells = [_cell(path, name, epochs, planned) for name, epochs in by_cell.items()]
    if manifest is not None:
        cells += _untrained(manifest, results, by_cell)
    return TrainingData(
        folder=folder,
        cells=tuple(cells),
        planned_epochs=planned,
        manifest=manifest,
        findings=tuple(dict.fromkeys(findings)),
        results=results,
        target_accuracy=target_accuracy,
    )


def _cell_name(epoch: Epoch) -> str:
    """The stored name of its cell, or else one made of strategy, devices, batch and variant."""
    batch = "" if epoch.batch_size is None else f"b{epoch.batch_size}"
    parts = (epoch.strategy, f"d{epoch.devices}", batch, epoch.variant)
    return epoch.cell or "-".join(filter(None, parts))


def _cell(path: Path, name: str, epochs: Sequence[Epoch], planned: int) -> TrainedCell:
    trainings = []
    for seed, group in groupby(
        sorted(epochs, key=attrgetter("seed", "epoch")), key=attrgetter("seed")
    ):
        curve = tuple(group)
        for before, after in pairwise(curve):
            if after.epoch != before.epoch + 1:
                raise DpscopeError(
                    f"{path}: {name}, seed {seed}: epoch {after.epoch} follows epoch {before.epoch}; every epoch "
                    "must occur once"
                )
        trainings.append(Training(seed, curve, complete=len(curve) >= planned))
    return _trained_cell(name, epochs[0], tuple(trainings))


def _trained_cell(
    name: str, of: Epoch | Cell, trainings: tuple[Training, ...], missing: str = ""
) -> TrainedCell:
    batches = of.batch_size, of.global_batch_size
    return TrainedCell(name, of.strategy, of.devices, of.variant, *batches, trainings, missing)


def _untrained(
    manifest: TrainManifest, results: Sequence[TrainResult], trained: Container[str]
) -> Iterator[TrainedCell]:
    """Planned cells without an epoch, with the reason."""
    failures = {result.cell.name: failure(result) for result in results if result.status != "ok"}
    for training in manifest.plan:
        name = training.cell.name
        reason = training.planned.skip_reason or failures.get(name) or "not trained yet"
        if name not in trained:
            yield _trained_cell(name, training.cell, (), reason)


def _results(folder: Path) -> Iterator[TrainResult]:
    """Of the trainings that have ended."""
    for path in sorted((folder / TRAININGS_NAME).glob("*/seed*"), key=natural_order):
        result = TrainingFolder(path).result()
        if result is not None:
            yield result


def failure(result: TrainResult) -> str:
    """How a training failed; of one that the user stopped, the message states it."""
    if result.status == "interrupted":
        return result.message
    return f"{result.status.replace('_', ' ')}: {result.message}"
