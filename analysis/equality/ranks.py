"""Whether all processes of a training hold the same gradients and weights: DistributedDataParallel promises it."""

import numpy as np

from dpscope.analysis.equality.data import RecordedTraining
from dpscope.analysis.equality.differences import process_differences
from dpscope.analysis.equality.pairs import known
from dpscope.analysis.equality.result import RankAgreement, What
from dpscope.analysis.equality.tolerance import LARGEST_TOLERANCE

KINDS: tuple[What, ...] = ("gradient", "weight")  # in the order in which a step makes them


def rank_result(training: RecordedTraining, reference: RecordedTraining) -> RankAgreement:
    """Compare every rank with rank 0, bit for bit; `reference` tells which of those that differ are wrong.

    The reference should agree with the training otherwise: its other strategy with the same shares, if there is one.
    """
    found = [(step, what) for what in KINDS for step in _steps_apart(training, what)]
    if not found:
        return RankAgreement(
            training=training.name,
            ranks=len(training.ranks),
            same_bits=True,
            first_step=None,
            what=None,
            tensor=None,
            relative=None,
            ranks_apart=(),
        )
    step, what = min(found, key=lambda one: (one[0], KINDS.index(one[1])))
    tensor, relative = _largest(training, step, what)
    return RankAgreement(
        training=training.name,
        ranks=len(training.ranks),
        same_bits=False,
        first_step=step,
        what=what,
        tensor=tensor,
        relative=known(relative),
        ranks_apart=_apart(training, reference, step, what),
    )


def _steps_apart(training: RecordedTraining, what: What) -> list[int]:
    """Steps at which a rank has other bits than rank 0."""
    hashes = np.stack([rank.arrays[f"{what}_hash"] for rank in training.ranks])
    return np.flatnonzero((hashes != hashes[0]).any(axis=(0, 2))).tolist()


def _largest(training: RecordedTraining, step: int, what: What) -> tuple[str, float]:
    """The tensor in which a rank is farthest from rank 0, and how far."""
    largest = ("", -1.0)
    for rank in training.ranks[1:]:
        differences = process_differences(training.ranks[0], rank)
        rows = differences[(differences["step"] == step) & (differences["what"] == what)]
        row = rows.sort_values("relative").iloc[-1]
        largest = max(largest, (str(row["tensor"]), float(row["relative"])), key=lambda one: one[1])
    return largest


def _apart(training: RecordedTraining, reference: RecordedTraining, step: int, what: What) -> tuple[int, ...]:
    """Ranks that are not what the reference is; all that are not what rank 0 is, where the reference is neither."""
    wrong = []
    for rank in training.ranks:
        differences = process_differences(reference.ranks[0], rank)
        rows = differences[(differences["step"] == step) & (differences["what"] == what)]
        if rows["relative"].max() > LARGEST_TOLERANCE:
            wrong.append(rank.record.rank)
    if 0 < len(wrong) < len(training.ranks):
        return tuple(wrong)
    hashes = np.stack([rank.arrays[f"{what}_hash"][step] for rank in training.ranks])
    return tuple(np.flatnonzero((hashes != hashes[0]).any(axis=1)).tolist())
