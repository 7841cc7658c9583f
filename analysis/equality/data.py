"""The recorded trainings of `dpscope equal` as arrays and tables, and the samples that they saw."""

import math
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

_MIN_ORDERS = 10_000  # possible orders; with fewer, a repeated one may be chance


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

    @property
    def steps(self) -> int:
        return self.ranks[0].record.steps

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
        for training in job.trainings:
            folder = job.folder(out) / training.kind
            if folder.exists():
                ranks = tuple(_read_process(folder, rank) for rank in range(job.cell.processes))
                found[training.kind].append(RecordedTraining(cell=job.cell, kind=training.kind, ranks=ranks))
    if len(found["compared"]) < len(settings.jobs) or not found["rounding"]:
        raise DpscopeError(f"{out / EQUALITY_FOLDER} is incomplete: one of its jobs was interrupted; compare again")
    return EqualityData(
        settings=settings,
        compared=tuple(found["compared"]),
        rounding=found["rounding"][0],
        in_shares=next(iter(found["in_shares"]), None),
        rounding_in_shares=next(iter(found["rounding_in_shares"]), None),
    )


def _read_process(folder: Path, rank: int) -> ProcessData:
    record_path, arrays_path = rank_paths(folder, rank)
    return ProcessData(record=read_json(record_path, RankRecord), arrays=np.load(arrays_path))


@dataclass(frozen=True)
class SampleDifference:
    """The first step whose global batch has other samples than the reference's, by index in the data set."""

    step: int
    missing: tuple[int, ...]
    extra: tuple[int, ...]


@dataclass(frozen=True)
class LostSamples:
    """The first step in which loaded samples did not enter the model exactly once."""

    step: int
    never: tuple[int, ...]
    repeatedly: tuple[int, ...]


@dataclass(frozen=True)
class RepeatedEpoch:
    """The first epoch with its samples in the order of the epoch before, and its first step."""

    epoch: int
    step: int
    steps_compared: int


def sample_difference(reference: pd.DataFrame, other: pd.DataFrame) -> SampleDifference | None:
    """Compare two tables (`RecordedTraining.samples`) step by step, ignoring the order within a step."""
    keys = ["step", "index"]
    counts = pd.DataFrame({"reference": reference.groupby(keys).size(), "other": other.groupby(keys).size()})
    counts = counts.fillna(0).astype(int)
    apart = counts[counts["reference"] != counts["other"]].reset_index()
    if apart.empty:
        return None
    first = apart[apart["step"] == apart["step"].min()]
    less, more = first[first["other"] < first["reference"]], first[first["other"] > first["reference"]]
    return SampleDifference(
        step=int(first["step"].iloc[0]), missing=tuple(less["index"].tolist()), extra=tuple(more["index"].tolist())
    )


def lost_samples(samples: pd.DataFrame) -> LostSamples | None:
    """Samples that were loaded and never entered the model, or entered it more than once."""
    wrong = samples[samples["entered"] != 1]
    if wrong.empty:
        return None
    first = wrong[wrong["step"] == wrong["step"].min()]
    return LostSamples(
        step=int(first["step"].iloc[0]),
        never=tuple(sorted(first.loc[first["entered"] == 0, "index"].tolist())),
        repeatedly=tuple(sorted(first.loc[first["entered"] > 1, "index"].tolist())),
    )


def repeated_epoch(samples: pd.DataFrame) -> RepeatedEpoch | None:
    """The first epoch that repeats the order of the epoch before, over the steps that both have."""
    epochs = {int(str(epoch)): rows for epoch, rows in samples.groupby("epoch")}
    for epoch, rows in epochs.items():
        if epoch - 1 in epochs:
            current, before = _ordered(rows), _ordered(epochs[epoch - 1])
            common = min(current["step"].max(), before["step"].max()) + 1
            current, before = current[current["step"] < common], before[before["step"] < common]
            if math.perm(len(epochs[epoch - 1]), len(current)) >= _MIN_ORDERS and current.equals(before):
                return RepeatedEpoch(epoch=epoch, step=int(rows["step"].min()), steps_compared=int(common))
    return None


def _ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Rank, step of the epoch and index, ordered by rank and loading."""
    table = rows[["rank", "step", "index"]].assign(step=rows["step"] - rows["step"].min())
    return table.sort_values(["rank", "step"], kind="stable", ignore_index=True)


def repeated_samples(samples: pd.DataFrame) -> int:
    """The largest number of repeated samples of an epoch: the padding of uneven shares."""
    counts = samples.groupby(["epoch", "index"]).size()
    return int((counts - 1).groupby("epoch").sum().max())
