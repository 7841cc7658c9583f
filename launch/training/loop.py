"""Learning rates, epochs of training and testing, and the hooks between them, timed separately."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, MultiStepLR

from dpscope.launch.training.evaluation import Learned, LearningSums
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.training import EpochRecord, TrainConfig


class LearningRateSchedule:
    """torch's MultiStepLR, stepped every epoch, combined during warm-up with LinearLR, stepped every step.

    In a warm-up of W steps, step k (from 1) uses k/W of the rate. Milestones count trained epochs; at each of them the rate is
    multiplied by gamma.
    """

    def __init__(self, optimizer: Optimizer, config: TrainConfig, steps_per_epoch: int) -> None:
        self._optimizer = optimizer
        self._milestones = MultiStepLR(optimizer, list(config.milestones), config.gamma)
        warmup_steps = config.warmup_epochs * steps_per_epoch
        self._warmup = LinearLR(optimizer, start_factor=1 / max(1, warmup_steps), total_iters=max(1, warmup_steps - 1))

    @property
    def learning_rate(self) -> float:
        """The rate of the next step."""
        rate: float = self._optimizer.param_groups[0]["lr"]
        return rate

    def after_step(self) -> None:
        """Advance by an optimizer step."""
        self._warmup.step()

    def after_epoch(self) -> None:
        """Advance by an epoch."""
        self._milestones.step()

    def state_dict(self) -> dict[str, Any]:
        """State for `load_state_dict`; the rate itself is in the optimizer's."""
        return {"milestones": self._milestones.state_dict(), "warmup": self._warmup.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from another schedule's state."""
        self._milestones.load_state_dict(state["milestones"])
        self._warmup.load_state_dict(state["warmup"])


@dataclass
class TrainState:
    """Everything that changes while training.

    `step` holds the wrapped model, the optimizer, the gradient scaler and the batches. Of the epoch that is being trained,
    `steps` are taken, in `train_s` seconds, the last one with `learning_rate`; `sums` are this process's part of its loss
    and accuracy. Random states are the process's own generators (dropout); batches and augmentation need none.
    """

    model: nn.Module  # unwrapped: its state has the same keys under every strategy
    step: TrainStep
    schedule: LearningRateSchedule
    sums: LearningSums
    records: list[EpochRecord] = field(default_factory=list)  # of finished epochs
    epochs: int = 0  # finished
    steps: int = 0
    train_s: float = 0.0
    learning_rate: float = 0.0


EpochEnded = Callable[[Learned, Learned, float], None]
"""Called with an epoch's training results, its test results, and the seconds of the test."""


class TrainHooks(Protocol):
    """What happens between steps and epochs; every process of a job calls the same hooks in the same order."""

    def pause_after_step(self, state: TrainState) -> bool:
        """Whether to pause here, the same on every process. On CUDA the step is queued, not finished."""

    def paused(self, state: TrainState) -> bool:
        """All steps are finished and their time is counted; whether to stop here, the same on every process."""

    def after_epoch(self, state: TrainState) -> bool:
        """An epoch is trained, tested and recorded, here with `state.steps` 0; whether to stop, as above."""


def train(
    state: TrainState,
    epochs: int,
    synchronise: Callable[[], None],
    test: Callable[[], Learned],
    epoch_ended: EpochEnded,
    hooks: TrainHooks,
) -> bool:
    """Train until `epochs` are finished, from wherever `state` is; False when a hook stopped it before.

    `synchronise` waits for this process's devices and for the other processes; `epoch_ended` records an epoch.
    """
    while state.epochs < epochs:
        if _train_epoch(state, synchronise, hooks):
            return False
        began_s = time.perf_counter()
        tested = test()
        synchronise()
        epoch_ended(state.sums.over_all_processes(), tested, time.perf_counter() - began_s)
        state.schedule.after_epoch()
        state.epochs += 1
        state.steps, state.train_s = 0, 0.0
        state.sums.clear()
        if hooks.after_epoch(state) and state.epochs < epochs:
            return False
    return True


def _train_epoch(state: TrainState, synchronise: Callable[[], None], hooks: TrainHooks) -> bool:
    """Take what is left of an epoch's steps; True when a hook stopped it."""
    batches = state.step.batches
    synchronise()
    began_s = time.perf_counter()
    batches.start_epoch(state.epochs, state.steps)
    while state.steps < batches.steps_per_epoch:
        state.learning_rate = state.schedule.learning_rate
        state.step()
        state.schedule.after_step()
        state.steps += 1
        if hooks.pause_after_step(state):
            synchronise()
            state.train_s += time.perf_counter() - began_s
            if hooks.paused(state):
                return True
            synchronise()
            began_s = time.perf_counter()
    synchronise()
    state.train_s += time.perf_counter() - began_s
    return False
