"""Batches as nested tensors: tuples, lists and dictionaries whose leaves are tensors or anything else."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def leaves(value: Any) -> Iterator[Tensor]:
    """The tensors of a nested value, in the order of its dictionaries and sequences."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A nested value with each tensor changed; what is no tensor stays as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: mapped(change, inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        inner_values = [mapped(change, inner) for inner in value]
        return tuple(inner_values) if isinstance(value, tuple) else inner_values
    return value


def joined_batches(values: Sequence[Any], join: Callable[[list[Tensor]], Tensor]) -> Any:
    """Nested values of one shape as one, their tensors joined place by place; what is no tensor is the first one's."""
    first = values[0]
    if isinstance(first, Tensor):
        return join(list(values))
    if isinstance(first, dict):
        return {name: joined_batches([value[name] for value in values], join) for name in first}
    if isinstance(first, list | tuple):
        inner_values = [joined_batches(list(inner), join) for inner in zip(*values, strict=True)]
        return tuple(inner_values) if isinstance(first, tuple) else inner_values
    return first


def batch_size(value: Any) -> int:
    """Samples of a nested batch: the first dimension of its first tensor."""
    return len(next(leaves(value)))


def moved(value: Any, device: torch.device) -> Any:
    """A nested batch on a device; itself where it is there already."""
    if all(one.device == device for one in leaves(value)):
        return value
    return mapped(lambda tensor: tensor.to(device, non_blocking=True), value)


def called(model: nn.Module, inputs: Any) -> Any:
    """What a model makes of inputs: a dictionary's values are its keyword arguments, a tuple's or list's its arguments."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, list | tuple) else model(inputs)
