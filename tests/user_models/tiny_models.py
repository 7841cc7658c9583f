"""Small models given to dpscope as ``tiny_models:function``, some of which fail on purpose."""

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SHAPE = (3, 8, 8)
CLASSES = 4
FAILING_STEP = 7  # in the timed pass, after 5 steps of warm-up
LATE_S = 0.05

Workload = tuple[nn.Module, tuple[int, ...], int]


def tiny_module() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


def tiny() -> Workload:
    return tiny_module(), SHAPE, CLASSES


class _Tiny(nn.Module):
    """The tiny model, with something done before each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_module()

    def before(self, images: Tensor) -> None:
        """Nothing, by default."""

    def forward(self, images: Tensor) -> Tensor:
        self.before(images)
        logits: Tensor = self.model(images)
        return logits


class _Failing(_Tiny):
    """Calls `fail` in the forward of `FAILING_STEP`, on the last rank alone."""

    def __init__(self, fail: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.fail = fail
        self.steps = 0

    def before(self, images: Tensor) -> None:
        self.steps += 1
        last = int(os.environ.get("WORLD_SIZE", "1")) - 1
        if self.steps == FAILING_STEP and int(os.environ.get("RANK", "0")) == last:
            self.fail(images)


class _CompiledAlone(_Tiny):
    """Trains only as torch.compile has compiled it."""

    def before(self, images: Tensor) -> None:
        if "RANK" in os.environ and self.training and not torch.compiler.is_compiling():
            raise ArithmeticError("not compiled")


def compiled_alone() -> Workload:
    return _CompiledAlone(), SHAPE, CLASSES


class _Unused(_Tiny):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))


def unused() -> Workload:
    return _Unused(), SHAPE, CLASSES


def _crash(images: Tensor) -> None:
    raise ArithmeticError("this rank fails on purpose")


def _exhaust_memory_from_batch_two(images: Tensor) -> None:
    if len(images) >= 2:
        torch.empty(1 << 60)


def _hang(images: Tensor) -> None:
    time.sleep(3600)


def crashing() -> Workload:
    return _Failing(_crash), SHAPE, CLASSES


def crashing_alone() -> Workload:
    return (_Failing(_crash) if os.environ.get("WORLD_SIZE") == "1" else tiny_module()), SHAPE, CLASSES


def memory_hungry() -> Workload:
    return _Failing(_exhaust_memory_from_batch_two), SHAPE, CLASSES


def hanging() -> Workload:
    return _Failing(_hang), SHAPE, CLASSES


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


class _Slow(_Tiny):
    def before(self, images: Tensor) -> None:
        time.sleep(0.02)


def slow() -> Workload:
    return _Slow(), SHAPE, CLASSES


def layered() -> Workload:
    """Gradients that fill several buckets; the tests of variants count their bytes.

    393,216 + 4,096 (norm) + 2 x 1,048,576 + 8,192 = 2,502,656 B of gradients in 625,664 elements; buffers
    2,048 + 2,048 B fp32 and 8 B int64. No biases: the order in which a layer's two gradients arrive is not fixed.
    """
    layers = (
        nn.Linear(192, 512, bias=False),
        nn.BatchNorm1d(512),
        nn.ReLU(),
        nn.Linear(512, 512, bias=False),
        nn.ReLU(),
        nn.Linear(512, 512, bias=False),
        nn.ReLU(),
        nn.Linear(512, CLASSES, bias=False),
    )
    return nn.Sequential(*layers), (192,), CLASSES


class _Double(nn.Module):
    """fp64 throughout and no batch norm: a batch's gradient is the mean of its samples' gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, CLASSES)).double()

    def forward(self, samples: Tensor) -> Tensor:
        logits: Tensor = self.layers(samples.double())
        return logits


def double() -> Workload:
    return _Double(), (12,), CLASSES
