"""Batches: endlessly, over epochs, in an order all strategies agree on.

Step k of DDP on N ranks and step k of DataParallel on N devices train on the same samples: rank r's batch is
the r-th share of DataParallel's batch. Augmentation and dropout draw from generators that are seeded per process: the
samples are the same, their random crops and flips and the dropped units are not.
"""

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from dpscope.launch.micro_batches import by_micro_batches
from dpscope.launch.parent_death import die_with_job
from dpscope.launch.workloads import Workload
from dpscope.profiling.run_store import DpscopeError
from dpscope.profiling.run_types import Cell, RunConfig

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_DEVIATION = (0.2470, 0.2435, 0.2616)

Batch = tuple[Tensor, Tensor]


class BatchStream(Protocol):
    """Batches without end; `epoch` is that of the batch handed out last."""

    epoch: int
    steps_per_epoch: int  # of a whole epoch, its short last batch included
    loader_workers: int

    def next_batch(self) -> Batch:
        """The next (images, labels)."""

    def leave_out_short_batches(self) -> None:
        """From the next epoch on, hand out whole batches only: an epoch then ends before a shorter last one."""


class SyntheticBatches:
    """One random batch, already on the device: no loading and no transfer to measure."""

    loader_workers = 0

    def __init__(self, batch: Batch, steps_per_epoch: int) -> None:
        self._batch = batch
        self._handed_out = 0
        self.steps_per_epoch = steps_per_epoch
        self.epoch = 0

    def next_batch(self) -> Batch:
        """The same batch again."""
        self.epoch = self._handed_out // self.steps_per_epoch
        self._handed_out += 1
        return self._batch

    def leave_out_short_batches(self) -> None:
        """There are none."""


class RankOrderBatchSampler(Sampler[list[int]]):
    """Batches made of the shares of `ranks` in rank order, each share what DDP would give that rank.

    Under DDP every process asks for its own rank alone; DataParallel and a single device ask for all of them.
    A batch that will be cut into micro-batches holds them one after the other, each made of shares in rank order.
    With `whole_only` an epoch ends before a last batch that is short of samples, if it has another.
    """

    def __init__(
        self, dataset: Dataset[Any], shares: int, ranks: range, batch_size: int, seed: int, micro_batches: int = 1
    ) -> None:
        self._samplers: list[DistributedSampler[Any]] = [
            DistributedSampler(dataset, num_replicas=shares, rank=rank, shuffle=True, seed=seed) for rank in ranks
        ]
        self._batch_size = batch_size
        self._micro_batches = micro_batches
        self.whole_only = False

    def set_epoch(self, epoch: int) -> None:
        """Shuffle anew for `epoch`, the same way on every rank."""
        for sampler in self._samplers:
            sampler.set_epoch(epoch)

    def __len__(self) -> int:
        whole, rest = divmod(len(self._samplers[0]), self._batch_size)
        return whole if self.whole_only and whole else whole + (rest > 0)

    def __iter__(self) -> Iterator[list[int]]:
        shares = [list(sampler) for sampler in self._samplers]
        for start in range(0, len(self) * self._batch_size, self._batch_size):
            batch = [share[start : start + self._batch_size] for share in shares]
            yield [index for part in by_micro_batches(batch, self._micro_batches) for index in part]


class LoadedBatches:
    """Batches of a DataLoader, epoch after epoch."""

    def __init__(self, loader: DataLoader[Any], sampler: RankOrderBatchSampler, workers: int) -> None:
        self._loader = loader
        self._sampler = sampler
        self._iterator: Iterator[Batch] | None = None
        self.steps_per_epoch = len(sampler)
        self.loader_workers = workers
        self.epoch = -1

    def next_batch(self) -> Batch:
        """The next batch, of the next epoch when this one is used up."""
        batch = next(self._iterator, None) if self._iterator is not None else None
        if batch is None:
            self.epoch += 1
            self._sampler.set_epoch(self.epoch)
            self._iterator = iter(self._loader)
            batch = next(self._iterator)
        images, labels = batch
        return images, labels

    def leave_out_short_batches(self) -> None:
        """From the next epoch on, hand out whole batches only."""
        self._sampler.whole_only = True


def download_data(config: RunConfig) -> None:
    """Fetch CIFAR-10 where it is asked for and absent; raises DpscopeError when that fails."""
    if config.data != "cifar10" or not config.download:
        return
    from torchvision.datasets import CIFAR10

    try:
        CIFAR10(config.data_dir, train=True, download=True)
    except (OSError, RuntimeError) as error:
        raise DpscopeError(
            f"--download: CIFAR-10 could not be fetched into {config.data_dir} ({error}); "
            "fetch cifar-10-python.tar.gz elsewhere and unpack it there"
        ) from error


def open_stream(config: RunConfig, cell: Cell, workload: Workload, rank: int, device: torch.device) -> BatchStream:
    """The batches of one process of a cell; `rank` is 0 for single, DataParallel and dp-host."""
    ranks = range(rank, rank + 1) if cell.strategy == "ddp" else range(cell.devices)
    if config.data == "synthetic":
        shares = [_random_batch(workload, cell.batch_size, config.seed + share) for share in ranks]
        images, labels = (
            torch.cat(by_micro_batches(parts, cell.options.accumulate)).to(device)
            for parts in zip(*shares, strict=True)
        )
        steps = math.ceil(config.samples / cell.global_batch_size)
        return SyntheticBatches((images, labels), steps)
    dataset = _cifar10(config) if config.data == "cifar10" else _fake(config, workload)
    sampler = RankOrderBatchSampler(dataset, cell.devices, ranks, cell.batch_size, config.seed, cell.options.accumulate)
    workers = loader_workers(config, cell, rank)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        pin_memory=config.pin_memory,
        persistent_workers=workers > 0,
        worker_init_fn=_bind_to_parent if workers else None,
        generator=torch.Generator().manual_seed(config.seed + rank),
    )
    return LoadedBatches(loader, sampler, workers)


def loader_workers(config: RunConfig, cell: Cell, rank: int) -> int:
    """DataLoader workers of one process: `workers`, or its share of `workers_total`."""
    if config.workers_total is None:
        return config.workers
    whole, rest = divmod(config.workers_total, cell.processes)
    return whole + (1 if rank < rest else 0)


def _bind_to_parent(worker_index: int) -> None:
    die_with_job()


def _random_batch(workload: Workload, batch_size: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch_size, *workload.input_shape, generator=generator)
    labels = torch.randint(workload.classes, (batch_size,), generator=generator)
    return images, labels


def _fake(config: RunConfig, workload: Workload) -> Dataset[Any]:
    from torchvision import transforms
    from torchvision.datasets import FakeData

    dataset: Dataset[Any] = FakeData(
        size=config.samples,
        image_size=workload.input_shape,
        num_classes=workload.classes,
        transform=transforms.ToTensor(),
    )
    return dataset


def _cifar10(config: RunConfig) -> Dataset[Any]:
    from torchvision import transforms
    from torchvision.datasets import CIFAR10

    transform = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(0.5),
            transforms.ToTensor(),
            transforms.Normalize(CIFAR_MEAN, CIFAR_DEVIATION),
        ]
    )
    dataset: Dataset[Any] = CIFAR10(config.data_dir, train=True, transform=transform, download=False)
    return dataset
