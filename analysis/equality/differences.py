"""Differences between two trainings by step and tensor, and the tolerance for trainings that compute the same.

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

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpscope.analysis.equality.data import ProcessData, RecordedTraining
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
