"""Batches as nested values: tuples, lists and dictionaries of tensors and other values."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def leaves(value: Any) -> Iterator[Tensor]:
    """The tensors of a nested value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The nested value with `change` applied to each tensor."""
    return joined_batches([value], lambda tensors: change(tensors[0]))


def joined_batches(values: Sequence[Any], join: Callable[[list[Tensor]], Tensor]) -> Any:
    """One nested value from several of the same structure: tensors are joined, other values are the
    first one's.
    """
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
    """Number of samples in a nested batch: the first dimension of its first tensor."""
    return len(next(leaves(value)))


def moved(value: Any, device: torch.device) -> Any:
    """The nested batch on a device; the same object if it is there already."""
    if all(leaf.device == device for leaf in leaves(value)):
        return value
    return mapped(lambda tensor: tensor.to(device, non_blocking=True), value)


def called(model: nn.Module, inputs: Any) -> Any:
    """The model's output for nested inputs: a dictionary holds keyword arguments, a tuple or list
    positional ones.
    """
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, list | tuple):
        return model(*inputs)
    return model(inputs)
