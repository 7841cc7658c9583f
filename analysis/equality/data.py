"""The recorded trainings of `dpscope equal` as arrays, and the samples that they trained on."""

import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscope.profiling.records.equality import (
    EQUALITY_FOLDER,
    EqualitySettings,
    ParameterRecord,
    RankRecord,
    TrainingKind,
    rank_paths,
)
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import SETTINGS_NAME

MAX_LISTED = 5  # names or indices in a message


@dataclass(frozen=True)
class ProcessData:
    """What one process saved; the arrays, named in dpscope.profiling.records.equality, are read on
    access.
    """

    record: RankRecord
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class RecordedTraining:
    """One training, its processes in rank order."""

    cell: Cell
    ranks: tuple[ProcessData, ...]

    @property
    def name(self) -> str:
        """Such as ``ddp-d2-b4``."""
        return self.cell.name

    @property
    def parameters(self) -> tuple[ParameterRecord, ...]:
        return self.ranks[0].record.parameters

    def losses(self) -> NDArray[np.float64]:
        """Mean loss over the global batch per step; ranks have equal shares."""
        mean: NDArray[np.float64] = np.mean([rank.arrays["loss"] for rank in self.ranks], axis=0)
        return mean

    def samples(self) -> list[Counter[int]]:
        """By step, how often each sample was in the global batch."""
        batches = [Counter[int]() for _ in range(self.ranks[0].record.steps)]
        for rank in self.ranks:
            steps, indices = rank.arrays["sample_step"], rank.arrays["sample_index"]
            for step, batch in enumerate(batches):
                batch.update(indices[steps == step].tolist())
        return batches


@dataclass(frozen=True)
class EqualityData:
    """All trainings of a comparison."""

    settings: EqualitySettings
    compared: tuple[RecordedTraining, ...]  # the reference first
    rounding: RecordedTraining  # of the reference, with its weights moved


def load_equality(out: Path) -> EqualityData:
    """Read the trainings in the run folder `out`; raises DpscopeError if one is missing."""
    settings = read_json(out / EQUALITY_FOLDER / SETTINGS_NAME, EqualitySettings)
    trainings: dict[TrainingKind, list[RecordedTraining]] = {"compared": [], "rounding": []}
    for job in settings.jobs:
        for kind in job.trainings:
            folder = job.folder(out) / kind
            paths = [rank_paths(folder, rank) for rank in range(job.cell.processes)]
            if not all(record.exists() for record, _ in paths):
                raise DpscopeError(
                    f"{out / EQUALITY_FOLDER} is incomplete: one of its jobs was interrupted; compare again"
                )
            ranks = tuple(read_process(record, arrays) for record, arrays in paths)
            trainings[kind].append(RecordedTraining(job.cell, ranks))
    return EqualityData(settings, tuple(trainings["compared"]), trainings["rounding"][0])


def read_process(record: Path, arrays: Path) -> ProcessData:
    """What one process saved; raises DpscopeError for missing or damaged files."""
    try:
        return ProcessData(read_json(record, RankRecord), np.load(arrays))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DpscopeError(f"{arrays} is missing or damaged; compare again") from error


def sample_difference(
    reference: Sequence[Counter[int]], other: Sequence[Counter[int]]
) -> tuple[int, list[int], list[int]] | None:
    """The first step whose global batch has other samples than the reference's: the step, missing
    and extra indices.
    """
    for step, (expected, actual) in enumerate(zip(reference, other, strict=True)):
        if expected != actual:
            return step, sorted(expected - actual), sorted(actual - expected)
    return None


def first_names(names: Sequence[object]) -> str:
    """The first MAX_LISTED of some names, and the number of further ones."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(map(str, names[:MAX_LISTED])) + more
