"""Small models for digits, some of which interrupt their own training, given as
``resumed_models:function``.
"""

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

from torch import nn

STOP_AT_STEP = 25  # of a process, in the third epoch of 10 steps
# It begins the names of files: what is to happen once has happened when its file is there.
MARKER_VARIABLE = "DPSCOPE_TEST_MARKER"


def plain() -> nn.Sequential:
    def convolved(channels: int, out: int) -> tuple[nn.Module, ...]:
        return (
            nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
        )

    return nn.Sequential(*convolved(3, 6), *convolved(6, 8), nn.Flatten(), nn.Linear(512, 10))


def with_dropout() -> nn.Module:
    """Draws from the process's own random numbers in every step."""
    model = plain()
    model.insert(7, nn.Dropout(0.2))
    return model


class Event(NamedTuple):
    """A signal that a process sends itself in the forward of one of its training steps."""

    step: int
    number: signal.Signals
    rank: int = 0
    start: int = 0  # so many events have happened before the process starts


def _interrupted(model: nn.Module, *events: Event) -> nn.Module:
    """Sends itself signals, each once, also over several starts."""
    prefix = Path(os.environ[MARKER_VARIABLE])
    here = int(os.environ.get("RANK", "0")), len(list(prefix.parent.glob(f"{prefix.name}-*")))
    own = [event for event in events if here == (event.rank, event.start)]

    def before(model: nn.Module, inputs: object) -> None:
        steps = vars(model).get("steps", 0) + model.training
        vars(model)["steps"] = steps  # each replica counts its own
        for event in own:
            marker = Path(f"{os.environ[MARKER_VARIABLE]}-{event.number.name}")
            if event.step == steps:
                with contextlib.suppress(FileExistsError):  # of a replica's thread, or earlier
                    marker.touch(exist_ok=False)
                    os.kill(os.getpid(), event.number)

    model.register_forward_pre_hook(before)
    return model


def stopped() -> nn.Module:
    """Stopped in the middle of its third epoch."""
    return _interrupted(with_dropout(), Event(STOP_AT_STEP, signal.SIGTERM))


def stopped_replicas() -> nn.Module:
    """The same for replicas on threads, whose dropout would draw from one generator in the order of
    chance.
    """
    return _interrupted(plain(), Event(STOP_AT_STEP, signal.SIGTERM))


def stopped_and_killed() -> nn.Module:
    """One rank is stopped; after the next start another is killed, as by the out-of-memory
    killer.
    """
    return _interrupted(
        with_dropout(),
        Event(5, signal.SIGTERM, rank=1),
        Event(STOP_AT_STEP, signal.SIGKILL, rank=2, start=1),
    )
