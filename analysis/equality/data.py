"""The recorded trainings of `dpscope equal` as arrays and tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
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


@dataclass(frozen=True)
class ProcessData:
    """What one process saved; the arrays, named in dpscope.profiling.records.equality, are read on access."""

    record: RankRecord
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class RecordedTraining:
    """One training, its processes in rank order."""

    cell: Cell
    kind: TrainingKind
    ranks: tuple[ProcessData, ...]

    @property
    def name(self) -> str:
        """Such as ``ddp-d2-b4``, or ``single-d1-b8 (in shares)`` for a training that only serves as evidence."""
        return self.cell.name if self.kind == "compared" else f"{self.cell.name} ({self.kind.replace('_', ' ')})"

    @property
    def parameters(self) -> tuple[ParameterRecord, ...]:
        return self.ranks[0].record.parameters

    def losses(self) -> NDArray[np.float64]:
        """Mean loss over the global batch per step; ranks have equal shares."""
        mean: NDArray[np.float64] = np.mean([rank.arrays["loss"] for rank in self.ranks], axis=0)
        return mean

    def samples(self) -> pd.DataFrame:
        """One row per loaded sample: rank, step, epoch, index, fingerprint, entered."""
        names = ("step", "epoch", "index", "fingerprint", "entered")
        frames = [
            pd.DataFrame({name: rank.arrays[f"sample_{name}"] for name in names}).assign(rank=rank.record.rank)
            for rank in self.ranks
        ]
        return pd.concat(frames, ignore_index=True)

    def first_outputs(self) -> dict[str, NDArray[Any]]:
        """Stored output elements by module call of the first step, in order; one row per sample of the global batch."""
        calls = self.ranks[0].record.module_calls
        return {
            call: np.concatenate([rank.arrays[f"output.{place}"] for rank in self.ranks])
            for place, call in enumerate(calls)
        }


@dataclass(frozen=True)
class EqualityData:
    """All trainings of a comparison."""

    settings: EqualitySettings
    compared: tuple[RecordedTraining, ...]  # the reference first
    rounding: RecordedTraining  # of the reference
    in_shares: RecordedTraining | None  # of the single device; None without one, or without its batch norm
    rounding_in_shares: RecordedTraining | None


def load_equality(out: Path) -> EqualityData:
    """Read the trainings in the run folder `out`; raises DpscopeError if one is missing."""
    settings = read_json(out / EQUALITY_FOLDER / SETTINGS_NAME, EqualitySettings)
    found: dict[TrainingKind, list[RecordedTraining]] = {kind: [] for kind in get_args(TrainingKind)}
    for job in settings.jobs:
        for kind in (training.kind for training in job.trainings):
            if (folder := job.folder(out) / kind).exists():
                paths = [rank_paths(folder, rank) for rank in range(job.cell.processes)]
                ranks = tuple(ProcessData(read_json(record, RankRecord), np.load(arrays)) for record, arrays in paths)
                found[kind].append(RecordedTraining(job.cell, kind, ranks))
    if len(found["compared"]) < len(settings.jobs) or not found["rounding"]:
        raise DpscopeError(f"{out / EQUALITY_FOLDER} is incomplete: one of its jobs was interrupted; compare again")
    return EqualityData(
        settings=settings,
        compared=tuple(found["compared"]),
        rounding=found["rounding"][0],
        in_shares=next(iter(found["in_shares"]), None),
        rounding_in_shares=next(iter(found["rounding_in_shares"]), None),
    )
