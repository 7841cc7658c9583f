"""Batches: every strategy trains on the same samples."""

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset

from dpscope.launch.planning.run_config import load_config
from dpscope.launch.workload import image_sets
from dpscope.launch.workload.image_sets import EpochSamples, image_set
from dpscope.launch.workload.input_pipeline import (
    RankOrderBatchSampler,
    loader_workers,
    open_stream,
)
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.run import Cell
from tests.helpers.sweeps import wait_until

HOST = torch.device("cpu")
BUILT = BuiltModel(model=nn.Identity(), input_shape=(3, 4, 4), classes=4)
DDP = Cell(strategy="ddp", devices=2, batch_size=3)
DP = Cell(strategy="dp-host", devices=2, batch_size=3)


def workload(**flags: object) -> Workload:
    usual = {} if flags.get("data") == "cifar10" else {"samples": 20}
    workers = {"workers": 0} if flags.get("data") == "fake" and "workers_total" not in flags else {}
    return load_config(None, {**usual, **workers, **flags}).workload


def images(cell: Cell, rank: int, steps: int, **flags: object) -> list[torch.Tensor]:
    stream = open_stream(workload(**flags), cell, BUILT, rank, HOST)
    return [stream.next_batch()[0] for _ in range(steps)]


def test_a_ranks_batches_are_those_of_the_distributed_sampler() -> None:
    dataset: Any = TensorDataset(torch.arange(10))
    sampler = RankOrderBatchSampler(dataset, shares=2, ranks=range(1, 2), batch_size=2, seed=5)
    expected: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=2, rank=1, seed=5)
    orders = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        expected.set_epoch(epoch)
        orders.append([index for batch in sampler for index in batch.samples])
        assert orders[-1] == list(expected)
    assert orders[0] != orders[1]
    assert len(sampler) == 3


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_names_the_epoch_and_samples_of_its_last_batch(workers: int) -> None:
    stream = open_stream(workload(data="fake", workers=workers), DDP, BUILT, 1, HOST)
    all_samples = image_set(workload(data="fake"), BUILT)
    for epoch in (0, 0, 0, 0, 1, 1):  # ceil(20 / 6) batches an epoch, the last of them one sample
        batch = stream.next_batch()[0]
        assert stream.epoch == epoch
        assert torch.equal(
            batch, all_samples.__getitems__(EpochSamples(stream.epoch, stream.samples))[0]
        )
    synthetic = open_stream(workload(data="synthetic"), DDP, BUILT, 1, HOST)
    assert list(synthetic.samples) == [3, 4, 5]  # rank 0 has 0, 1, 2
    epochs = [synthetic.epoch for _ in range(9) if synthetic.next_batch()]
    assert epochs == [0, 0, 0, 0, 1, 1, 1, 1, 2]


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
def test_short_batches_can_be_left_out_from_the_next_epoch_on(workers: int) -> None:
    stream = open_stream(workload(data="fake", workers=workers), DDP, BUILT, 0, HOST)
    # a rank has 10 of 20 samples
    sizes = [len(stream.next_batch()[1]) for _ in range(stream.steps_per_epoch)]
    stream.leave_out_short_batches()
    sizes += [len(stream.next_batch()[1]) for _ in range(7)]
    assert sizes == [3, 3, 3, 1] + [3] * 7
    assert stream.epoch == 3
    assert stream.steps_per_epoch == 4


@pytest.mark.process
@pytest.mark.parametrize("terminate", [False, True])
def test_workers_end_with_the_stream_or_a_signal_but_not_by_one_of_the_group(
    terminate: bool,
) -> None:
    before = set(multiprocessing.active_children())
    stream = open_stream(workload(data="fake", workers=2), DDP, BUILT, 0, HOST)
    stream.next_batch()
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    # the batch was of one
    wait_until(lambda: all(os.getpgid(worker.pid or 0) == worker.pid for worker in workers))
    for worker in workers if terminate else ():
        worker.terminate()  # torch answers a parent's SIGTERM with status 0
        worker.join(5)
    held = stream._iterator  # type: ignore[union-attr]  # as a reference cycle would
    stream.close()
    assert held is not None
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_a_total_of_workers_is_shared() -> None:
    assert [
        loader_workers(workload(data="fake", workers_total=3), DDP, rank) for rank in (0, 1)
    ] == [2, 1]
    assert loader_workers(workload(data="fake", workers_total=3), DP, 0) == 3
    assert loader_workers(workload(data="fake", workers=2), DDP, 1) == 2


def test_cifar_images_are_normalised_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3 * 32 * 32), dtype=np.uint8)
    for index, name in enumerate(
        [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    ):
        content = {"data": pixels[index : index + 1], "labels": [index]}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    # no such md5
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: True)
    settings = workload(data="cifar10", data_dir=str(tmp_path))
    found, labels = (
        torch.cat(parts)
        for parts in zip(
            image_sets.image_set(settings, BUILT, augment=False).__getitems__(
                EpochSamples(0, range(5))
            ),
            image_sets.image_set(settings, BUILT, train=False).__getitems__(EpochSamples(0, [0])),
            strict=True,
        )
    )
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]
    green = torch.from_numpy(pixels.reshape(6, 3, 32, 32))[:, 1] / 255
    assert torch.allclose(found[:, 1], (green - 0.4822) / 0.1994, atol=1e-5)
    moved = image_sets.image_set(settings, BUILT).__getitems__(EpochSamples(0, range(5)))[0]
    assert moved.shape == found[:5].shape
    assert not torch.equal(moved, found[:5])
