"""How a script calls its model, seen from outside: samples, micro-batches, precision, and calls that train nothing."""

import gc
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from dpscope.profiling.records.matrix import Amp


@dataclass(slots=True)
class StepCalls:
    """The calls of one step."""

    training: int = 0  # with gradients, in training mode: one for each micro-batch
    other: int = 0  # without gradients and in evaluation mode, as in a validation loop
    samples: int = 0  # of the training calls
    first_samples: int = 0  # of the first of them


class ModelCalls:
    """Counts the calls of the modules that it watches. A call of one that torch.compile traces is not seen."""

    def __init__(self, device_type: str, on_training: Callable[[], None] | None = None) -> None:
        """`on_training` is told of each training call before it is counted."""
        self.precision: Amp | None = None  # of autocast around the calls; None until one was seen under it
        self._device_type = device_type
        self._on_training = on_training
        self._step = StepCalls()
        self._watched: dict[int, tuple[nn.Module, RemovableHandle]] = {}
        self._inside: list[RemovableHandle] = []

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that are watched."""
        return [module for module, _ in self._watched.values()]

    def watch(self, modules: Iterable[nn.Module]) -> None:
        """Count the calls of these modules, none of which is part of another."""
        for module in modules:
            self._watched[id(module)] = module, module.register_forward_pre_hook(self._called, with_kwargs=True)
            if isinstance(module, DistributedDataParallel | DataParallel):  # validations often call what it wraps
                self._inside.append(module.module.register_forward_pre_hook(self._called_inside))

    def take(self) -> StepCalls:
        """The calls since the last time."""
        step, self._step = self._step, StepCalls()
        return step

    def look_inside(self) -> None:
        """Watch the children of modules that hold the model and are not called themselves."""
        for module, handle in list(self._watched.values()):
            if inside := [child for child in module.children() if any(True for _ in child.parameters())]:
                handle.remove()
                del self._watched[id(module)]
                self.watch(inside)

    def stop(self) -> None:
        """Watch nothing any more."""
        for handle in (*self._inside, *(handle for _, handle in self._watched.values())):
            handle.remove()
        self._watched.clear()

    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():  # a constant there: the compiled code has nothing of this
            return
        if not torch.is_grad_enabled():
            self._step.other += not module.training
            return
        if not module.training:
            return
        if self._on_training is not None:
            self._on_training()
        step = self._step
        first = args[0] if args else None  # what most models are given, without a look further
        samples = (
            first.shape[0] if isinstance(first, Tensor) and first.dim() else _first_dimension((args, kwargs))
        ) or 0
        if step.training == 0:
            step.first_samples = samples
        step.training += 1
        step.samples += samples
        if self.precision is None and torch.is_autocast_enabled(self._device_type):
            half = torch.get_autocast_dtype(self._device_type) == torch.float16
            self.precision = "fp16" if half else "bf16"

    def _called_inside(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.compiler.is_compiling() and not torch.is_grad_enabled():
            self._step.other += not module.training


def _first_dimension(value: object) -> int | None:
    """That of the first tensor with a dimension in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return int(value.shape[0]) if value.dim() else None
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for one in value:
            if (found := _first_dimension(one)) is not None:
                return found
    return None


def inner_module(module: nn.Module) -> nn.Module:
    """The module that torch.compile wrapped, or the module itself."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, nn.Module) else module


def outermost_modules(parameters: Collection[Tensor]) -> list[nn.Module]:
    """The modules of this process that hold some of these parameters and are part of no other module.

    They are looked for among all objects, once: no class of torch's is changed for it, and a module is found however it was
    made. Nothing is found of what the script moved out of the garbage collector's sight (`gc.freeze`).
    """
    wanted = {id(parameter) for parameter in parameters}
    modules = [
        found
        for found in gc.get_objects()
        if issubclass(type(found), nn.Module)
        and not issubclass(type(found), torch.fx.GraphModule)  # made of a model by torch.compile
        and "_modules" in found.__dict__  # one that is being made has none yet
    ]
    parts = {id(child) for module in modules for child in module._modules.values() if child is not None}
    outer = [module for module in modules if id(module) not in parts]
    return [module for module in outer if any(id(parameter) in wanted for parameter in module.parameters())]
