"""The samples on which the trainings of `dpscope equal` trained: others than the reference's, lost, in a repeated order."""

import math
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.learning_codes import LearningCode

_MIN_ORDERS = 10_000  # possible orders; with fewer, a repeated one may be chance
MAX_LISTED = 5  # names or indices in a message

SampleTables = Mapping[str, pd.DataFrame]
"""Tables of samples (`RecordedTraining.samples`) by the training's name, the reference's first."""
Mistake = tuple[str, Finding]
"""The name of a training, and a finding of severity error about it."""


def sample_mistakes(samples: SampleTables, shuffled: bool) -> Iterator[Mistake]:
    """Samples other than the reference's, samples lost between loader and model, epochs in the same order."""
    for name in samples:
        yield from ((name, finding) for finding in _mistakes(name, samples, shuffled))


def _mistakes(name: str, samples: SampleTables, shuffled: bool) -> Iterator[Finding]:
    table, reference_name = samples[name], next(iter(samples))
    if repeated := repeated_epoch(table) if shuffled else None:
        epoch, step, compared = repeated
        yield LearningCode.EPOCH_ORDER_REPEATED.finding(
            f"{name} takes the samples of epoch {epoch}, from step {step} on, in the order of the previous epoch "
            f"({counted(compared, 'step')} compared)",
            "call the sampler's set_epoch at the beginning of every epoch",
        )
    step, never, repeatedly = lost_samples(table) or (0, [], [])
    if never:
        yield LearningCode.SAMPLES_LOST.finding(
            f"from step {step} on {name} loses samples between loader and model: in that step "
            f"{_listed(never, 'enters', 'enter')} no device's forward",
            "check how a batch is scattered: a remainder may go to no device",
        )
    if repeatedly:
        yield LearningCode.SAMPLES_REPEATED.finding(
            f"from step {step} on {name} trains on samples more than once: in that step "
            f"{_listed(repeatedly, 'enters', 'enter')} several forwards",
            "check how a batch is scattered: shares may overlap",
        )
    other = sample_difference(samples[reference_name], table)
    if other is not None and (repeated is None or other[0] < repeated[1]):
        step, missing, extra = other
        yield LearningCode.SAMPLES_DIFFER.finding(
            f"from step {step} on {name} trains on different samples from {reference_name}: in that step "
            f"{_listed(missing, 'is', 'are')} missing and {_listed(extra, 'is', 'are')} too many",
            "check how the sampler splits an epoch: remainders that no rank gets, shuffling, seeds",
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


def repeated_epoch(samples: pd.DataFrame) -> tuple[int, int, int] | None:
    """The first epoch that repeats the order of the epoch before: its number, its first step, the steps compared.

    Steps are compared that both epochs have.
    """
    epochs = {int(str(epoch)): rows for epoch, rows in samples.groupby("epoch")}
    for epoch, rows in epochs.items():
        if epoch - 1 in epochs:
            current, before = _ordered(rows), _ordered(epochs[epoch - 1])
            common = min(current["step"].max(), before["step"].max()) + 1
            current, before = current[current["step"] < common], before[before["step"] < common]
            if math.perm(len(epochs[epoch - 1]), len(current)) >= _MIN_ORDERS and current.equals(before):
                return epoch, int(rows["step"].min()), int(common)
    return None


def _ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Rank, step of the epoch and index, ordered by rank and loading."""
    table = rows[["rank", "step", "index"]].assign(step=rows["step"] - rows["step"].min())
    return table.sort_values(["rank", "step"], kind="stable", ignore_index=True)


def repeated_samples(samples: pd.DataFrame) -> int:
    """The largest number of repeated samples of an epoch: the padding of uneven shares."""
    counts = samples.groupby(["epoch", "index"]).size()
    return int((counts - 1).groupby("epoch").sum().max())
