"""Trainings that are cut short and go on after their last whole epoch: bit for bit as if they had
not been.

DDP's run on three processes where bits are compared: with two, sums do not depend on the order of
summation. digits' 1,440 samples are 10 steps of 144, also of 48 on each of three.
"""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console

from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.learning.train import run_training
from dpscope.launch.learning.train_plan import (
    TrainJob,
    TrainPlan,
    load_train_config,
    plan_trainings,
    train_job,
)
from dpscope.launch.learning.train_run import open_train_manifest, run_trainings
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.training_folders import TrainFolder, TrainingFolder
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.paths import USER_MODELS

ALONE = TorchrunPlace(rank=0, local_rank=0, world_size=1, local_world_size=1, node=0)
EPOCHS = 3
SETTINGS: dict[str, object] = {
    "device": "cpu", "data": "digits", "batch_size": "48", "epochs": EPOCHS, "milestones": "2", "warmup_epochs": 1,
    "lr": 0.05,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.syspath_prepend(USER_MODELS)
    monkeypatch.setenv("DPSCOPE_TEST_MARKER", str(tmp_path / "marker"))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def plan(out: Path, **flags: object) -> TrainPlan:
    return plan_trainings(load_train_config(None, {**SETTINGS, **flags}), out)


def train_here(out: Path, **flags: object) -> TrainJob:
    """Train the only cell of a plan in this process."""
    description = plan(out, **flags)
    (planned,) = description.jobs
    open_train_manifest(TrainFolder(out), description)
    job = train_job(TrainFolder(out), description.config, planned.cell, planned.seed, "cpu", 1)
    job.folder.path.mkdir(parents=True, exist_ok=True)
    write_json(job.folder.result_path, run_training(job, ALONE))
    return job


def train(out: Path, model: str) -> bool:
    """Train under DDP on three processes; returns whether that succeeded."""
    config = load_train_config(
        None,
        {
            **SETTINGS,
            "strategy": "ddp",
            "devices": 3,
            "model": f"resumed_models:{model}",
            "timeout": 200,
        },
    )
    with light_jobs():
        return run_trainings(config, out, False, Console(quiet=True)).ok


def training(out: Path) -> TrainingFolder:
    """The only training in a run folder."""
    (path,) = (out / "training").glob("*/seed0")
    assert not list(path.rglob(".tmp-*"))
    return TrainingFolder(path)


def saved(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def assert_same_bits(out: Path, straight: Path) -> None:
    """Weights, optimizer, learning rates and losses are those of a training that ran straight
    through.
    """
    folder, epochs = training(out), training(out).epochs()
    other_epochs = training(straight).epochs()
    content, other = saved(folder.last_path), saved(training(straight).last_path)
    assert content["epochs"] == msgspec.to_builtins(epochs)
    assert all(content[part] for part in ("model", "optimizer"))
    for part in ("model", "optimizer", "scaler"):
        assert_equal(content[part], other[part])
    assert [record.epoch for record in epochs] == list(range(1, EPOCHS + 1))
    for field in (
        "train_loss",
        "train_accuracy",
        "test_loss",
        "test_accuracy",
        "learning_rate",
        "train_samples",
    ):
        assert [getattr(record, field) for record in epochs] == [
            getattr(record, field) for record in other_epochs
        ]
    accuracies = [record.test_accuracy for record in epochs]
    assert len(saved(folder.best_path)["epochs"]) == accuracies.index(max(accuracies)) + 1


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict | list | tuple):
        assert len(one) == len(other)
        assert not isinstance(one, dict) or list(one) == list(other)
        for mine, theirs in zip(
            *(part.values() if isinstance(part, dict) else part for part in (one, other)),
            strict=True,
        ):
            assert_equal(mine, theirs)
    else:
        assert one == other


@pytest.mark.parametrize(("strategy", "model"), [("single", "stopped"), ("dp", "stopped_replicas")])
def test_stopped_in_the_middle_of_an_epoch_or_after_one(
    tmp_path: Path, strategy: str, model: str
) -> None:
    settings: dict[str, Any] = {
        "strategy": strategy,
        "devices": "2",
        "batch_size": "144",
        "model": f"resumed_models:{model}",
    }
    # the test is the process that the signal ends
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with pytest.raises(SystemExit):
            train_here(tmp_path / "stopped", **settings)
    finally:
        signal.signal(signal.SIGTERM, before)
    # step 25 of a process is in the third epoch
    stopped = training(tmp_path / "stopped")
    assert len(stopped.epochs()) == len(saved(stopped.last_path)["epochs"]) == 2
    train_here(tmp_path / "stopped", **settings)
    train_here(tmp_path / "straight", **settings)  # the model has sent its signal once
    assert_same_bits(tmp_path / "stopped", tmp_path / "straight")
    if strategy == "dp":
        return
    train_here(tmp_path / "extended", **{**settings, "epochs": 2})
    train_here(tmp_path / "extended", **settings)
    assert_same_bits(tmp_path / "extended", tmp_path / "straight")


def test_ddp_stopped_and_killed_ends_as_one_that_ran_straight_through(tmp_path: Path) -> None:
    straight, killed = (tmp_path / name for name in ("straight", "killed"))
    ended_well = [train(killed, "stopped_and_killed") for _ in range(3)]
    assert ended_well == [False, False, True]
    assert train(straight, "stopped_and_killed")  # the markers prevent a second time
    assert {path.name for path in tmp_path.glob("marker-*")} == {"marker-SIGTERM", "marker-SIGKILL"}
    assert_same_bits(killed, straight)


def test_an_epoch_that_was_saved_but_not_recorded_is_kept(tmp_path: Path) -> None:
    """The process may be killed between the two."""
    settings: dict[str, Any] = {"strategy": "single", "model": "resumed_models:with_dropout"}
    train_here(tmp_path / "run", **settings)
    folder = training(tmp_path / "run")
    records = folder.epochs()
    write_json(folder.epochs_path, records[:-1])
    folder.result_path.unlink()
    train_here(tmp_path / "run", **settings)
    assert folder.epochs() == records


def test_what_cannot_be_gone_on_from(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"strategy": "single", "model": "resumed_models:with_dropout"}
    train_here(tmp_path / "run", **{**settings, "epochs": 2})
    folder = training(tmp_path / "run")
    folder.result_path.unlink()
    with pytest.raises(
        DpscopeError,
        match=r"--epochs 1: single-d1-b48 seed 0 is at the end of epoch 2 already; give more epochs",
    ):
        plan(tmp_path / "run", **{**settings, "epochs": 1})
    whole = folder.last_path.read_bytes()
    folder.last_path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DpscopeError, match=r"last\.pt cannot be resumed from .*remove it"):
        train_here(tmp_path / "run", **settings)
    folder.last_path.unlink()  # as the message says
    train_here(tmp_path / "run", **settings)
    assert [record.epoch for record in folder.epochs()] == list(range(1, EPOCHS + 1))
