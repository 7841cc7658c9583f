"""Differences between two trainings by step and tensor, the tolerance for trainings that compute
the same, and the verdicts.

A relative difference is the Euclidean norm of the difference over that of the reference's tensor.
The norm of a tensor is at least that of a tensor with the root mean square of all tensors of its
kind: otherwise tensors of small values (a convolution's bias before batch norm has a gradient of
zero, up to rounding) would only show their rounding.

Strategies sum the same terms in another order. Regrouping a sum of B terms of one sign changes it
by up to (B - 1) u of itself (u: unit roundoff; Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., 2002, equation 4.4), with cancellation by more, and from the second step on
training amplifies it. The amplification is measured: the reference is trained again with every
weight moved to a neighbouring number.

    tolerance of step k = SAFETY x max((B - 1) u, the largest relative difference to the moved
    training up to step k)

B: global batch. SAFETY: two trainings are each that far from exact arithmetic (2); a rounded sum of
n terms is as good as moves of about sqrt(n) units or, summed in blocks, of a few (assumed: 5).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpscope.analysis.equality.data import ProcessData, RecordedTraining
from dpscope.analysis.equality.result import (
    Agreement,
    PairResult,
    RankAgreement,
    StepDistance,
    StepTolerance,
    TensorDifference,
    What,
)
from dpscope.profiling.records.equality import EqualitySettings, Precision

SAFETY = 10.0
LARGEST_TOLERANCE = 1e-2
"""Steps with a larger tolerance are not judged: rounding could hide a mistake."""

_ROUNDOFF: dict[Precision, float] = {"float32": 2.0**-24, "float64": 2.0**-53}
_TENSORS: tuple[What, ...] = ("gradient", "weight")  # in the order of a step
_HASHES = tuple(f"{what}_hash" for what in _TENSORS)
WHATS: tuple[What, ...] = ("loss", *_TENSORS)

_Values = NDArray[np.float64]


class Differences(NamedTuple):
    """Of two trainings, steps x tensors each: the relative difference, and whether bits are
    equal.
    """

    tensors: tuple[str, ...]
    relative: _Values
    same_bits: NDArray[np.bool_]

    @property
    def largest(self) -> _Values:
        """Of any tensor, per step; where the reference is not finite, infinite."""
        largest: _Values = np.where(np.isnan(self.relative), np.inf, self.relative).max(axis=1)
        return largest


@np.errstate(invalid="ignore", over="ignore")  # of trainings that diverge
def training_differences(
    reference: RecordedTraining, other: RecordedTraining
) -> dict[What, Differences]:
    """Of losses (of the global batch), gradients and weights (of rank 0)."""
    mine = reference.losses()[:, None]
    others = other.losses()[:, None]
    relative = _ratio(np.abs(others - mine), np.abs(mine))
    differences: dict[What, Differences] = {
        "loss": Differences(("",), relative, same_bits=mine == others)
    }
    for what in _TENSORS:
        differences[what] = process_differences(reference.ranks[0], other.ranks[0], what)
    return differences


@np.errstate(invalid="ignore", over="ignore")
def process_differences(reference: ProcessData, other: ProcessData, what: What) -> Differences:
    """Of the gradients or weights of two processes."""
    parameters = reference.record.parameters
    norms = reference.arrays[f"{what}_norm"]
    # root mean square per step
    typical = np.sqrt((norms**2).sum(axis=1) / sum(parameter.elements for parameter in parameters))
    relative = []
    for place in range(len(parameters)):
        mine = reference.arrays[f"{what}.{place}"].astype(np.float64, copy=False)
        difference = other.arrays[f"{what}.{place}"].astype(np.float64, copy=False) - mine
        scale = np.maximum(np.linalg.norm(mine, axis=1), typical * np.sqrt(mine.shape[1]))
        relative.append(_ratio(np.linalg.norm(difference, axis=1), scale))
    return Differences(
        tensors=tuple(parameter.name for parameter in parameters),
        relative=np.stack(relative, axis=1),
        same_bits=reference.arrays[f"{what}_hash"] == other.arrays[f"{what}_hash"],
    )


def _ratio(difference: _Values, scale: _Values) -> _Values:
    """The quotient; 0 without a difference, infinite if only `other` is not finite, NaN if the
    reference is not.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(difference == 0, 0.0, difference / scale)
    ratio: _Values = np.where(
        np.isfinite(scale), np.where(np.isnan(quotient), np.inf, quotient), np.nan
    )
    return ratio


def gradient_factor(reference: ProcessData, other: ProcessData, step: int) -> tuple[float, float]:
    """The factor f that brings f times the reference's gradients of a step nearest to the other's,
    and their distance.

    The distance is relative to the norm of the other's gradients, over all stored elements of all
    tensors.
    """
    mine, others = _gradients(reference, step), _gradients(other, step)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = mine @ others / (mine @ mine)
        distance = np.linalg.norm(others - factor * mine) / np.linalg.norm(others)
    return float(factor), float(distance)


def _gradients(process: ProcessData, step: int) -> _Values:
    """All stored elements of all gradients of a step."""
    places = range(len(process.record.parameters))
    gradients = [process.arrays[f"gradient.{place}"][step] for place in places]
    return np.concatenate(gradients).astype(np.float64)


class Tolerances(NamedTuple):
    """Per step, the relative difference that is tolerated and the one measured; `judged` steps can
    be distinguished from rounding.
    """

    tolerated: dict[What, _Values]
    measured: dict[What, _Values]
    judged: int

    def rows(self) -> tuple[StepTolerance, ...]:
        columns = [
            *(self.tolerated[what] for what in WHATS),
            *(self.measured[what] for what in WHATS),
        ]
        return tuple(
            StepTolerance(step, *map(known, values))
            for step, values in enumerate(zip(*columns, strict=True))
        )


def tolerances(moved: dict[What, Differences], settings: EqualitySettings) -> Tolerances:
    """From the differences between the reference and the same training with moved weights."""
    regrouping = (settings.global_batch_size - 1) * _ROUNDOFF[settings.precision]
    measured = {what: np.maximum.accumulate(moved[what].largest) for what in WHATS}
    tolerated = {what: SAFETY * np.maximum(values, regrouping) for what, values in measured.items()}
    fine = np.all([values <= LARGEST_TOLERANCE for values in tolerated.values()], axis=0)
    return Tolerances(tolerated, measured, _first_steps(fine))


def _first_steps(sound: NDArray[np.bool_]) -> int:
    """How many of the first steps are sound."""
    return len(sound) if sound.all() else int(np.argmin(sound))


def judge_pair(
    reference: RecordedTraining, other: RecordedTraining, tolerance: Tolerances
) -> PairResult:
    """Compare two trainings by each step's tolerances, or while finite if all bits agree."""
    differences = training_differences(reference, other)
    first = _first_beyond(differences, tolerance)
    same_bits = all(bool(differences[what].same_bits.all()) for what in _TENSORS)
    judged = tolerance.judged
    agreement: Agreement = "equal" if first is None else "different"
    if same_bits:
        agreement = "bit-equal"
        # equal bits show nothing where values are not finite
        unknown = [np.isnan(each.relative).any(axis=1) for each in differences.values()]
        judged = _first_steps(~np.any(unknown, axis=0))
    steps = zip(*(differences[what].largest.tolist() for what in WHATS), strict=True)
    return PairResult(
        reference=reference.name,
        other=other.name,
        verdict=agreement if judged else "not judged",
        judged_steps=judged,
        first_difference=first,
        steps=tuple(StepDistance(step, *map(known, values)) for step, values in enumerate(steps)),
    )


def _first_beyond(
    differences: dict[What, Differences], tolerance: Tolerances
) -> TensorDifference | None:
    """The first difference beyond its tolerance, within a step in the order of WHATS; the largest
    of its kind.
    """
    for step in range(tolerance.judged):
        for what in WHATS:
            tolerated = tolerance.tolerated[what][step]
            if (differences[what].relative[step] > tolerated).any():
                return _largest(differences[what], what, step, float(tolerated))
    return None


def _largest(
    differences: Differences, what: What, step: int, tolerated: float | None
) -> TensorDifference:
    relative = differences.relative[step]
    index = int(np.argmax(np.nan_to_num(relative, nan=-1.0, posinf=np.inf)))
    return TensorDifference(
        step=step,
        what=what,
        tensor=differences.tensors[index],
        relative=known(relative[index]),
        tolerance=tolerated,
    )


def rank_result(training: RecordedTraining) -> RankAgreement:
    """Compare every rank with rank 0 bit for bit, as DistributedDataParallel promises equal
    ranks.
    """
    first, ranks = training.ranks[0], training.ranks
    apart = np.stack([_bits_apart(first, rank) for rank in ranks])  # ranks x steps x kinds
    differing = np.argwhere(apart.any(axis=0))
    if len(differing) == 0:
        return RankAgreement(training.name, len(ranks), True, None, ())
    step, kind = differing[0].tolist()  # in the first step, gradients before weights
    what = _TENSORS[kind]
    ranks_apart = np.flatnonzero(apart[:, step, kind]).tolist()
    differences = [
        _largest(process_differences(first, ranks[rank], what), what, step, None)
        for rank in ranks_apart
    ]
    largest = max(
        differences, key=lambda tensor: math.inf if tensor.relative is None else tensor.relative
    )
    return RankAgreement(training.name, len(ranks), False, largest, tuple(ranks_apart))


def _bits_apart(first: ProcessData, other: ProcessData) -> NDArray[np.bool_]:
    """Whether any gradient, and any weight, has other bits, per step."""
    hashes = [(first.arrays[name], other.arrays[name]) for name in _HASHES]
    return np.stack([(mine != others).any(axis=1) for mine, others in hashes], axis=1)


def known(value: float) -> float | None:
    """The value, None if it is not finite."""
    return float(value) if math.isfinite(value) else None
