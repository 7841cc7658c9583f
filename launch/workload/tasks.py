"""Models with what they are trained on: images and classes, or their own batches, loss and
optimizer.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dpscope.launch.workload.nested import leaves
from dpscope.profiling.store.errors import DpscopeError

MakeBatch = Callable[[int, int], tuple[Any, Any]]
"""Seed and number of samples -> inputs and targets, nested tensors whose first dimension is the
sample.
"""
BatchLoss = Callable[[Any, Any], Tensor]
"""Outputs and targets -> mean loss over the samples."""
"""Parameters and learning rate -> optimizer."""

_KEYS = ("module", "input_shape", "classes", "make_batch", "loss", "optimizer", "tokens")
_SHOWN = 60  # characters of a value in a message
_TRIED = 3  # samples of a trial batch


@dataclass(frozen=True)
class BuiltModel:
    """A model and its batches: images of `input_shape` with `classes` labels, or what `make_batch`
    returns.
    """

    model: nn.Module
    input_shape: tuple[int, ...] = (3, 32, 32)  # of one sample, without the batch dimension
    classes: int = 10
    make_batch: MakeBatch | None = None
    loss: BatchLoss | None = None
    make_optimizer: Callable[[Iterable[nn.Parameter], float], Optimizer] | None = None
    tokens: int | None = None  # of a sample, if it consists of tokens


def model_from_dictionary(name: str, made: Mapping[str, Any]) -> BuiltModel:
    """The model in a user's dictionary; raises DpscopeError that names the wrong entry, for
    `--model name`.
    """
    function = f"--model {name}: {name.partition(':')[2]}()"
    if unknown := [key for key in made if key not in _KEYS]:
        raise DpscopeError(
            f"{function} returned a dictionary with {unknown[0]!r}; it may hold {', '.join(_KEYS)}"
        )
    if not isinstance(made.get("module"), nn.Module):
        raise DpscopeError(
            f"{function} returned a dictionary without a torch.nn.Module as its 'module'; add it"
        )
    functions = _functions(function, made)
    make_batch = functions["make_batch"]
    loss = functions["loss"]
    if make_batch is None and loss is not None:
        raise DpscopeError(
            f"{function}: a custom loss needs make_batch, which provides its targets; add make_batch"
        )
    numbers: dict[str, Any] = {}
    for key in ("classes", "tokens"):
        if made.get(key) is not None:
            numbers[key] = checked_count(function, key, made[key])
    if made.get("input_shape") is not None:
        numbers["input_shape"] = checked_shape(function, made["input_shape"])
    if make_batch is not None:
        _check_batch(function, make_batch)
    return BuiltModel(
        made["module"],
        make_batch=make_batch,
        loss=loss,
        make_optimizer=functions["optimizer"],
        **numbers,
    )


def _functions(function: str, made: Mapping[str, Any]) -> dict[str, Any]:
    """The functions in a user's dictionary, None for those that it lacks; raises DpscopeError for
    what is none.
    """
    functions = {key: made.get(key) for key in ("make_batch", "loss", "optimizer")}
    for key, given in functions.items():
        if given is not None and not callable(given):
            raise DpscopeError(
                f"{function}: {key} is of type {type(given).__name__}; give a function"
            )
    return functions


def checked_shape(function: str, value: object) -> tuple[int, ...]:
    """A sample's shape from a user's function; raises DpscopeError unless it consists of positive
    whole numbers.
    """
    sizes = tuple(_whole(item) for item in value) if isinstance(value, tuple | list) else ()
    if not all(sizes) or not sizes:
        raise DpscopeError(
            f"{function}: input_shape is {_shown(value)}; give the shape of a sample without the batch, such as (3, 32, 32)"
        )
    return sizes


def checked_count(function: str, key: str, value: object) -> int:
    """A number from a user's function; raises DpscopeError unless it is a whole number of at least
    1.
    """
    if not (count := _whole(value)):
        raise DpscopeError(f"{function}: {key} is {_shown(value)}; give a whole number, 1 or more")
    return count


def _whole(value: object) -> int:
    """A positive whole number of any type; 0 for another value."""
    try:
        return 0 if isinstance(value, bool) else max(0, operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        return 0


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _tried_batches(function: str, make_batch: MakeBatch) -> list[Any]:
    """Two batches made with one seed; raises DpscopeError unless they are pairs."""
    try:
        batches = [make_batch(0, _TRIED) for _ in range(2)]
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise DpscopeError(
            f"{function}: make_batch(0, {_TRIED}) failed: {text}; correct it there"
        ) from error
    if not all(isinstance(batch, tuple) and len(batch) == 2 for batch in batches):
        raise DpscopeError(
            f"{function}: make_batch returned {type(batches[0]).__name__}; return (inputs, targets)"
        )
    return batches


def _check_batch(function: str, make_batch: MakeBatch) -> None:
    """Raise DpscopeError unless batches are pairs of nested tensors, a sample per row, and equal
    for equal seeds.
    """
    batches = _tried_batches(function, make_batch)
    tensors = [list(leaves(batch)) for batch in batches]
    if not tensors[0] or not list(leaves(batches[0][0])):
        raise DpscopeError(
            f"{function}: make_batch returned no tensor as inputs; return (inputs, targets)"
        )
    # a tensor without dimensions, such as the mean of a batch, holds no samples: it is as wrong as
    # one of another length
    shapes = [tuple(tensor.shape) for tensor in tensors[0]]
    wrong = [shape for shape in shapes if shape[:1] != (_TRIED,)]
    if wrong:
        raise DpscopeError(
            f"{function}: make_batch(0, {_TRIED}) returned a tensor of shape {wrong[0]}; the first dimension of every tensor "
            f"must be the number of samples, {_TRIED}"
        )
    if not all(torch.equal(tensor, other) for tensor, other in zip(*tensors, strict=True)):
        raise DpscopeError(
            f"{function}: make_batch(0, {_TRIED}) returned different batches in two calls; derive them from the seed alone"
        )
