"""Small models for digits, some of which interrupt their own training, given as ``resumed_models:function``."""

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

STOP_AT_STEP = 70  # of a process, in the third epoch of 30 steps
MARKER_VARIABLE = (
    "DPSCOPE_TEST_MARKER"  # begins the names of files: what is to happen once has happened when its file is there
)


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


class Event(NamedTuple):
    """A signal that a process sends itself in the forward of one of its training steps."""

    step: int
    number: signal.Signals
    rank: int = 0
    start: int = 0  # of its job, by torchrun


class _Interrupted(nn.Module):
    """Sends itself signals, each once, also over several starts."""

    def __init__(self, model: nn.Module, *events: Event) -> None:
        super().__init__()
        self.layers = model
        here = tuple(int(os.environ.get(name, "0")) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
        self._events = [event for event in events if here == (event.rank, event.start)]
        self._steps = 0

    def forward(self, images: Tensor) -> Tensor:
        self._steps += self.training
        for event in self._events:
            marker = Path(f"{os.environ[MARKER_VARIABLE]}-{event.number.name}")
            if event.step == self._steps and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), event.number)
        logits: Tensor = self.layers(images)
        return logits


def stopped() -> nn.Module:
    """Stopped in the middle of its third epoch."""
    return _Interrupted(with_dropout(), Event(STOP_AT_STEP, signal.SIGTERM))


def stopped_replicas() -> nn.Module:
    """The same for replicas on threads, whose dropout would draw from one generator in the order of chance."""
    return _Interrupted(plain(), Event(STOP_AT_STEP, signal.SIGTERM))


def stopped_and_killed() -> nn.Module:
    """One rank is stopped; after the next start another is killed, as by the out-of-memory killer."""
    return _Interrupted(with_dropout(), Event(5, signal.SIGTERM, rank=1), Event(40, signal.SIGKILL, rank=2, start=1))


class _Slow(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.layers = model

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(0.03 * self.training)
        logits: Tensor = self.layers(images)
        return logits


def slow() -> nn.Module:
    """Slow enough to be stopped in the middle of an epoch."""
    return _Slow(with_dropout())
