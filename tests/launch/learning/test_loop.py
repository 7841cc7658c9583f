"""Learning rates step by step, tests divided among processes, sums over samples, and a training
that raises.
"""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from dpscope.launch.learning import train_run as run
from dpscope.launch.learning.loop import Learned, LearningRates, LearningSums, shard
from dpscope.launch.learning.train_plan import TrainJob, load_train_config
from dpscope.profiling.mirrors.mirror import TrainingMirror
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.matrix import Matrix
from dpscope.profiling.records.training import TrainConfig


def rates(epochs: int, steps: int, **settings: Any) -> list[float]:
    """The rate of every step."""
    config = TrainConfig(
        workload=Workload(), optimizer=Optimizer(), matrix=Matrix(), epochs=epochs, **settings
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.8)
    schedule = LearningRates(optimizer, config, steps)
    return [schedule.apply(epoch, step) for epoch in range(epochs) for step in range(steps)]


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
    # over a single step, warm-up has no effect
    assert rates(2, 1, warmup_epochs=1) == pytest.approx([0.8, 0.8])


@pytest.mark.parametrize(("samples", "processes"), [(357, 2), (10, 3), (2, 4), (8, 8)])
def test_every_sample_is_in_one_shard(samples: int, processes: int) -> None:
    shards = [shard(samples, rank, processes) for rank in range(processes)]
    assert [sample for one in shards for sample in one] == list(range(samples))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_sums_are_weighted_by_samples() -> None:
    sums, logits = (
        LearningSums(torch.device("cpu")),
        torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]),
    )
    sums.add(logits, torch.tensor([0, 1, 1]), torch.tensor(0.5))  # two of three right
    sums.add(logits[:1], torch.tensor([1]), torch.tensor(2.5))
    assert sums.over_all_processes() == Learned(
        loss=(3 * 0.5 + 2.5) / 4, accuracy=100 * 2 / 4, samples=4
    )
    sums.add(logits[:1], torch.tensor([1]), torch.tensor(float("nan")))
    assert sums.over_all_processes().loss is None
    # Of tokens, each sample's share counts: three of four right, and one of four: 0.75 + 0.25 of 2
    # samples.
    targets, answers = (
        torch.tensor([[0, 1, 2, 0], [1, 1, 1, 1]]),
        torch.tensor([[0, 1, 2, 1], [1, 0, 0, 0]]),
    )
    sums = LearningSums(torch.device("cpu"))
    sums.add(torch.nn.functional.one_hot(answers, 3).float(), targets, torch.tensor(2.0))
    assert sums.over_all_processes() == Learned(loss=2.0, accuracy=50.0, samples=2)


@pytest.mark.process  # reads the machine's environment
def test_mirrors_are_closed_when_a_training_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Mirror(TrainingMirror):
        def close(self) -> None:
            closed.append(self)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    mirrors = [Mirror(lambda first: pytest.fail("nothing was trained")) for _ in range(2)]
    monkeypatch.setattr(TrainJob, "prepare", fail)
    config = load_train_config(None, {"device": "cpu", "strategy": "single", "data": "fake"})
    with pytest.raises(OSError, match="disk full"):
        run.run_trainings(config, tmp_path / "run", False, Console(file=io.StringIO()), mirrors)
    assert set(closed) == set(mirrors)
