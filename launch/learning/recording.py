"""Records what `dpscope equal` compares of one process's training: samples, gradients, weights;
writes whole files.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpscope.profiling.records.equality import (
    STORED_ELEMENTS,
    ParameterRecord,
    RankRecord,
    rank_paths,
)
from dpscope.profiling.store.files import atomic_path, write_json


def chosen_elements(count: int, most: int) -> NDArray[np.int64]:
    """Indices of the stored elements of a tensor of `count`: all, or `most` distinct ones, always
    the same.
    """
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def _hash(tensor: NDArray[Any]) -> int:
    return int.from_bytes(
        hashlib.blake2b(np.ascontiguousarray(tensor).data, digest_size=8).digest(), "little"
    )


class TrainingRecorder:
    """Everything that one process records of its training; arrays are named as in
    dpscope.profiling.records.equality.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model  # FSDP replaces its parameters, which keep their names
        self._parameters = tuple(
            ParameterRecord(
                name=name,
                elements=parameter.numel(),
                stored=min(parameter.numel(), STORED_ELEMENTS),
            )
            for name, parameter in self._named.items()
        )
        self._chosen = [
            chosen_elements(parameter.elements, STORED_ELEMENTS) for parameter in self._parameters
        ]
        self._steps: dict[str, list[Any]] = defaultdict(list)  # per array, an entry for each step
        self._samples: list[NDArray[np.int64]] = []  # indices, by step

    @property
    def _named(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name."""
        named = self._model.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    def add_gradients(self) -> None:
        """Add the gradients before the optimizer uses them; zeros for parameters without
        gradient.
        """
        gradients = (
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in self._named.values()
        )
        self._add("gradient", map(_flat, gradients))

    def add_step(self, loss: float, samples: Sequence[int]) -> None:
        """Add a step's loss before its optimizer step, the weights after it, and the samples of its
        batch.
        """
        self._steps["loss"].append(loss)
        self._add("weight", map(_flat, self._named.values()))
        self._samples.append(np.asarray(samples, dtype=np.int64))

    def _add(self, name: str, tensors: Iterable[NDArray[Any]]) -> None:
        """Add a step's flat gradients or weights."""
        hashes: list[int] = []
        norms: list[float] = []
        for index, (tensor, chosen) in enumerate(zip(tensors, self._chosen, strict=True)):
            hashes.append(_hash(tensor))
            norms.append(float(np.linalg.norm(tensor.astype(np.float64, copy=False))))
            self._steps[f"{name}.{index}"].append(tensor[chosen])
        self._steps[f"{name}_hash"].append(np.array(hashes, dtype=np.uint64))
        self._steps[f"{name}_norm"].append(norms)

    def save(self, folder: Path, rank: int, random_layers: Sequence[str]) -> None:
        """Write this process's arrays, named in dpscope.profiling.records.equality, and then the
        record that describes them.
        """
        record_path, arrays_path = rank_paths(folder, rank)
        arrays = {name: np.array(steps) for name, steps in self._steps.items()}
        steps = len(self._samples)
        # a row for each sample, with its step
        sizes = list(map(len, self._samples))
        arrays["sample_index"] = np.concatenate(self._samples)
        arrays["sample_step"] = np.repeat(np.arange(steps), sizes)
        with atomic_path(arrays_path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        record = RankRecord(
            rank=rank, steps=steps, parameters=self._parameters, random_layers=tuple(random_layers)
        )
        write_json(record_path, record)


def _flat(tensor: Any) -> NDArray[Any]:
    """All elements of a tensor; for a sharded one, every process must call this."""
    whole: Tensor = (
        tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
    )
    flat: NDArray[Any] = whole.flatten().cpu().numpy()
    return flat
