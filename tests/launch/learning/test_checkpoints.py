"""Checkpoints as files: complete, with checksums, and read back to the same state."""

import copy
import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.learning.checkpoints import (
    load_state,
    read_checkpoint,
    resume,
    save,
    whole_state,
)
from dpscope.launch.learning.loop import LearningRates, LearningSums, TrainState
from dpscope.launch.workload.input_pipeline import MicroBatching, SyntheticBatches
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.matrix import Matrix
from dpscope.profiling.records.training import TrainConfig
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.training_folders import TrainingFolder
from tests.helpers.trainings import record

HOST = torch.device("cpu")
ALONE = TorchrunPlace(rank=0, local_rank=0, world_size=1, local_world_size=1, node=0)


def state(**optimizer: Any) -> TrainState:
    """Of a model that has not been trained, whose batches are always the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    batches = SyntheticBatches((torch.randn(6, 3), torch.zeros(6).long()), (), steps_per_epoch=1)
    settings = Optimizer(learning_rate=0.1, **optimizer)
    step = TrainStep(model, batches, settings, "off", HOST, MicroBatching(count=1))
    config = TrainConfig(workload=Workload(), optimizer=settings, matrix=Matrix(), epochs=3)
    return TrainState(model, step, LearningRates(step.optimizer, config, 1), LearningSums(HOST))


@pytest.fixture
def folder(tmp_path: Path) -> TrainingFolder:
    return TrainingFolder(tmp_path / "training")


def train(training: TrainState, folder: TrainingFolder, *accuracies: float) -> None:
    """An epoch of one step for each accuracy."""
    for accuracy in accuracies:
        training.step()
        epoch = len(training.records) + 1
        training.records.append(record(epoch=epoch, test_accuracy=accuracy))
        save(folder, training, rank=0)


def epochs_in(path: Path) -> int:
    return len(torch.load(path, weights_only=True)["epochs"])


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_resumed_and_trained_on_it_has_the_same_bits(
    folder: TrainingFolder, momentum: float
) -> None:
    straight = state(momentum=momentum)
    train(straight, folder, 50.0, 60.0)
    resumed = state(momentum=momentum)
    resume(folder, resumed, ALONE, HOST)
    assert resumed.records == straight.records == folder.epochs()
    for training in (straight, resumed):
        training.step()
    expected, found = straight.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(found[name], values) for name, values in expected.items())


def test_frozen_tied_and_unused_parameters_are_restored() -> None:
    def model() -> nn.ModuleList:
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        return nn.ModuleList(
            [first, second, nn.Linear(3, 3), nn.Linear(4, 4).requires_grad_(False)]
        )

    def steps(model: nn.ModuleList, optimizer: torch.optim.Optimizer, count: int) -> None:
        for _ in range(count):
            model[3](model[1](model[0](torch.ones(2, 4)))).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    trained, other = model(), model()
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (trained, other)]
    steps(trained, optimizers[0], 3)
    load_state(other, optimizers[1], *copy.deepcopy(whole_state(trained, optimizers[0])))
    steps(trained, optimizers[0], 2)
    steps(other, optimizers[1], 2)
    expected = trained.state_dict()
    assert all(torch.equal(other.state_dict()[name], values) for name, values in expected.items())


def test_last_and_best(folder: TrainingFolder) -> None:
    training = state()
    train(training, folder, 50.0, 60.0, 60.0)
    assert (epochs_in(folder.last_path), epochs_in(folder.best_path)) == (3, 2)
    train(training, folder, 70.0)
    assert (epochs_in(folder.last_path), epochs_in(folder.best_path)) == (4, 4)


def test_a_write_that_fails_leaves_the_last_one(
    folder: TrainingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = state()
    train(training, folder, 50.0)

    def fail(content: object, file: Any) -> None:
        file.write(b"PK and no more")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="No space"):
        train(training, folder, 60.0)
    assert (epochs_in(folder.last_path), len(folder.epochs())) == (1, 1)
    assert {path.name for path in folder.last_path.parent.iterdir()} == {"last.pt", "best.pt"}


def test_every_torn_or_changed_checkpoint_is_refused(folder: TrainingFolder) -> None:
    """Of a changed byte either nothing depends on it (as dates in the archive), or it is noticed."""
    train(state(), folder, 50.0)
    path = folder.last_path
    whole, expected = path.read_bytes(), torch.load(path, weights_only=True)
    for length in (0, 3, 22, *range(100, len(whole), 211), *range(len(whole) - 30, len(whole))):
        path.write_bytes(whole[:length])
        with pytest.raises(DpscopeError, match=r"last\.pt cannot be .*remove it, or give --fresh"):
            read_checkpoint(path)
    places = range(0, len(whole), 37)
    noticed = 0
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            content = read_checkpoint(path)
        except DpscopeError:
            noticed += 1
        else:
            assert content["epochs"] == expected["epochs"]
            for name, values in expected["model"].items():
                assert torch.equal(content["model"][name], values)
    assert noticed > len(places) / 3


def test_other_files_and_other_models_are_refused(folder: TrainingFolder) -> None:
    train(state(), folder, 50.0)
    path = folder.last_path
    for content in (b"epoch,loss\n1,2\n", bytes(4096)):
        path.write_bytes(content)
        with pytest.raises(DpscopeError, match="remove it, or give --fresh"):
            read_checkpoint(path)
    other = nn.Linear(2, 2)
    model, optimizer = whole_state(other, torch.optim.SGD(other.parameters()))
    torch.save({"model": model, "optimizer": optimizer, "scaler": {}, "epochs": []}, path)
    with pytest.raises(DpscopeError, match=r"cannot be resumed from \(Error.* loading state_dict"):
        resume(folder, state(), ALONE, HOST)
    torch.save({"state_dict": other.state_dict()}, path)
    with pytest.raises(DpscopeError, match=r"cannot be resumed from \('model'\)"):
        resume(folder, state(), ALONE, HOST)
    torch.save({"model": torch.nn.Linear}, path)
    with pytest.raises(DpscopeError, match="other things than tensors and plain values"):
        read_checkpoint(path)
