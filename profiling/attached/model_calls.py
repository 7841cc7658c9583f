"""The calls of a script's model: samples, micro-batches, precision, and calls outside of
training.
"""

import gc
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.nn.parallel import DistributedDataParallel

from dpscope.profiling.attached.interception import ModuleCalls
from dpscope.profiling.records.matrix import Amp

_INPUTS = 2  # training calls whose inputs and precision are seen
_COMPARED_VALUES = 4096
_MAX_WRAPPERS = 3  # around a model, such as a task, DDP and torch.compile's module


@dataclass(slots=True)
class StepCalls:
    """The calls of one step."""

    # Samples of each training call (with gradients, in training mode), such as one per micro-batch;
    # 0 where unknown.
    each: list[int]
    other: int  # calls without gradients in evaluation mode, as in a validation loop
    profiled: bool = False  # whether the script's own profiler was on at its end


class ModelCalls:
    """Counts the calls of the modules that it watches, except for calls that torch.compile traces
    or a CUDA graph records.
    """

    def __init__(self, device_type: str) -> None:
        self.precision: Amp | None = None  # of autocast around the first calls
        self._device_type = device_type
        self._may_record = device_type == "cuda"
        self._checksums: list[int | None] = []  # of the inputs of the first training calls
        self._step = StepCalls([], 0)
        self._watched: dict[int, nn.Module] = {}
        self._hooks = ModuleCalls()

    @property
    def modules(self) -> list[nn.Module]:
        return list(self._watched.values())

    @property
    def inputs(self) -> int | None:
        """A checksum of the inputs of the first training calls; None if they are constant or hold
        no tensor.
        """
        return (
            None if None in self._checksums or not self._checksums else hash(tuple(self._checksums))
        )

    def watch(self, modules: Iterable[nn.Module]) -> None:
        """Count the calls of these modules, none of which is part of another."""
        for module in modules:
            self._watched[id(module)] = module
            called = module
            if isinstance(module, DistributedDataParallel):
                # DDP calls it once per call; a validation may call it directly
                called = module.module
            self._hooks.add(called, self._called)
            for inside in _wrapped_in(module):
                if inside not in self._hooks:
                    self._hooks.add(inside, self._called_inside)

    def take(self) -> StepCalls:
        """The calls since the last time."""
        step = self._step
        self._step = StepCalls([], 0)
        return step

    def look_inside(self) -> None:
        """Watch the children instead, for modules that hold the model but are never called."""
        for module in self.modules:
            inside = [child for child in module.children() if _has_parameters(child)]
            if inside:
                self._hooks.remove(module)
                del self._watched[id(module)]
                self.watch(inside)

    def stop(self) -> None:
        """Watch no module."""
        self._hooks.stop()
        self._watched.clear()

    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # This runs within timed steps with cold caches, where each lookup takes 0.2 to 2 us, a
        # hundred times as long as in a tight loop. So the usual batch is found without a further
        # function call.
        if self._may_record and torch.cuda.is_current_stream_capturing():
            # nothing runs, and what looks at the inputs would end the recording with an error
            return
        if not is_grad_enabled():
            self._step.other += not module.training
        elif module.training:
            if len(self._checksums) < _INPUTS:
                self._checksums.append(_checksum([*args, *kwargs.values()]))
                self._note_precision()
            first = args[0] if args else next(iter(kwargs.values()), None)
            if type(first) is Tensor and first.dim():
                self._step.each.append(first.size(0))
            else:
                self._step.each.append(samples_of([*args, *kwargs.values()]) or 0)

    def _called_inside(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._may_record and torch.cuda.is_current_stream_capturing():
            return
        if not is_grad_enabled():  # validations often call the wrapped module
            self._step.other += not module.training

    def _note_precision(self) -> None:
        if torch.is_autocast_enabled(self._device_type):
            half = torch.get_autocast_dtype(self._device_type) == torch.float16
            self.precision = "fp16" if half else "bf16"


def _first_tensor(values: Iterable[object]) -> Tensor | None:
    """The first tensor with dimensions, also in dictionaries, tuples and lists."""
    for value in values:
        tensor = value
        if isinstance(value, Mapping):
            tensor = _first_tensor(value.values())
        elif isinstance(value, tuple | list):
            tensor = _first_tensor(value)
        if isinstance(tensor, Tensor) and tensor.dim():
            return tensor
    return None


def samples_of(arguments: Iterable[object]) -> int | None:
    """The number of samples in a call's arguments, by the first of them that holds tensors; None
    without one, or if that leaves it open.

    The first dimension of a tensor, or the one that the tensors of a dictionary or list share. A
    list of tensors of one kind leaves it open: it may be a list of samples, such as images, whose
    first dimension is that of channels.

    >>> batch = [torch.zeros(8, 3, 4, 4), torch.zeros(8)]
    >>> samples_of([batch, 0]), samples_of([[torch.zeros(3, 4, 4)] * 4])
    (8, None)
    """
    for argument in arguments:
        parts = [argument]
        if isinstance(argument, Mapping):
            parts = list(argument.values())
        elif isinstance(argument, tuple | list):
            parts = list(argument)
        tensors = [part for part in parts if isinstance(part, Tensor) and part.dim()]
        kinds = {(tensor.dim(), tensor.dtype) for tensor in tensors}
        sizes = {tensor.size(0) for tensor in tensors}
        if isinstance(argument, tuple | list) and len(kinds) == 1:
            return None
        if sizes:
            return sizes.pop() if len(sizes) == 1 else None
    return None


def _checksum(inputs: Sequence[object]) -> int | None:
    """A checksum of the first tensor's first values; None without a tensor or if all values are
    equal (synthetic inputs).
    """
    tensor = _first_tensor(inputs)
    if tensor is None or type(tensor) is not Tensor or tensor.is_complex() or tensor.is_meta:
        return None
    values = tensor.detach().flatten()[:_COMPARED_VALUES].to("cpu", torch.float64)
    return None if bool((values == values[:1]).all()) else zlib.crc32(values.numpy().tobytes())


def _wrapped_in(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that `module` only wraps, outermost first: each holds all parameters of the
    module around it.

    Modules wrapped by torch.compile are omitted: it traces through calls inside them.
    """
    for _ in range(_MAX_WRAPPERS):
        if (
            inner_module(module) is not module
            or getattr(module, "_compiled_call_impl", None) is not None
        ):
            return
        count = sum(1 for _ in module.parameters())
        inside = [
            child for child in module.children() if sum(1 for _ in child.parameters()) == count
        ]
        if len(inside) != 1 or not count:
            return
        (module,) = inside
        yield module


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def inner_module(module: nn.Module) -> nn.Module:
    """The module that torch.compile wrapped, or the module itself."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, nn.Module) else module


def outermost_modules(parameters: Collection[Tensor]) -> list[nn.Module]:
    """The modules of this process that hold some of these parameters and are part of no other
    module.

    One search over all objects known to the garbage collector finds modules however they were made,
    without a change to torch's classes. Objects hidden from it by `gc.freeze` are not found.
    """
    wanted = {id(parameter) for parameter in parameters}
    modules = [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), nn.Module)
        and not issubclass(type(thing), torch.fx.GraphModule)  # made from a model by torch.compile
        and "_modules" in thing.__dict__  # missing while the module is constructed
    ]
    parts = {
        id(child) for module in modules for child in module._modules.values() if child is not None
    }
    outer = [module for module in modules if id(module) not in parts]
    return [
        module
        for module in outer
        if any(id(parameter) in wanted for parameter in module.parameters())
    ]
