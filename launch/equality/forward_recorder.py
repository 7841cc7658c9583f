"""What enters a model and what its modules put out, sample by sample, in whichever process, thread or share they run."""

import hashlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpscope.launch.workload.nested import leaves
from dpscope.profiling.records.equality import OUTPUT_ELEMENTS


def fingerprints(inputs: Any) -> NDArray[np.uint64]:
    """A 64-bit hash of every sample of a batch of nested tensors, of their values in single precision."""
    parts = [one.detach().to("cpu", torch.float32).reshape(len(one), -1) for one in leaves(inputs)]
    rows = torch.cat(parts, dim=1).numpy()
    digests = (hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=8).digest() for row in rows)
    return np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)


def chosen_elements(count: int, most: int) -> NDArray[np.int64]:
    """Which elements of a tensor of `count` are stored: all, or `most` drawn without repetition, always the same."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


class ForwardRecorder:
    """Hooks on a model that tell which samples enter it and, while `outputs_wanted`, what its innermost modules return.

    A model that torch.compile is to compile has none within: hooks would end its graphs.

    DataParallel's replicas share the hooks or have copies of them (functions are not copied with a module) and run on
    threads of their own: what one forward call meets is kept per thread and handed over at its end.
    """

    def __init__(self, model: nn.Module, outputs_wanted: bool = True) -> None:
        self.outputs_wanted = outputs_wanted
        self._local = threading.local()
        self._lock = threading.Lock()
        self._passes: list[tuple[NDArray[np.uint64], dict[str, NDArray[Any]]]] = []
        model.register_forward_pre_hook(self._entering(), with_kwargs=True)
        for name, module in model.named_modules():
            if outputs_wanted and not any(module.children()):
                module.register_forward_hook(self._leaving(name or "model"))
        model.register_forward_hook(self._done())  # after the hook of a model without inner modules

    def _entering(self) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._local.samples = fingerprints((inputs, named))
            self._local.outputs = {}

        return hook

    def _leaving(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            samples = len(self._local.samples)
            if self.outputs_wanted and isinstance(output, Tensor) and output.ndim and len(output) == samples:
                outputs = self._local.outputs
                calls = sum(call.partition("#")[0] == name for call in outputs)
                outputs[f"{name}#{calls + 1}" if calls else name] = _some_elements(output)

        return hook

    def _done(self) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            with self._lock:
                self._passes.append((self._local.samples, self._local.outputs))

        return hook

    def take(self, batch: NDArray[np.uint64]) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """What was met since the last call, for the samples of `batch` in their order; forgets it.

        Returns how often each sample entered the model, and per module call, in the order of the calls, the stored
        elements of its output (a row per sample; NaN where a sample never came).
        """
        passes, self._passes = self._passes, []
        places: dict[int, deque[int]] = defaultdict(deque)
        for place, sample in enumerate(batch.tolist()):
            places[sample].append(place)
        entered = np.zeros(len(batch), dtype=np.int64)
        outputs: dict[str, NDArray[Any]] = {}
        for samples, of_pass in passes:
            rows = [_next_place(places[sample]) for sample in samples.tolist()]
            known = [row for row in rows if row is not None]
            entered[known] += 1
            for call, values in of_pass.items():
                whole = outputs.setdefault(call, np.full((len(batch), values.shape[1]), np.nan, values.dtype))
                whole[known] = values[[row is not None for row in rows]]
        return entered, outputs


def _next_place(places: deque[int]) -> int | None:
    """Where in the batch the next of equal samples stands, None for a sample that is not of the batch."""
    if not places:
        return None
    places.rotate(-1)  # equal samples (padding) take turns
    return places[-1]


def _some_elements(output: Tensor) -> NDArray[Any]:
    rows = output.detach().flatten(1) if output.ndim > 1 else output.detach()[:, None]
    columns = torch.from_numpy(chosen_elements(rows.shape[1], OUTPUT_ELEMENTS)).to(rows.device)
    chosen: NDArray[Any] = rows[:, columns].cpu().numpy()
    return chosen
