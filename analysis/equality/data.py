"""The recorded trainings of `dpscope equal` as arrays and tables, and mistakes in the samples that they trained on."""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
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
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.learning_codes import LearningCode
from dpscope.profiling.records.quantities import MOST_COUNT
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import SETTINGS_NAME

MAX_LISTED = 5  # names or indices in a message

SampleTables = Mapping[str, pd.DataFrame]
"""Tables of samples (`RecordedTraining.samples`) by the training's name, the reference's first."""


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
                ranks = tuple(read_process(record, arrays) for record, arrays in paths)
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


def read_process(record: Path, arrays: Path) -> ProcessData:
    """What one process saved; raises DpscopeError for missing or damaged files and for samples that cannot be."""
    described = read_json(record, RankRecord)
    try:
        stored = np.load(arrays)
        for name in ("sample_step", "sample_epoch", "sample_index"):
            numbers = stored[name]
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() <= MOST_COUNT:
                raise DpscopeError(f"{arrays}: {name} is {numbers.min()} to {numbers.max()}; compare again")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DpscopeError(f"{arrays} is missing or damaged; compare again") from error
    return ProcessData(described, stored)


def sample_mistakes(name: str, samples: SampleTables) -> Iterator[Finding]:
    """In a training: samples lost or repeated between loader and model, and samples other than the reference's."""
    table, reference_name = samples[name], next(iter(samples))
    if lost := lost_samples(table):
        step, never, repeatedly = lost
        yield LearningCode.SAMPLES_LOST.finding(
            f"from step {step} on {name} loses or repeats samples between loader and model: in that step "
            f"{_listed(never, 'enters', 'enter')} no device's forward, and {_listed(repeatedly, 'enters', 'enter')} several"
        )
    if other := sample_difference(samples[reference_name], table):
        step, missing, extra = other
        yield LearningCode.SAMPLES_DIFFER.finding(
            f"from step {step} on {name} trains on different samples from {reference_name}: in that step "
            f"{_listed(missing, 'is', 'are')} missing and {_listed(extra, 'is', 'are')} too many"
        )


def _listed(samples: Sequence[int], one: str, several: str) -> str:
    if not samples:
        return f"none {one}"
    if len(samples) == 1:
        return f"sample {samples[0]} {one}"
    return f"samples {first_names(samples)} {several}"


def first_names(names: Sequence[object]) -> str:
    """The first MAX_LISTED of some names, and the number of further ones."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(map(str, names[:MAX_LISTED])) + more


def sample_difference(reference: pd.DataFrame, other: pd.DataFrame) -> tuple[int, list[int], list[int]] | None:
    """The first step whose global batch has other samples than the reference's: the step, missing and extra indices.

    Compares two tables (`RecordedTraining.samples`) step by step, ignoring the order within a step.
    """
    counts = (table.groupby(["step", "index"]).size() for table in (other, reference))
    surplus = next(counts).sub(next(counts), fill_value=0).sort_index()
    surplus = surplus[surplus != 0]
    if surplus.empty:
        return None
    step = surplus.index[0][0]
    first = surplus.loc[step]
    return int(step), first.index[first < 0].tolist(), first.index[first > 0].tolist()


def lost_samples(samples: pd.DataFrame) -> tuple[int, list[int], list[int]] | None:
    """The first step whose loaded samples did not all enter the model once: the step, those that never and repeatedly did."""
    wrong = samples[samples["entered"] != 1]
    if wrong.empty:
        return None
    step = wrong["step"].min()
    first = wrong[wrong["step"] == step].sort_values("index")
    never = first["entered"] == 0
    return int(step), first.loc[never, "index"].tolist(), first.loc[~never, "index"].tolist()
