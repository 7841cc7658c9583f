"""`dp-host`: DataParallel's schedule on CPU threads, for machines where `nn.DataParallel` is a
pass-through.

It keeps the four steps of `nn.DataParallel.forward`; copies within host memory replace the copies
between devices. No link is involved: its communication times describe the schedule, not an
interconnect.

CPU autograd runs a whole backward pass on the calling thread. Here each replica has a graph with
its own leaves, and a custom function joins them to the master: its backward runs each replica's
backward on a separate thread and then sums the gradients.
"""

import copy
import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from dpscope.launch.workload.nested import leaves, mapped
from dpscope.profiling.instruments.trace_recorder import named_range
from dpscope.profiling.records import range_names

# `nn.DataParallel` is generic to type checkers and not at run time.
_DataParallel: Any = nn.DataParallel


class HostDataParallel(_DataParallel):  # type: ignore[misc]
    """`nn.DataParallel` with `replica_count` replicas on threads of one CPU process.

    The model must be on the CPU and return one tensor; the first dimension of inputs and output is
    the batch. Inputs receive no gradient. As under `nn.DataParallel`, replica 0 uses the module's
    buffers, so running statistics persist; changes to the other replicas' buffers are lost. Each
    replica thread uses as many intra-op threads as the calling thread.
    """

    def __init__(self, module: nn.Module, replica_count: int) -> None:
        nn.Module.__init__(self)  # nn.DataParallel.__init__ only accepts accelerators
        self.module = module
        self.dim = 0
        self.device_ids = list(range(replica_count))
        self.output_device = 0
        self.src_device_obj = torch.device("cpu")
        # a list, so that their parameters do not count as the model's
        self._replicas: list[nn.Module] = []

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Sequence[int | torch.device]) -> Any:
        """Copies of each replica's chunk of every tensor; other values are passed to all
        replicas.
        """
        keywords = kwargs or {}
        sizes = {len(tensor) for tensor in leaves((inputs, keywords))}
        assert len(sizes) == 1, f"inputs with different batch sizes: {sorted(sizes)}"
        scattered = []
        start = 0
        for index, chunk in enumerate(torch.empty(sizes.pop()).chunk(len(device_ids))):
            with _range(range_names.SCATTER, index):
                part = functools.partial(torch.narrow, dim=0, start=start, length=len(chunk))
                scattered.append(mapped(torch.clone, mapped(part, (tuple(inputs), dict(keywords)))))
            start += len(chunk)
        return tuple(zip(*scattered, strict=True))

    def replicate(
        self, module: nn.Module, device_ids: Sequence[int | torch.device]
    ) -> list[nn.Module]:
        """The replicas, each with a fresh copy of the module's parameters and buffers."""
        while len(self._replicas) < len(device_ids):
            self._replicas.append(copy.deepcopy(module))
        replicas = self._replicas[: len(device_ids)]
        for index, replica in enumerate(replicas):
            with _range(range_names.REPLICATE, index):
                _refresh(replica, module, share_buffers=index == 0)
        return replicas

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Any, kwargs: Any) -> list[Any]:
        def forward(index: int) -> Any:
            with _range(range_names.PARALLEL_APPLY, index):
                return replicas[index](*inputs[index], **kwargs[index])

        return _on_threads(forward, len(replicas))

    def gather(self, outputs: Any, output_device: int | torch.device) -> Tensor:
        """The replicas' outputs as one tensor; its backward reaches all replicas and the master."""
        if not all(isinstance(output, Tensor) for output in outputs):
            raise TypeError(
                f"dp-host needs a model that returns one tensor, got {type(outputs[0]).__name__}; "
                "wrap the model so that forward returns its logits alone"
            )
        master, *replicas = (
            [parameter for parameter in module.parameters() if parameter.requires_grad]
            for module in (self.module, *self._replicas[: len(outputs)])
        )
        if not torch.is_grad_enabled() or not master:
            return _concatenate(outputs)
        joined: Tensor = _JoinReplicas.apply(outputs, replicas, *master)
        return joined


class _JoinReplicas(torch.autograd.Function):
    """Forward concatenates the replicas' outputs; backward runs their graphs and sums the gradients
    for the master.
    """

    @staticmethod
    def forward(
        ctx: Any, outputs: Sequence[Tensor], replicas: Sequence[Sequence[Tensor]], *master: Tensor
    ) -> Tensor:
        ctx.outputs = outputs
        ctx.replicas = replicas
        return _concatenate(outputs)

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor) -> Any:
        outputs = ctx.outputs
        replicas = ctx.replicas
        ctx.outputs = ctx.replicas = None
        shares = []
        start = 0
        for index, output in enumerate(outputs):
            with _range(range_names.SCATTER, index):
                shares.append(output_gradients[0].narrow(0, start, len(output)).clone())
            start += len(output)

        def backward(index: int) -> tuple[Tensor | None, ...]:
            with _range(range_names.PARALLEL_APPLY, index):
                gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
                    outputs[index], replicas[index], grad_outputs=shares[index], allow_unused=True
                )
            return gradients

        # in replica order; None for a parameter that none used
        totals: list[Tensor | None] = [None] * len(replicas[0])
        for index, gradients in enumerate(_on_threads(backward, len(outputs))):
            with _range(range_names.GRADIENT_REDUCE, index):
                for position, gradient in enumerate(gradients):
                    if gradient is not None:
                        total = totals[position]
                        totals[position] = (
                            gradient.clone() if total is None else total.add_(gradient)
                        )
        return (None, None, *totals)


def _refresh(replica: nn.Module, module: nn.Module, share_buffers: bool) -> None:
    """Copy the module's parameters, buffers and mode into a replica of the same structure."""
    with torch.no_grad():
        copies: list[Tensor] = list(replica.parameters())
        parameters: list[Tensor] = list(module.parameters())
        for copied, parameter in zip(copies, parameters, strict=True):
            copied.requires_grad_(parameter.requires_grad)
        if parameters:
            torch._foreach_copy_(copies, parameters)
        for copied_module, source in zip(replica.modules(), module.modules(), strict=True):
            copied_module.training = source.training
            for name, buffer in source._buffers.items():
                copied_buffer = copied_module._buffers[name]
                if share_buffers or buffer is None or copied_buffer is None:
                    copied_module._buffers[name] = buffer
                else:
                    copied_buffer.copy_(buffer)


def _concatenate(outputs: Sequence[Tensor]) -> Tensor:
    joined = outputs[0].new_empty((sum(len(output) for output in outputs), *outputs[0].shape[1:]))
    start = 0
    with torch.no_grad():
        for index, output in enumerate(outputs):
            with _range(range_names.GATHER, index):
                joined.narrow(0, start, len(output)).copy_(output)
            start += len(output)
    return joined


def _range(name: str, replica: int) -> AbstractContextManager[object]:
    return named_range(range_names.replica_range(name, replica))


def _on_threads(function: Callable[[int], Any], count: int) -> list[Any]:
    """Results of `function(0..count-1)`, each on a new thread with the caller's torch modes.

    Raises the error of the first replica, in replica order, that failed.
    """
    results: list[Any] = [None] * count
    errors: list[Exception | None] = [None] * count
    threads_each = torch.get_num_threads()
    grad_enabled = torch.is_grad_enabled()
    autocast_enabled = torch.is_autocast_enabled("cpu")
    autocast_dtype = torch.get_autocast_dtype("cpu")

    def run(index: int) -> None:
        torch.set_num_threads(threads_each)  # OpenMP keeps this per thread
        autocast = torch.autocast("cpu", dtype=autocast_dtype, enabled=autocast_enabled)
        try:
            with torch.set_grad_enabled(grad_enabled), autocast:
                results[index] = function(index)
        except Exception as error:  # raised again in the caller
            errors[index] = error

    threads = [
        threading.Thread(target=run, args=(index,), name=f"replica-{index}")
        for index in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return results
