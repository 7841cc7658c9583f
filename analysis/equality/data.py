"""What the trainings of `dpscope equal` left in a run folder, read as arrays and tables."""

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
    """What one process saved; arrays as dpscope.profiling.records.equality names them, read when they are asked for."""

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
        """Such as ``ddp-d2-b4``, and for trainings that are evidence ``single-d1-b8 (in shares)``."""
        return self.cell.name if self.kind == "compared" else f"{self.cell.name} ({self.kind.replace('_', ' ')})"

    @property
    def parameters(self) -> tuple[ParameterRecord, ...]:
        return self.ranks[0].record.parameters

    @property
    def steps(self) -> int:
        return self.ranks[0].record.steps

    def losses(self) -> NDArray[np.float64]:
        """Mean loss over the global batch, per step: ranks have equal shares."""
        mean: NDArray[np.float64] = np.mean([rank.arrays["loss"] for rank in self.ranks], axis=0)
        return mean

    def samples(self) -> pd.DataFrame:
        """A row for each sample handed out: rank, step, epoch, index, fingerprint, entered."""
        names = ("step", "epoch", "index", "fingerprint", "entered")
        frames = [
            pd.DataFrame({name: rank.arrays[f"sample_{name}"] for name in names}).assign(rank=rank.record.rank)
            for rank in self.ranks
        ]
        return pd.concat(frames, ignore_index=True)

    def first_outputs(self) -> dict[str, NDArray[Any]]:
        """Per module call of the first step, in order: stored output elements, a row per sample of the global batch."""
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
    in_shares: RecordedTraining | None  # of the single device; None without one, or without batch norm by batch
    rounding_in_shares: RecordedTraining | None


def load_equality(out: Path) -> EqualityData:
    """Read what `dpscope equal` left in `out`; raises DpscopeError when it is not whole."""
    settings = read_json(out / EQUALITY_FOLDER / SETTINGS_NAME, EqualitySettings)
    found: dict[TrainingKind, list[RecordedTraining]] = {kind: [] for kind in get_args(TrainingKind)}
    for job in settings.jobs:
        for training in job.trainings:
            folder = job.folder(out) / training.kind
            if folder.exists():
                ranks = tuple(_process(folder, rank) for rank in range(job.cell.processes))
                found[training.kind].append(RecordedTraining(cell=job.cell, kind=training.kind, ranks=ranks))
    if len(found["compared"]) < len(settings.jobs) or not found["rounding"]:
        raise DpscopeError(f"{out / EQUALITY_FOLDER} is not whole: a job of it was cut short; compare again")
    return EqualityData(
        settings=settings,
        compared=tuple(found["compared"]),
        rounding=found["rounding"][0],
        in_shares=next(iter(found["in_shares"]), None),
        rounding_in_shares=next(iter(found["rounding_in_shares"]), None),
    )


def _process(folder: Path, rank: int) -> ProcessData:
    record_path, arrays_path = rank_paths(folder, rank)
    return ProcessData(record=read_json(record_path, RankRecord), arrays=np.load(arrays_path))
