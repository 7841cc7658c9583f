"""Whole trainings with real torchrun jobs on a tiny model: against a plain loop, each other,
themselves.
"""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DistributedSampler
from torchvision import transforms
from torchvision.datasets import FakeData

from dpscope.launch.jobs.job_queue import Outcome
from dpscope.launch.learning.train_plan import load_train_config
from dpscope.launch.learning.train_run import run_trainings
from dpscope.launch.workload.models import build_model
from dpscope.profiling.records.training import EpochRecord, TrainResult
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.training_folders import TrainFolder
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.paths import USER_MODELS

SAMPLES, BATCH, EPOCHS, LEARNING_RATE, GAMMA, SMOOTHING, SEED = 36, 8, 2, 0.05, 0.5, 0.1, 3
TINY: dict[str, object] = {
    "device": "cpu", "model": "tiny_models:tiny", "data": "fake", "samples": SAMPLES, "batch_size": BATCH, "devices": "2",
    "epochs": EPOCHS, "lr": LEARNING_RATE, "milestones": "1,9", "gamma": GAMMA, "label_smoothing": SMOOTHING,
    "seeds": str(SEED), "workers": 0, "eval_batch_size": 2, "timeout": 120,
}  # fmt: skip


def trained(out: Path, fresh: bool = False, **flags: object) -> tuple[Outcome[TrainResult], str]:
    """The outcome and what was printed."""
    printed = StringIO()
    with light_jobs():
        console = Console(file=printed, width=200)
        return run_trainings(
            load_train_config(None, {**TINY, **flags}), out, fresh, console
        ), printed.getvalue()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run folder with one training of each strategy, and what was printed."""
    out = tmp_path_factory.mktemp("train") / "run"
    outcome, printed = trained(out)
    assert outcome.ok, [(result.cell.name, result.message) for result in outcome.results]
    return out, printed


def epochs_of(out: Path, strategy: str) -> list[EpochRecord]:
    found = [record for record in TrainFolder(out).log().epochs if record.strategy == strategy]
    assert [record.epoch for record in found] == list(range(1, EPOCHS + 1))
    return found


def reference_epochs() -> list[tuple[float, float, float, float]]:
    """Losses and accuracies of a plain training loop: train loss, train accuracy, test loss, test
    accuracy.
    """
    torch.manual_seed(SEED)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(USER_MODELS)
        model = build_model("tiny_models:tiny").model
    optimizer = torch.optim.SGD(
        model.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4
    )
    data: Any = FakeData(SAMPLES, (3, 8, 8), 4, transforms.ToTensor())
    test: Any = FakeData(SAMPLES // 5, (3, 8, 8), 4, transforms.ToTensor(), random_offset=SAMPLES)
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=1, rank=0, seed=SEED)

    def batch(source: Any, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = zip(*(source[index] for index in indices), strict=True)
        return torch.stack(images), torch.tensor(labels)

    found = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        order = list(sampler)
        losses, right = [], 0
        for start in range(0, SAMPLES, BATCH):
            images, labels = batch(data, order[start : start + BATCH])
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, labels, label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (GAMMA if epoch >= 1 else 1)
            optimizer.step()
            losses.append(loss.item() * len(labels))
            right += int((logits.argmax(1) == labels).sum())
        images, labels = batch(test, range(7))
        with torch.no_grad():
            logits = model.eval()(images)
        model.train()
        tested = (
            nn.functional.cross_entropy(logits, labels).item(),
            float((logits.argmax(1) == labels).float().mean()),
        )
        found.append((sum(losses) / SAMPLES, 100 * right / SAMPLES, tested[0], 100 * tested[1]))
    return found


def test_a_single_device_learns_as_a_plain_loop_does_and_dp_as_ddp(run: tuple[Path, str]) -> None:
    records = epochs_of(run[0], "single")
    for record, expected in zip(records, reference_epochs(), strict=True):
        found = (record.train_loss, record.train_accuracy, record.test_loss, record.test_accuracy)
        assert found == pytest.approx(expected, rel=1e-4)
    assert [record.learning_rate for record in records] == pytest.approx(
        [LEARNING_RATE, LEARNING_RATE * GAMMA]
    )
    for dp, ddp in zip(epochs_of(run[0], "dp-host"), epochs_of(run[0], "ddp"), strict=True):
        assert dp.train_loss == pytest.approx(ddp.train_loss, rel=1e-5)
        assert (dp.train_accuracy, dp.test_accuracy) == (ddp.train_accuracy, ddp.test_accuracy)
        assert dp.test_loss == pytest.approx(ddp.test_loss, rel=1e-4)


def test_two_trainings_are_the_same_bit_for_bit_and_what_is_done_is_kept(
    run: tuple[Path, str], tmp_path: Path
) -> None:
    trained(tmp_path / "again", strategy="ddp")
    for first, second in zip(
        epochs_of(run[0], "ddp"), epochs_of(tmp_path / "again", "ddp"), strict=True
    ):
        for field in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
            assert getattr(first, field) == getattr(second, field)
    path = (
        TrainFolder(tmp_path / "again")
        .training(TrainFolder(tmp_path / "again").manifest().plan[0].cell, SEED)
        .path
    )
    had = path.joinpath("result.json").stat().st_mtime_ns
    assert trained(tmp_path / "again", strategy="ddp")[0].ok
    assert path.joinpath("result.json").stat().st_mtime_ns == had
    assert len(epochs_of(tmp_path / "again", "ddp")) == EPOCHS
    assert trained(tmp_path / "again", strategy="ddp", seeds="4")[0].ok
    assert [record.seed for record in TrainFolder(tmp_path / "again").log().epochs] == [
        SEED
    ] * EPOCHS + [4] * EPOCHS
    with pytest.raises(
        DpscopeError,
        match=r"holds trainings with --lr 0\.05, not --lr 0\.06; use the same settings",
    ):
        trained(tmp_path / "again", strategy="ddp", lr=0.06)


def test_a_training_that_fails_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    outcome, printed = trained(
        tmp_path / "run", strategy="single,ddp", model="tiny_models:crashing_alone"
    )
    assert not outcome.ok
    assert [(result.cell.name, result.status) for result in outcome.results] == [
        ("single-d1-b8", "crashed"),
        ("ddp-d2-b4", "ok"),
    ]
    assert "this rank fails on purpose" in outcome.results[0].message
    assert "this rank fails on purpose" in printed
    assert "Traceback" not in printed


def test_variants_precision_and_weak_scaling(tmp_path: Path) -> None:
    outcome, _ = trained(
        tmp_path / "run", strategy="ddp", scaling="weak", learning_rate_scaling="linear", amp="bf16", accumulate=2,
        comm_hook="fp16", overlap="off", warmup_epochs=1, milestones="", gamma=None, workers=1,
    )  # fmt: skip
    assert outcome.ok, [result.message for result in outcome.results]
    first, second = epochs_of(tmp_path / "run", "ddp")
    assert first.variant == "overlap-off-hook-fp16-accumulate-2"
    assert first.cell == f"ddp-d2-b8-{first.variant}"
    assert (first.batch_size, first.global_batch_size) == (8, 16)
    # 36 samples in steps of 16, 16 and 4: the third step of three ends the warm-up at twice the
    # single device's rate.
    assert (first.learning_rate, second.learning_rate) == pytest.approx((0.1, 0.1))
    assert second.train_loss is not None
    assert (second.train_samples, second.test_samples) == (36, 7)
