"""Small models given to dpscope as ``tiny_models:function``, some of which fail on purpose."""

import os
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

SHAPE = (3, 8, 8)
CLASSES = 4
FAILING_STEP = 7  # in the timed pass, after 5 steps of warm-up
LATE_S = 0.05

Workload = tuple[nn.Module, tuple[int, ...], int]


def tiny_module() -> nn.Module:
    convolved = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    return nn.Sequential(*convolved, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


def tiny() -> Workload:
    return tiny_module(), SHAPE, CLASSES


def _tiny_after(before: Callable[[nn.Module, tuple[Tensor]], None]) -> Workload:
    """The tiny model, with something done before each forward pass."""
    model = tiny_module()
    model.register_forward_pre_hook(before)
    return model, SHAPE, CLASSES


def _failing(fail: Callable[[Tensor], None]) -> Workload:
    """Calls `fail` in the forward of `FAILING_STEP`, on the last rank alone."""
    steps = count(1)

    def before(model: nn.Module, inputs: tuple[Tensor]) -> None:
        last = int(os.environ.get("WORLD_SIZE", "1")) - 1
        if next(steps) == FAILING_STEP and int(os.environ.get("RANK", "0")) == last:
            fail(inputs[0])

    return _tiny_after(before)


class _Tiny(nn.Module):
    """The tiny model within another, whose forward pass a compiler traces."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_module()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits


def unused() -> Workload:
    model = _Tiny()
    model.spare = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    return model, SHAPE, CLASSES


def _crash(images: Tensor) -> None:
    raise ArithmeticError("this rank fails on purpose")


def _exhaust_memory_from_batch_two(images: Tensor) -> None:
    if len(images) >= 2:
        torch.empty(1 << 60)


def crashing() -> Workload:
    return _failing(_crash)


def crashing_alone() -> Workload:
    return crashing() if os.environ.get("WORLD_SIZE") == "1" else tiny()


def memory_hungry() -> Workload:
    return _failing(_exhaust_memory_from_batch_two)


def hanging() -> Workload:
    return _failing(lambda images: time.sleep(3600))


def slow() -> Workload:
    return _tiny_after(lambda model, inputs: time.sleep(0.02))


class _Late(torch.autograd.Function):
    """Identity whose backward, the first of all, waits on the last rank."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        return logits.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            time.sleep(LATE_S)
        return gradients[0]


class LateOnLastRank(nn.Module):
    """Passes its input on; its backward sleeps on the last rank."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _Late.apply(x)
        return found


def layered() -> Workload:
    """Gradients that fill several buckets; the tests of variants count their bytes.

    393,216 + 4,096 (norm) + 2 x 1,048,576 + 8,192 = 2,502,656 B of gradients in 625,664 elements;
    buffers 2,048 + 2,048 B fp32 and 8 B int64. No biases: the order in which a layer's two
    gradients arrive is not fixed.
    """
    first, last = nn.Linear(192, 512, bias=False), nn.Linear(512, CLASSES, bias=False)
    middle = [layer for _ in range(2) for layer in (nn.Linear(512, 512, bias=False), nn.ReLU())]
    return nn.Sequential(first, nn.BatchNorm1d(512), nn.ReLU(), *middle, last), (192,), CLASSES


def double() -> Workload:
    """fp64 throughout and no batch norm: a batch's gradient is the mean of its samples'
    gradients.
    """
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, CLASSES)).double()
    model.register_forward_pre_hook(lambda model, inputs: inputs[0].double())
    return model, (12,), CLASSES
