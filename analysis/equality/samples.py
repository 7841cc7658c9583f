"""Which samples a training saw, from its table of them: lost on the way, other ones than the reference, repeated orders."""

import math
from dataclasses import dataclass

import pandas as pd

_ORDERS = 10_000  # there must be that many, for a repeated one not to be chance


@dataclass(frozen=True)
class SampleDifference:
    """The first step whose global batch holds other samples than the reference's, by their index in the data set."""

    step: int
    missing: tuple[int, ...]
    extra: tuple[int, ...]


@dataclass(frozen=True)
class LostSamples:
    """The first step in which samples that were handed out did not enter the model exactly once."""

    step: int
    never: tuple[int, ...]
    repeatedly: tuple[int, ...]


@dataclass(frozen=True)
class RepeatedEpoch:
    """The first epoch that takes its samples in the order of the one before, and its first step."""

    epoch: int
    step: int
    steps_compared: int


def sample_difference(reference: pd.DataFrame, other: pd.DataFrame) -> SampleDifference | None:
    """Compare two tables (`RecordedTraining.samples`) step by step, whatever the order of samples within a step."""
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
    """What was handed out and never entered the model, or entered it more than once."""
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
    """Whether an epoch repeats the order of the one before it, over the steps both have: nobody shuffled anew."""
    epochs = {int(str(epoch)): rows for epoch, rows in samples.groupby("epoch")}
    for epoch, rows in epochs.items():
        if epoch - 1 in epochs:
            now, before = _ordered(rows), _ordered(epochs[epoch - 1])
            common = min(now["step"].max(), before["step"].max()) + 1
            now, before = now[now["step"] < common], before[before["step"] < common]
            if math.perm(len(epochs[epoch - 1]), len(now)) >= _ORDERS and now.equals(before):
                return RepeatedEpoch(epoch=epoch, step=int(rows["step"].min()), steps_compared=int(common))
    return None


def _ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Rank, step of the epoch and index, in the order of ranks and of handing out."""
    table = rows[["rank", "step", "index"]].assign(step=rows["step"] - rows["step"].min())
    return table.sort_values(["rank", "step"], kind="stable", ignore_index=True)


def repeated_samples(samples: pd.DataFrame) -> int:
    """How many samples too many an epoch takes at most: the padding of uneven shares."""
    counts = samples.groupby(["epoch", "index"]).size()
    return int((counts - 1).groupby("epoch").sum().max())
