"""What is done to a model before trainings are compared: nothing drawn at random, batch norm frozen or synchronised."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpscope.launch.workload.nested import called, mapped

_RANDOM_LAYERS = ("dropout", "stochasticdepth")


def switch_off_random_layers(model: nn.Module) -> list[str]:
    """Put dropout and its like into evaluation mode, where they pass everything on; returns their names.

    What they draw follows from the generator of each process and thread, which no two strategies share.
    """
    found = []
    for name, module in model.named_modules():
        if any(word in type(module).__name__.lower() for word in _RANDOM_LAYERS):
            module.eval()
            found.append(name)
    return found


def freeze_batch_norm(model: nn.Module, inputs: Any) -> None:
    """Have every batch norm use the statistics of `inputs` from now on; its weight and bias go on learning.

    The statistics a model is built with (mean 0, variance 1) would not do: nothing would be normalised, and a deep
    network's first losses then overflow.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean: after one batch, that batch's statistics
    with torch.no_grad():
        called(model, inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def batch_norms_by_batch(model: nn.Module) -> list[str]:
    """Names of the batch norms that normalise by what is in their batch, rather than by frozen statistics."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
    ]


def to_double(model: nn.Module) -> nn.Module:
    """The model in double precision, taking batches in single precision as before."""

    def doubled(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    def widen(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        return mapped(doubled, inputs), mapped(doubled, named)

    model.register_forward_pre_hook(widen, with_kwargs=True)
    return model.double()


def nudge(model: nn.Module, seed: int) -> None:
    """Move every weight to one of its two neighbouring floating-point numbers, drawn at random.

    Rounding in a sum of products is as good as relative changes of its terms by a few units in the last place (backward
    error; Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 3.1): this makes one such change,
    of one unit.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            up = torch.rand(parameter.shape, generator=generator) < 0.5
            target = torch.where(up, torch.inf, -torch.inf).to(parameter)
            parameter.copy_(torch.nextafter(parameter, target))
