"""The learning rate of every step: warmed up linearly, cut at milestones."""

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, MultiStepLR

from dpscope.profiling.records.training import TrainConfig


class LearningRateSchedule:
    """torch's MultiStepLR, stepped by the epoch, and during warm-up LinearLR on top of it, stepped by the step.

    Warm-up over W steps takes step k (from 1) at k/W of the rate. Milestones count epochs trained: after that many the
    rate is multiplied by gamma.
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
        """An optimizer step was taken."""
        self._warmup.step()

    def after_epoch(self) -> None:
        """An epoch's last step was taken."""
        self._milestones.step()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes; the rate itself is the optimizer's."""
        return {"milestones": self._milestones.state_dict(), "warmup": self._warmup.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another schedule was."""
        self._milestones.load_state_dict(state["milestones"])
        self._warmup.load_state_dict(state["warmup"])
