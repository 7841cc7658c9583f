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
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpscope.analysis.equality import result
from dpscope.analysis.equality.data import ProcessData, RecordedTraining
from dpscope.analysis.equality.result import TensorDifference, What
from dpscope.analysis.text.units import plain
from dpscope.profiling.records.equality import EqualitySettings, Precision

SAFETY = 10.0
LARGEST_TOLERANCE = 1e-2
"""Steps with a larger tolerance are not judged: rounding could hide a mistake."""

_ROUNDOFF: dict[Precision, float] = {"float32": 2.0**-24, "float64": 2.0**-53}
_TENSORS: tuple[What, ...] = ("gradient", "weight")  # in the order of a step
WHATS: tuple[What, ...] = ("loss", *_TENSORS)

_Values = NDArray[np.float64]


@np.errstate(invalid="ignore", over="ignore")  # of trainings that diverge
def training_differences(reference: RecordedTraining, other: RecordedTraining) -> pd.DataFrame:
    """Differences of losses (of the global batch), gradients and weights (of rank 0).

    Columns: step; what (loss, gradient, weight); tensor; absolute, the largest of an element; relative; same_bits; elements,
    the number compared.
    """
    mine, others = reference.losses(), other.losses()
    absolute = np.abs(others - mine)
    loss = _table("loss", "", absolute, _ratio(absolute, np.abs(mine)), mine == others, 1)
    return pd.concat([loss, process_differences(reference.ranks[0], other.ranks[0])], ignore_index=True)


@np.errstate(invalid="ignore", over="ignore")
def process_differences(reference: ProcessData, other: ProcessData) -> pd.DataFrame:
    """Differences of gradients and weights of two processes; columns as of `training_differences`."""
    parameters, frames = reference.record.parameters, []
    for what in _TENSORS:
        norms = reference.arrays[f"{what}_norm"]
        typical = np.sqrt((norms**2).sum(axis=1) / sum(one.elements for one in parameters))  # root mean square per step
        same_bits = reference.arrays[f"{what}_hash"] == other.arrays[f"{what}_hash"]
        for place, parameter in enumerate(parameters):
            mine, others = (data.arrays[f"{what}.{place}"] for data in (reference, other))
            absolute, relative = _compare(mine, others, typical)
            elements = np.full(len(absolute), parameter.stored)
            whole = f"last_{what}.{place}"
            if whole in reference.arrays and whole in other.arrays:
                mine, others = reference.arrays[whole][None, :], other.arrays[whole][None, :]
                absolute[-1:], relative[-1:] = _compare(mine, others, typical[-1:])
                elements[-1] = parameter.elements
            frames.append(_table(what, parameter.name, absolute, relative, same_bits[:, place], elements))
    return pd.concat(frames, ignore_index=True)


def _table(
    what: What, tensor: str, absolute: _Values, relative: _Values, same_bits: NDArray[Any], elements: Any
) -> pd.DataFrame:
    steps = np.arange(len(absolute))
    columns = {"step": steps, "what": what, "tensor": tensor, "absolute": absolute, "relative": relative}
    return pd.DataFrame({**columns, "same_bits": same_bits, "elements": elements})


def _compare(reference: NDArray[Any], other: NDArray[Any], typical: _Values) -> tuple[_Values, _Values]:
    """Largest absolute and relative difference of a tensor, per step; steps x elements each, `typical` per step."""
    reference = reference.astype(np.float64, copy=False)
    difference = other.astype(np.float64, copy=False) - reference
    scale = np.maximum(np.linalg.norm(reference, axis=1), typical * np.sqrt(reference.shape[1]))
    absolute: _Values = np.abs(difference).max(axis=1, initial=0.0)
    return absolute, _ratio(np.linalg.norm(difference, axis=1), scale)


def _ratio(difference: _Values, scale: _Values) -> _Values:
    """The quotient; 0 without a difference, infinite if only `other` is not finite, NaN if the reference is not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(difference == 0, 0.0, difference / scale)
    found: _Values = np.where(np.isfinite(scale), np.where(np.isnan(quotient), np.inf, quotient), np.nan)
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


def output_differences(reference: RecordedTraining, other: RecordedTraining) -> dict[str, float]:
    """Relative differences of module outputs in the first forward, by module call in the order of the calls.

    Outputs are compared sample by sample, on whichever device each was computed. Empty if the first global batches or the
    modules differ.
    """
    (samples, mine), (other_samples, others) = _by_sample(reference), _by_sample(other)
    if not np.array_equal(samples, other_samples) or list(mine) != list(others):
        return {}
    apart = np.array([np.linalg.norm(others[call] - values) for call, values in mine.items()])
    scale = np.array([np.linalg.norm(values) for values in mine.values()])
    return dict(zip(mine, _ratio(apart, scale).tolist(), strict=True))


def _by_sample(training: RecordedTraining) -> tuple[NDArray[np.uint64], dict[str, NDArray[Any]]]:
    """Fingerprints of the first global batch in ascending order, and the outputs of all its samples in that order."""
    samples = training.samples()
    first = samples.loc[samples["step"] == 0, "fingerprint"].to_numpy()
    order = np.argsort(first, kind="stable")
    outputs = {call: values.astype(np.float64) for call, values in training.first_outputs().items()}
    whole = all(len(values) == len(first) for values in outputs.values())
    return first[order], {call: values[order] for call, values in outputs.items()} if whole else {}


def least_tolerance(settings: EqualitySettings) -> float:
    """The smallest tolerance of any step, and of module outputs."""
    return SAFETY * (settings.global_batch_size - 1) * _ROUNDOFF[settings.precision]


def tolerances(rounding: pd.DataFrame, settings: EqualitySettings) -> pd.DataFrame:
    """Columns `loss`, `gradient`, `weight` per step (the index), and each with ``_rounding``: the measured difference.

    `rounding`: differences between trainings and the same ones with moved weights.
    """
    measured = largest_per_step(rounding).cummax()
    table = (SAFETY * measured).clip(lower=least_tolerance(settings))
    return table.join(measured.add_suffix("_rounding"))


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


def judge_pair(
    reference: RecordedTraining, other: RecordedTraining, tolerance: pd.DataFrame, judged_steps: int
) -> result.PairResult:
    """Compare two trainings by each step's tolerances (`tolerances`), up to `judged_steps`, or while finite if all bits agree."""
    rows = training_differences(reference, other)
    per_row = tolerance.reset_index().melt("step", list(WHATS), "what", "tolerance")
    rows = rows.merge(per_row, on=["step", "what"], how="left", sort=False)
    rows["over"] = (rows["relative"] > rows["tolerance"]) & (rows["step"] < judged_steps)
    tensors = rows[rows["what"] != "loss"]
    same_bits = bool(tensors["same_bits"].all())
    not_finite = rows.loc[rows["relative"].isna(), "step"]  # where equal bits show nothing
    judged = int(min(not_finite, default=len(tolerance))) if same_bits else judged_steps
    agreement: result.Agreement = "bit-equal" if same_bits else "different" if rows["over"].any() else "equal"
    return result.PairResult(
        reference=reference.name,
        other=other.name,
        verdict=agreement if judged else "not judged",
        judged_steps=judged,
        first_difference=_first_beyond(rows[rows["over"]]),
        steps=tuple(result.StepDistance(**row) for row in plain_rows(largest_per_step(rows).reset_index())),
        tensors=tuple(
            _distance(table) for _, table in tensors[tensors["step"] < judged].groupby(["what", "tensor"], sort=False)
        ),
    )


def _first_beyond(over: pd.DataFrame) -> TensorDifference | None:
    """The first difference beyond its tolerance, within a step in the order of WHATS; the largest of its kind."""
    for what in WHATS:
        of_kind = over[(over["step"] == over["step"].min()) & (over["what"] == what)]
        if len(of_kind):
            row = plain_rows(of_kind.sort_values("relative").iloc[[-1]])[0]
            return TensorDifference(**{name: row[name] for name in TensorDifference.__struct_fields__})
    return None


def _distance(table: pd.DataFrame) -> result.TensorDistance:
    over = table.loc[table["over"], "step"]
    return result.TensorDistance(
        what=table["what"].iloc[0],
        tensor=table["tensor"].iloc[0],
        absolute=known(table["absolute"].max(skipna=False)),
        relative=known(table["relative"].max(skipna=False)),
        first_step_over=int(over.min()) if len(over) else None,
        elements=int(table["elements"].iloc[0]),
        elements_at_last_step=int(table["elements"].iloc[-1]),
    )


def rank_result(training: RecordedTraining) -> result.RankAgreement:
    """Compare every rank with rank 0 bit for bit, as DistributedDataParallel promises equal ranks."""
    ranks, found = training.ranks, []
    for what in _TENSORS:
        hashes = np.stack([rank.arrays[f"{what}_hash"] for rank in ranks])
        apart = (hashes != hashes[0]).any(axis=2)  # ranks x steps
        found += [(step, what, np.flatnonzero(apart[:, step]).tolist()) for step in np.flatnonzero(apart.any(axis=0))]
    if not found:
        return result.RankAgreement(training.name, len(ranks), True, None, None, None, None, ())
    step, what, apart_from_0 = min(found, key=lambda one: one[0])  # the first of equal ones: the gradients

    def largest(one: ProcessData, other: ProcessData) -> tuple[float, str]:
        rows = process_differences(one, other)
        row = rows[(rows["step"] == step) & (rows["what"] == what)].sort_values("relative").iloc[-1]
        return float(row["relative"]), str(row["tensor"])

    relative, tensor = max((largest(ranks[0], rank) for rank in ranks[1:]), key=lambda one: one[0])
    return result.RankAgreement(
        training.name, len(ranks), False, int(step), what, tensor, known(relative), tuple(apart_from_0)
    )


def known(value: float) -> float | None:
    """The value, None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain values by column, None for a value that is not finite."""
    return [{str(name): plain(value) for name, value in row.items()} for row in table.to_dict("records")]
