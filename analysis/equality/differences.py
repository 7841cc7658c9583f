"""How far two trainings are apart: step by step, tensor by tensor.

A relative difference is the Euclidean norm of the difference over that of the reference's tensor. Tensors whose values are
small beside the others' (a convolution's bias before batch norm has a gradient of zero but for rounding) would show nothing
but their own rounding: their norm counts as if their values had the root mean square of all tensors of that kind.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpscope.analysis.equality.data import ProcessData, RecordedTraining

COLUMNS = ("step", "what", "tensor", "absolute", "relative", "same_bits", "elements")
"""`what` is loss, gradient or weight; `absolute` the largest difference of an element; `elements` how many were compared."""

_TensorValues = NDArray[np.float64]


def training_differences(reference: RecordedTraining, other: RecordedTraining) -> pd.DataFrame:
    """Losses (of the global batch), gradients and weights (rank 0's) of two trainings; columns COLUMNS."""
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
    """Gradients and weights of two processes; columns COLUMNS."""
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
    """Of all elements of all tensors of a kind, per step."""
    norms: _TensorValues = data.arrays[f"{what}_norm"]
    elements = sum(parameter.elements for parameter in data.record.parameters)
    mean: _TensorValues = np.sqrt((norms**2).sum(axis=1) / elements)
    return mean


def _ratio(difference: _TensorValues, scale: _TensorValues) -> _TensorValues:
    """Their quotient; 0 where nothing differs, infinite where `other` alone is not finite, NaN where the reference is not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(difference == 0, 0.0, difference / scale)
    found: _TensorValues = np.where(np.isfinite(scale), np.where(np.isnan(quotient), np.inf, quotient), np.nan)
    return found


def gradient_factor(reference: ProcessData, other: ProcessData, step: int) -> tuple[float, float]:
    """The factor f for which f times the reference's gradients of a step is nearest to the other's, and how near.

    The distance is relative to the norm of the other's, over all stored elements of all tensors.
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
    """How far what modules put out in the first forward is apart: module call, relative; in the order of the calls.

    Sample by sample, wherever each was computed; a tensor's scale is its own norm. Empty where the first global batches
    differ, or where the modules do.
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
