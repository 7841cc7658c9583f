"""Keeps what `dpscope equal` compares of one process's training, and writes it: whole files at its end."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpscope.launch.equality.forward_recorder import ForwardRecorder, chosen_elements, fingerprints
from dpscope.profiling.records.equality import STORED_ELEMENTS, ParameterRecord, RankRecord, rank_paths
from dpscope.profiling.store.files import atomic_path, write_json

Arrays = dict[str, NDArray[Any]]


class TensorHistory:
    """One kind of tensors (gradients or weights) of all parameters, step after step."""

    def __init__(self, name: str, elements: Sequence[int]) -> None:
        self._name = name
        self._chosen = [chosen_elements(count, STORED_ELEMENTS) for count in elements]
        self._hashes: list[list[int]] = []
        self._norms: list[list[float]] = []
        self._stored: list[list[NDArray[Any]]] = [[] for _ in elements]

    def add(self, tensors: Sequence[NDArray[Any]]) -> None:
        """The tensors of one more step, flat."""
        self._hashes.append([_hash(tensor) for tensor in tensors])
        self._norms.append([float(np.linalg.norm(tensor.astype(np.float64, copy=False))) for tensor in tensors])
        for stored, chosen, tensor in zip(self._stored, self._chosen, tensors, strict=True):
            stored.append(tensor[chosen])

    def arrays(self) -> Arrays:
        """Under the names that dpscope.profiling.records.equality lists."""
        found: Arrays = {
            f"{self._name}_hash": np.array(self._hashes, dtype=np.uint64),
            f"{self._name}_norm": np.array(self._norms),
        }
        return found | {f"{self._name}.{place}": np.stack(steps) for place, steps in enumerate(self._stored)}


def _hash(tensor: NDArray[Any]) -> int:
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(tensor).data, digest_size=8).digest(), "little")


class SampleHistory:
    """Every sample that was handed out: its step, epoch, index, fingerprint, and how often it entered the model."""

    def __init__(self, forward: ForwardRecorder) -> None:
        self._forward = forward
        self._columns: dict[str, list[NDArray[Any]]] = {}
        self.first_outputs: Arrays = {}  # per module call of the first step

    def add(self, step: int, epoch: int, indices: Sequence[int], inputs: Any) -> None:
        """The batch of one more step, once its forward is over."""
        batch = fingerprints(inputs)
        entered, outputs = self._forward.take(batch)
        if step == 0:
            self.first_outputs = outputs
            self._forward.outputs_wanted = False
        row = {
            "step": np.full(len(batch), step),
            "epoch": np.full(len(batch), epoch),
            "index": np.asarray(indices, dtype=np.int64),
            "fingerprint": batch,
            "entered": entered,
        }
        for name, values in row.items():
            self._columns.setdefault(name, []).append(values)

    def arrays(self) -> Arrays:
        """Under the names that dpscope.profiling.records.equality lists."""
        samples = {f"sample_{name}": np.concatenate(parts) for name, parts in self._columns.items()}
        return samples | {f"output.{place}": values for place, values in enumerate(self.first_outputs.values())}


class TrainingRecorder:
    """All that one process keeps of its training."""

    def __init__(self, model: nn.Module, forward: ForwardRecorder) -> None:
        self._model = model  # FSDP replaces its parameters, which keep their names
        elements = [parameter.numel() for parameter in self._named.values()]
        self._parameters = tuple(
            ParameterRecord(name=name, elements=count, stored=min(count, STORED_ELEMENTS))
            for name, count in zip(self._named, elements, strict=True)
        )
        self._gradients = TensorHistory("gradient", elements)
        self._weights = TensorHistory("weight", elements)
        self._losses: list[float] = []
        self.samples = SampleHistory(forward)

    @property
    def _named(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name."""
        return {name: one for name, one in self._model.named_parameters() if one.requires_grad}

    def add_gradients(self) -> None:
        """The gradients as the optimizer is about to use them; zeros where there is none."""
        self._gradients.add(
            [
                _flat(parameter.grad if parameter.grad is not None else torch.zeros_like(parameter))
                for parameter in self._named.values()
            ]
        )

    def add_step(self, loss: float) -> None:
        """The loss before the step that is over, and the weights after it."""
        self._losses.append(loss)
        self._weights.add([_flat(parameter) for parameter in self._named.values()])

    def save(
        self,
        folder: Path,
        rank: int,
        batch_norms: Sequence[str],
        random_layers: Sequence[str],
        shuffled: bool,
        whole_weights: bool,
    ) -> None:
        """Write record and arrays of this process; the record last, so that it speaks of arrays that are there."""
        record_path, arrays_path = rank_paths(folder, rank)
        last_weights = self._last_weights()  # sharded ones are gathered by all processes
        arrays = {
            "loss": np.array(self._losses),
            **self._gradients.arrays(),
            **self._weights.arrays(),
            **self.samples.arrays(),
            **(last_weights if whole_weights else {}),
        }
        with atomic_path(arrays_path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        record = RankRecord(
            rank=rank,
            steps=len(self._losses),
            parameters=self._parameters,
            module_calls=tuple(self.samples.first_outputs),
            batch_norms=tuple(batch_norms),
            random_layers=tuple(random_layers),
            shuffled=shuffled,
        )
        write_json(record_path, record)

    def _last_weights(self) -> Arrays:
        named = self._named
        return {
            f"last_weight.{place}": _flat(named[record.name])
            for place, record in enumerate(self._parameters)
            if record.stored < record.elements
        }


def _flat(tensor: Any) -> NDArray[Any]:
    """All elements of a tensor; of a sharded one every process must ask."""
    own: Tensor = tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
    flat: NDArray[Any] = own.flatten().cpu().numpy()
    return flat
