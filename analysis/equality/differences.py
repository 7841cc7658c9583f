"""Differences between two trainings by step and tensor, the tolerance for trainings that compute the same, and the verdicts.

A relative difference is the Euclidean norm of the difference over that of the reference's tensor. The norm of a tensor is at
least that of a tensor with the root mean square of all tensors of its kind: otherwise tensors of small values (a convolution's
bias before batch norm has a gradient of zero, up to rounding) would only show their rounding.

Strategies sum the same terms in another order. Regrouping a sum of B terms of one sign changes it by up to (B - 1) u of
itself (u: unit roundoff; Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, equation 4.4), with
cancellation by more, and from the second step on training amplifies it. The amplification is measured: the reference is
trained again with every weight moved to a neighbouring number. A single device with batch norm is moved twice, with whole
batches and in shares, whose fewer samples let rounding grow faster; the larger difference counts.

    tolerance of step k = SAFETY x max((B - 1) u, the largest relative difference to the moved training up to step k)

B: global batch. SAFETY: two trainings are each that far from exact arithmetic (2); a rounded sum of n terms is as good as
moves of about sqrt(n) units or, summed in blocks, of a few (assumed: 5).
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpscope.analysis.equality.data import ProcessData, RecordedTraining
from dpscope.analysis.equality.result import (
    Agreement,
    PairResult,
    RankAgreement,
    StepDistance,
    TensorDifference,
    TensorDistance,
    What,
)
from dpscope.analysis.text.units import plain
from dpscope.profiling.records.equality import EqualitySettings, Precision

SAFETY = 10.0
LARGEST_TOLERANCE = 1e-2
"""Steps with a larger tolerance are not judged: rounding could hide a mistake."""

_ROUNDOFF: dict[Precision, float] = {"float32": 2.0**-24, "float64": 2.0**-53}
WHATS = ("loss", "gradient", "weight")
COLUMNS = ("step", "what", "tensor", "absolute", "relative", "same_bits", "elements")
"""`what` is loss, gradient or weight; `absolute` the largest difference of an element; `elements` the number compared."""

_TensorValues = NDArray[np.float64]


def training_differences(reference: RecordedTraining, other: RecordedTraining) -> pd.DataFrame:
    """Differences of losses (of the global batch), gradients and weights (of rank 0); columns COLUMNS."""
    losses = reference.losses(), other.losses()
    loss = pd.DataFrame(
        {
            "step": np.arange(len(losses[0])),
            "what": "loss",
            "tensor": "",
            "absolute": np.abs(losses[1] - losses[0]),
            "relative": _ratio(np.abs(losses[1] - losses[0]), np.abs(losses[0])),
            "same_bits": losses[0] == losses[1],
            "elements": 1,
        }
    )
    return pd.concat([loss, process_differences(reference.ranks[0], other.ranks[0])], ignore_index=True)


def process_differences(reference: ProcessData, other: ProcessData) -> pd.DataFrame:
    """Differences of gradients and weights of two processes; columns COLUMNS."""
    frames = [
        _tensor_differences(reference, other, what, place)
        for what in ("gradient", "weight")
        for place in range(len(reference.record.parameters))
    ]
    return pd.concat(frames, ignore_index=True)


def _tensor_differences(reference: ProcessData, other: ProcessData, what: str, place: int) -> pd.DataFrame:
    parameter = reference.record.parameters[place]
    typical = _root_mean_square(reference, what)
    mine, others = (data.arrays[f"{what}.{place}"] for data in (reference, other))
    absolute, relative = _compare(mine, others, typical)
    elements = np.full(len(absolute), parameter.stored)
    whole = f"last_{what}.{place}"
    if whole in reference.arrays and whole in other.arrays:
        mine, others = reference.arrays[whole][None, :], other.arrays[whole][None, :]
        absolute[-1:], relative[-1:] = _compare(mine, others, typical[-1:])
        elements[-1] = parameter.elements
    return pd.DataFrame(
        {
            "step": np.arange(len(absolute)),
            "what": what,
            "tensor": parameter.name,
            "absolute": absolute,
            "relative": relative,
            "same_bits": reference.arrays[f"{what}_hash"][:, place] == other.arrays[f"{what}_hash"][:, place],
            "elements": elements,
        }
    )


def _compare(
    reference: NDArray[Any], other: NDArray[Any], typical: _TensorValues
) -> tuple[_TensorValues, _TensorValues]:
    """Largest absolute and relative difference of a tensor, per step; steps x elements each, `typical` per step."""
    reference = reference.astype(np.float64, copy=False)
    difference = other.astype(np.float64, copy=False) - reference
    scale = np.maximum(np.linalg.norm(reference, axis=1), typical * np.sqrt(reference.shape[1]))
    absolute: _TensorValues = np.abs(difference).max(axis=1, initial=0.0)
    return absolute, _ratio(np.linalg.norm(difference, axis=1), scale)


def _root_mean_square(data: ProcessData, what: str) -> _TensorValues:
    """The root mean square of all elements of all tensors of a kind, per step."""
    norms: _TensorValues = data.arrays[f"{what}_norm"]
    elements = sum(parameter.elements for parameter in data.record.parameters)
    mean: _TensorValues = np.sqrt((norms**2).sum(axis=1) / elements)
    return mean


def _ratio(difference: _TensorValues, scale: _TensorValues) -> _TensorValues:
    """The quotient; 0 without a difference, infinite if only `other` is not finite, NaN if the reference is not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(difference == 0, 0.0, difference / scale)
    found: _TensorValues = np.where(np.isfinite(scale), np.where(np.isnan(quotient), np.inf, quotient), np.nan)
    return found


def gradient_factor(reference: ProcessData, other: ProcessData, step: int) -> tuple[float, float]:
    """The factor f that brings f times the reference's gradients of a step nearest to the other's, and their distance.

    The distance is relative to the norm of the other's gradients, over all stored elements of all tensors.
    """
    places = range(len(reference.record.parameters))
    mine, others = (
        np.concatenate([data.arrays[f"gradient.{place}"][step].astype(np.float64) for place in places])
        for data in (reference, other)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = mine @ others / (mine @ mine)
        return float(factor), float(np.linalg.norm(others - factor * mine) / np.linalg.norm(others))


def output_differences(reference: RecordedTraining, other: RecordedTraining) -> pd.DataFrame:
    """Relative differences of module outputs in the first forward: columns call, relative, in the order of the calls.

    Outputs are compared sample by sample, on whichever device each was computed. Empty if the first global batches or the
    modules differ.
    """
    mine, others = _by_sample(reference), _by_sample(other)
    if mine is None or others is None or not np.array_equal(mine[0], others[0]) or list(mine[1]) != list(others[1]):
        return pd.DataFrame({"call": [], "relative": []})
    rows = [(call, _relative_output(values, others[1][call])) for call, values in mine[1].items()]
    return pd.DataFrame(rows, columns=["call", "relative"])


def _by_sample(training: RecordedTraining) -> tuple[NDArray[np.uint64], dict[str, NDArray[Any]]] | None:
    """Fingerprints of the first global batch in ascending order, and the outputs in that order; None without outputs."""
    samples = training.samples()
    first = samples[samples["step"] == 0]
    order = np.argsort(first["fingerprint"].to_numpy(), kind="stable")
    outputs = training.first_outputs()
    if any(len(values) != len(first) for values in outputs.values()):
        return None
    return first["fingerprint"].to_numpy()[order], {call: values[order] for call, values in outputs.items()}


def _relative_output(reference: NDArray[Any], other: NDArray[Any]) -> float:
    mine, others = reference.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    difference, scale = (np.array([np.linalg.norm(one)]) for one in (others - mine, mine))
    return float(_ratio(difference, scale)[0])


def least_tolerance(settings: EqualitySettings) -> float:
    """The smallest tolerance of any step."""
    return SAFETY * (settings.global_batch_size - 1) * _ROUNDOFF[settings.precision]


def tolerances(rounding: pd.DataFrame, settings: EqualitySettings) -> pd.DataFrame:
    """Columns `loss`, `gradient`, `weight` per step (the index), and each with ``_rounding``: the measured difference.

    `rounding`: differences between trainings and the same ones with moved weights.
    """
    measured = largest_per_step(rounding).cummax()
    table = (SAFETY * measured).clip(lower=least_tolerance(settings))
    return table.join(measured.add_suffix("_rounding"))


def output_tolerance(outputs: pd.DataFrame, settings: EqualitySettings) -> float:
    """The tolerance of module outputs in the first forward; `outputs`: their differences with moved weights."""
    measured = float(outputs["relative"].max()) if len(outputs) else 0.0
    return max(least_tolerance(settings), SAFETY * measured)


def largest_per_step(differences: pd.DataFrame) -> pd.DataFrame:
    """The largest relative difference of any tensor: columns `loss`, `gradient`, `weight`, one row per step; NaN is largest."""
    known = differences.assign(relative=differences["relative"].fillna(np.inf))
    table = known.pivot_table(index="step", columns="what", values="relative", aggfunc="max")
    return table.reindex(columns=list(WHATS))


def judged_steps(tolerance: pd.DataFrame, rounding: pd.DataFrame) -> int:
    """The number of steps, from the first, with a finite reference and tolerances of at most LARGEST_TOLERANCE."""
    usable = (tolerance[list(WHATS)] <= LARGEST_TOLERANCE).all(axis=1)
    unknown = set(rounding.loc[rounding["relative"].isna(), "step"])
    return next((step for step, fine in enumerate(usable) if not fine or step in unknown), len(usable))


_TENSORS: tuple[What, ...] = ("gradient", "weight")  # in the order of a step


@dataclass(frozen=True)
class JudgedPair:
    """Differences of two trainings with their tolerances; columns of `differences`: COLUMNS, tolerance, over."""

    reference: RecordedTraining
    other: RecordedTraining
    differences: pd.DataFrame
    judged_steps: int  # all steps of a pair that is equal bit for bit

    @property
    def same_bits(self) -> bool:
        """Whether gradients and weights are equal bit for bit."""
        tensors = self.differences[self.differences["what"] != "loss"]
        return bool(tensors["same_bits"].all())

    @property
    def first(self) -> TensorDifference | None:
        """The first difference beyond its tolerance, within a step in the order of WHATS; the largest of its kind."""
        over = self.differences[self.differences["over"]]
        if over.empty:
            return None
        at_step = over[over["step"] == over["step"].min()]
        what = next(what for what in WHATS if (at_step["what"] == what).any())
        of_kind = at_step[at_step["what"] == what]
        return _difference(of_kind.sort_values("relative").iloc[-1])

    @property
    def agree(self) -> bool:
        """Whether they are equal bit for bit, or within the tolerance at every judged step."""
        return self.same_bits or self.first is None


def judge_pair(
    reference: RecordedTraining, other: RecordedTraining, tolerance: pd.DataFrame, judged_steps: int
) -> JudgedPair:
    """Compare two trainings by the tolerances of each step (`differences.tolerances`)."""
    differences = training_differences(reference, other)
    per_row = tolerance.reset_index().melt("step", list(WHATS), "what", "tolerance")
    differences = differences.merge(per_row, on=["step", "what"], how="left", sort=False)
    over = (differences["relative"] > differences["tolerance"]) & (differences["step"] < judged_steps)
    pair = JudgedPair(reference, other, differences.assign(over=over), judged_steps)
    return replace(pair, judged_steps=reference.steps) if pair.same_bits else pair


def pair_result(pair: JudgedPair, explained: bool) -> PairResult:
    """The stored result of a pair; `explained`: its difference is not a mistake."""
    verdict: Agreement = "different"
    if pair.agree:
        verdict = "bit-equal" if pair.same_bits else "equal"
    elif explained:
        verdict = "explained"
    per_step = largest_per_step(pair.differences)
    return PairResult(
        reference=pair.reference.name,
        other=pair.other.name,
        verdict=verdict,
        judged_steps=pair.judged_steps,
        first_difference=pair.first,
        steps=tuple(StepDistance(**row) for row in plain_rows(per_step.reset_index())),
        tensors=_tensors(pair),
    )


def _tensors(pair: JudgedPair) -> tuple[TensorDistance, ...]:
    judged = pair.differences[pair.differences["step"] < pair.judged_steps]
    tables = judged[judged["what"] != "loss"].groupby(["what", "tensor"], sort=False)
    return tuple(_distance(table) for _, table in tables)


def _distance(table: pd.DataFrame) -> TensorDistance:
    over = table.loc[table["over"], "step"]
    return TensorDistance(
        what=table["what"].iloc[0],
        tensor=table["tensor"].iloc[0],
        absolute=known(table["absolute"].max(skipna=False)),
        relative=known(table["relative"].max(skipna=False)),
        first_step_over=int(over.min()) if len(over) else None,
        elements=int(table["elements"].iloc[0]),
        elements_at_last_step=int(table["elements"].iloc[-1]),
    )


def _difference(row: "pd.Series[Any]") -> TensorDifference:
    return TensorDifference(
        step=int(row["step"]),
        what=row["what"],
        tensor=row["tensor"],
        absolute=known(row["absolute"]),
        relative=known(row["relative"]),
        tolerance=known(row["tolerance"]),
        elements=int(row["elements"]),
    )


def rank_result(training: RecordedTraining, reference: RecordedTraining) -> RankAgreement:
    """Compare every rank with rank 0 bit for bit, as DistributedDataParallel promises equal ranks.

    `reference`, a training that should agree otherwise (another strategy with the same shares), shows which ranks are wrong.
    """
    found: list[tuple[int, What]] = []
    for what in _TENSORS:
        hashes = np.stack([rank.arrays[f"{what}_hash"] for rank in training.ranks])
        found += [(step, what) for step in np.flatnonzero((hashes != hashes[0]).any(axis=(0, 2))).tolist()]
    if not found:
        return RankAgreement(training.name, len(training.ranks), True, None, None, None, None, ())
    step, what = min(found, key=lambda one: (one[0], _TENSORS.index(one[1])))
    tensor, relative = _largest(training, step, what)
    apart = _apart(training, reference, step, what)
    return RankAgreement(training.name, len(training.ranks), False, step, what, tensor, known(relative), apart)


def _largest(training: RecordedTraining, step: int, what: What) -> tuple[str, float]:
    """The tensor with the largest difference between a rank and rank 0, and that difference."""
    largest = ("", -1.0)
    for rank in training.ranks[1:]:
        differences = process_differences(training.ranks[0], rank)
        rows = differences[(differences["step"] == step) & (differences["what"] == what)]
        row = rows.sort_values("relative").iloc[-1]
        largest = max(largest, (str(row["tensor"]), float(row["relative"])), key=lambda one: one[1])
    return largest


def _apart(training: RecordedTraining, reference: RecordedTraining, step: int, what: What) -> tuple[int, ...]:
    """Ranks that differ from the reference; if all or none do, the ranks that differ from rank 0."""
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


def known(value: float) -> float | None:
    """The value, None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain values by column, None for a value that is not finite."""
    return [{str(name): plain(value) for name, value in row.items()} for row in table.to_dict("records")]
