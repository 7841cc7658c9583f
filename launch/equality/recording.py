"""Records what `dpscope equal` compares of one process's training: samples, outputs, gradients, weights; writes whole files."""

import hashlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpscope.launch.workload.nested import leaves
from dpscope.profiling.records.equality import OUTPUT_ELEMENTS, STORED_ELEMENTS, ParameterRecord, RankRecord, rank_paths
from dpscope.profiling.store.files import atomic_path, write_json

Arrays = dict[str, NDArray[Any]]


def fingerprints(inputs: Any) -> NDArray[np.uint64]:
    """A 64-bit hash of every sample of a batch of nested tensors, from its values in single precision."""
    parts = [one.detach().to("cpu", torch.float32).reshape(len(one), -1) for one in leaves(inputs)]
    return np.array([_hash(row) for row in torch.cat(parts, dim=1).numpy()], dtype=np.uint64)


def chosen_elements(count: int, most: int) -> NDArray[np.int64]:
    """Indices of the stored elements of a tensor of `count`: all, or `most` distinct ones, always the same."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


class ForwardRecorder:
    """Hooks on a model that record which samples enter it and, while `outputs_wanted`, what its innermost modules return.

    For a model that will be compiled, `outputs_wanted` must be False from the start: inner hooks would break its graphs.

    DataParallel's replicas share the hooks (functions are not copied with a module) and run on separate threads: records are
    kept per thread during a forward call and collected at its end.
    """

    def __init__(self, model: nn.Module, outputs_wanted: bool = True) -> None:
        self.outputs_wanted = outputs_wanted
        self._local = threading.local()
        self._lock = threading.Lock()
        self._passes: list[tuple[NDArray[np.uint64], Arrays]] = []

        # Closures, not methods: a method would be copied with the module, and with it the recorder.
        def enter(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._local.samples = fingerprints((inputs, named))
            self._local.outputs = {}

        def leave(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            with self._lock:
                self._passes.append((self._local.samples, self._local.outputs))

        model.register_forward_pre_hook(enter, with_kwargs=True)
        for name, module in model.named_modules():
            if outputs_wanted and not any(module.children()):
                module.register_forward_hook(self._output_hook(name or "model"))
        model.register_forward_hook(leave)  # after the hook of a model without inner modules

    def _output_hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            samples = len(self._local.samples)
            if self.outputs_wanted and isinstance(output, Tensor) and output.ndim and len(output) == samples:
                outputs = self._local.outputs
                calls = sum(call.partition("#")[0] == name for call in outputs)
                outputs[f"{name}#{calls + 1}" if calls else name] = _some_elements(output)

        return hook

    def take(self, batch: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Arrays]:
        """Return and forget what was recorded since the last call, for the samples of `batch` in order.

        Returns how often each sample entered the model, and per module call, in the order of the calls, the stored
        elements of its output (a row per sample; NaN for a sample that did not enter).
        """
        passes, self._passes = self._passes, []
        positions: dict[int, deque[int]] = defaultdict(deque)
        for position, sample in enumerate(batch.tolist()):
            positions[sample].append(position)
        entered = np.zeros(len(batch), dtype=np.int64)
        outputs: Arrays = {}
        for samples, pass_outputs in passes:
            rows = []  # of the batch, for the samples that are in it
            present = [bool(positions[sample]) for sample in samples.tolist()]
            for sample in samples[present].tolist():
                positions[sample].rotate(-1)  # equal samples (padding) take turns
                rows.append(positions[sample][-1])
            entered[rows] += 1
            for call, values in pass_outputs.items():
                whole = outputs.setdefault(call, np.full((len(batch), values.shape[1]), np.nan, values.dtype))
                whole[rows] = values[present]
        return entered, outputs


def _some_elements(output: Tensor) -> NDArray[Any]:
    rows = output.detach().flatten(1) if output.ndim > 1 else output.detach()[:, None]
    columns = torch.from_numpy(chosen_elements(rows.shape[1], OUTPUT_ELEMENTS)).to(rows.device)
    chosen: NDArray[Any] = rows[:, columns].cpu().numpy()
    return chosen


def _hash(tensor: NDArray[Any]) -> int:
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(tensor).data, digest_size=8).digest(), "little")


class TrainingRecorder:
    """Everything that one process records of its training; arrays are named as in dpscope.profiling.records.equality."""

    def __init__(self, model: nn.Module, forward: ForwardRecorder) -> None:
        self._model = model  # FSDP replaces its parameters, which keep their names
        self._forward = forward
        self._parameters = tuple(
            ParameterRecord(name=name, elements=one.numel(), stored=min(one.numel(), STORED_ELEMENTS))
            for name, one in self._named.items()
        )
        self._chosen = [chosen_elements(one.elements, STORED_ELEMENTS) for one in self._parameters]
        self._steps: dict[str, list[Any]] = defaultdict(list)  # per array, an entry for each step
        self._samples: dict[str, list[NDArray[Any]]] = defaultdict(list)
        self._first_outputs: Arrays = {}  # per module call of the first step

    @property
    def _named(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name."""
        return {name: one for name, one in self._model.named_parameters() if one.requires_grad}

    def add_gradients(self) -> None:
        """Add the gradients before the optimizer uses them; zeros for parameters without gradient."""
        gradients = (one.grad if one.grad is not None else torch.zeros_like(one) for one in self._named.values())
        self._add("gradient", map(_flat, gradients))

    def add_step(self, loss: float) -> None:
        """Add the loss before an optimizer step and the weights after it."""
        self._steps["loss"].append(loss)
        self._add("weight", map(_flat, self._named.values()))

    def _add(self, name: str, tensors: Iterable[NDArray[Any]]) -> None:
        """Add a step's flat gradients or weights."""
        flat = list(tensors)
        self._steps[f"{name}_hash"].append(np.array([_hash(one) for one in flat], dtype=np.uint64))
        self._steps[f"{name}_norm"].append([float(np.linalg.norm(one.astype(np.float64, copy=False))) for one in flat])
        for index, (one, chosen) in enumerate(zip(flat, self._chosen, strict=True)):
            self._steps[f"{name}.{index}"].append(one[chosen])

    def add_samples(self, step: int, epoch: int, indices: Sequence[int], inputs: Any) -> None:
        """Add the samples of a step's batch, after its forward pass, with how often each entered the model."""
        batch = fingerprints(inputs)
        entered, outputs = self._forward.take(batch)
        if step == 0:
            self._first_outputs = outputs
            self._forward.outputs_wanted = False
        row = {"step": np.full(len(batch), step), "epoch": np.full(len(batch), epoch), "entered": entered}
        row |= {"index": np.asarray(indices, dtype=np.int64), "fingerprint": batch}
        for name, values in row.items():
            self._samples[name].append(values)

    def save(
        self,
        folder: Path,
        rank: int,
        batch_norms: Sequence[str],
        random_layers: Sequence[str],
        shuffled: bool,
        whole_weights: bool,
    ) -> None:
        """Write this process's arrays, named in dpscope.profiling.records.equality, and then the record that describes them."""
        record_path, arrays_path = rank_paths(folder, rank)
        named = self._named
        last_weights = {  # all processes take part in gathering sharded ones
            f"last_weight.{index}": _flat(named[record.name])
            for index, record in enumerate(self._parameters)
            if record.stored < record.elements
        }
        arrays = {
            **{name: np.array(steps) for name, steps in self._steps.items()},
            **{f"sample_{name}": np.concatenate(parts) for name, parts in self._samples.items()},
            **{f"output.{index}": values for index, values in enumerate(self._first_outputs.values())},
            **(last_weights if whole_weights else {}),
        }
        with atomic_path(arrays_path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        calls, norms, layers = (tuple(names) for names in (self._first_outputs, batch_norms, random_layers))
        record = RankRecord(rank, len(self._steps["loss"]), self._parameters, calls, norms, layers, shuffled)
        write_json(record_path, record)


def _flat(tensor: Any) -> NDArray[Any]:
    """All elements of a tensor; for a sharded one, every process must call this."""
    whole: Tensor = tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
    flat: NDArray[Any] = whole.flatten().cpu().numpy()
    return flat
