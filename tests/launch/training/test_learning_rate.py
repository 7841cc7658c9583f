"""Learning rates step by step, by hand."""

import pytest
import torch

from dpscope.launch.training.learning_rate import LearningRateSchedule
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.matrix import Matrix
from dpscope.profiling.records.training import TrainConfig


def rates(epochs: int, steps: int, **settings: object) -> list[float]:
    """The rate of every step."""
    config = TrainConfig(workload=Workload(), optimizer=Optimizer(), matrix=Matrix(), epochs=epochs, **settings)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.8)
    schedule = LearningRateSchedule(optimizer, config, steps)
    found = []
    for _ in range(epochs):
        for _ in range(steps):
            found.append(schedule.learning_rate)
            optimizer.step()
            schedule.after_step()
        schedule.after_epoch()
    return found


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.8] * 6),
        ({"milestones": (1, 2), "gamma": 0.5}, [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]),
        ({"milestones": (3,), "gamma": 0.5}, [0.8] * 6),  # after the last epoch
        ({"warmup_epochs": 1}, [0.4, 0.8, 0.8, 0.8, 0.8, 0.8]),
        ({"warmup_epochs": 2}, [0.2, 0.4, 0.6, 0.8, 0.8, 0.8]),
        ({"warmup_epochs": 2, "milestones": (1,)}, [0.2, 0.4, 0.06, 0.08, 0.08, 0.08]),
        ({"warmup_epochs": 6}, [0.8 * step / 12 for step in range(1, 7)]),
    ],
)
def test_rates_by_hand(settings: dict[str, object], expected: list[float]) -> None:
    assert rates(3, 2, **settings) == pytest.approx(expected)


def test_warm_up_over_a_single_step_is_none() -> None:
    assert rates(2, 1, warmup_epochs=1) == pytest.approx([0.8, 0.8])
