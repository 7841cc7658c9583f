"""Small models for digits, some of which interrupt their own training, given as ``resumed_models:function``."""

import os
import signal
import time
from pathlib import Path

from torch import Tensor, nn

STOP_AT_STEP = 70  # of a process, in the third epoch of 30 steps
MARKER_VARIABLE = "DPSCOPE_TEST_MARKER"  # a file: what is to happen once has happened when it is there


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def with_dropout() -> nn.Module:
    """Draws from the process's own random numbers in every step."""
    model = plain()
    assert isinstance(model, nn.Sequential)
    model.insert(7, nn.Dropout(0.2))
    return model


class _Interrupted(nn.Module):
    """Sends itself a signal once, in the forward of one training step."""

    def __init__(self, model: nn.Module, number: signal.Signals, rank: int | None = None) -> None:
        super().__init__()
        self.layers = model
        self._number = number
        self._rank = rank
        self._steps = 0

    def forward(self, images: Tensor) -> Tensor:
        self._steps += self.training
        mine = self._rank is None or os.environ.get("RANK", "0") == str(self._rank)
        marker = Path(os.environ[MARKER_VARIABLE])
        if self._steps == STOP_AT_STEP and mine and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), self._number)
        logits: Tensor = self.layers(images)
        return logits


def stopped() -> nn.Module:
    """Told to stop in the middle of its third epoch."""
    return _Interrupted(with_dropout(), signal.SIGTERM)


def stopped_replicas() -> nn.Module:
    """The same for replicas on threads, whose dropout would draw from one generator in the order of chance."""
    return _Interrupted(plain(), signal.SIGTERM)


def killed() -> nn.Module:
    """The last of three ranks dies at once, as by the kernel's out-of-memory killer."""
    return _Interrupted(with_dropout(), signal.SIGKILL, rank=2)


class _Slow(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.layers = model

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(0.03 * self.training)
        logits: Tensor = self.layers(images)
        return logits


def slow() -> nn.Module:
    """Slow enough to be told to stop in the middle of an epoch."""
    return _Slow(with_dropout())
