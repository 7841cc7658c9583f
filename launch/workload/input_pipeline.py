"""Batches: endlessly, over epochs, in an order all strategies agree on.

Step k of DDP on N ranks and step k of DataParallel on N devices train on the same samples: rank r's batch is
the r-th share of DataParallel's batch, augmented alike (launch/workload/augmentation.py). Dropout draws from generators that are
seeded per process: the dropped units are not the same.
"""

import functools
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from dpscope.launch.jobs.parent_death import die_with_job
from dpscope.launch.workload.image_sets import Batch, EpochSamples, training_images
from dpscope.launch.workload.micro_batches import by_micro_batches
from dpscope.launch.workload.nested import joined_batches
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.run import Cell


class BatchStream(Protocol):
    """Batches without end; `epoch` and `samples`, their indices in the data set, are those of the batch handed out last."""

    epoch: int
    samples: Sequence[int]
    steps_per_epoch: int  # of a whole epoch, its short last batch included
    loader_workers: int

    def next_batch(self) -> Batch:
        """The next (inputs, targets)."""

    def start_epoch(self, epoch: int, step: int = 0) -> None:
        """The next batch is that of `epoch` and its `step`, both counted from 0."""

    def leave_out_short_batches(self) -> None:
        """From the next epoch on, hand out whole batches only: an epoch then ends before a shorter last one."""

    def close(self) -> None:
        """End the loader workers; no batch is handed out afterwards."""


class SyntheticBatches:
    """One random batch, already on the device: no loading and no transfer to measure."""

    loader_workers = 0

    def __init__(self, batch: Batch, samples: Sequence[int], steps_per_epoch: int) -> None:
        self._batch = batch
        self.samples = samples
        self._handed_out = 0
        self.steps_per_epoch = steps_per_epoch
        self.epoch = 0

    def next_batch(self) -> Batch:
        """The same batch again."""
        self.epoch = self._handed_out // self.steps_per_epoch
        self._handed_out += 1
        return self._batch

    def start_epoch(self, epoch: int, step: int = 0) -> None:
        """Count on from there; every batch is the same."""
        self._handed_out = epoch * self.steps_per_epoch + step

    def leave_out_short_batches(self) -> None:
        """There are none."""

    def close(self) -> None:
        """There are no loader workers."""


class RankOrderBatchSampler(Sampler[list[int]]):
    """Batches made of the shares of `ranks` in rank order, each share what DDP would give that rank.

    Under DDP every process asks for its own rank alone; DataParallel and a single device ask for all of them.
    A batch that will be cut into micro-batches holds them one after the other, each made of shares in rank order.
    With `whole_only` an epoch ends before a last batch that is short of samples, if it has another; `first_step` leaves out
    the batches before it.
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
        self.epoch = 0
        self.first_step = 0

    def set_epoch(self, epoch: int) -> None:
        """Shuffle anew for `epoch`, the same way on every rank."""
        self.epoch = epoch
        for sampler in self._samplers:
            sampler.set_epoch(epoch)

    def __len__(self) -> int:
        whole, rest = divmod(len(self._samplers[0]), self._batch_size)
        return whole if self.whole_only and whole else whole + (rest > 0)

    def __iter__(self) -> Iterator[list[int]]:
        shares = [list(sampler) for sampler in self._samplers]
        for start in range(self.first_step * self._batch_size, len(self) * self._batch_size, self._batch_size):
            batch = [share[start : start + self._batch_size] for share in shares]
            yield [index for part in by_micro_batches(batch, self._micro_batches) for index in part]


class _BatchRequests(Sampler[EpochSamples]):
    """A sampler's batches with their epoch, as image sets ask for them: loader workers know no epoch.

    `ahead` holds those that were asked for and not handed out yet, in their order, which loaders keep.
    """

    def __init__(self, sampler: RankOrderBatchSampler) -> None:
        self._sampler = sampler
        self.ahead: deque[EpochSamples] = deque()

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[EpochSamples]:
        self.ahead.clear()
        for samples in self._sampler:
            self.ahead.append(EpochSamples(self._sampler.epoch, samples))
            yield self.ahead[-1]


class LoadedBatches:
    """Batches of a DataLoader, epoch after epoch."""

    def __init__(
        self, loader: DataLoader[Any], sampler: RankOrderBatchSampler, requests: _BatchRequests, workers: int
    ) -> None:
        self._loader = loader
        self._sampler = sampler
        self._requests = requests
        self._iterator: Iterator[Batch] | None = None
        self.steps_per_epoch = len(sampler)
        self.loader_workers = workers
        self.epoch = -1
        self.samples: Sequence[int] = ()

    def next_batch(self) -> Batch:
        """The next batch, of the next epoch when this one is used up."""
        batch = next(self._iterator, None) if self._iterator is not None else None
        if batch is None:
            batch = next(self._begin(self.epoch + 1))
        self.samples = self._requests.ahead.popleft().samples
        inputs, targets = batch
        return inputs, targets

    def start_epoch(self, epoch: int, step: int = 0) -> None:
        """Begin that epoch, from its `step` on, whatever is left of the current one."""
        self._begin(epoch, step)

    def _begin(self, epoch: int, step: int = 0) -> Iterator[Batch]:
        self.epoch = epoch
        self._sampler.set_epoch(epoch)
        self._sampler.first_step = step
        self._iterator = iter(self._loader)
        return self._iterator

    def leave_out_short_batches(self) -> None:
        """From the next epoch on, hand out whole batches only."""
        self._sampler.whole_only = True

    def close(self) -> None:
        """End the loader workers, whatever else still refers to their iterator."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None and self.loader_workers:
            cast(Any, iterator)._shutdown_workers()  # what the iterator's own __del__ calls; there is no public method


def open_stream(
    workload: Workload, cell: Cell, built: BuiltModel, rank: int, device: torch.device, augment: bool = True
) -> BatchStream:
    """The batches of one process of a cell; `rank` is 0 for single, DataParallel and dp-host."""
    ranks = range(rank, rank + 1) if cell.per_device else range(cell.devices)
    if workload.data == "synthetic":
        make_batch = built.make_batch or functools.partial(random_batch, built)
        shares = [make_batch(workload.seed + share, cell.batch_size) for share in ranks]
        batch = joined_batches(
            shares, lambda parts: torch.cat(by_micro_batches(parts, cell.options.accumulate)).to(device)
        )
        steps = math.ceil(workload.samples / cell.global_batch_size)
        indices = [list(range(share * cell.batch_size, (share + 1) * cell.batch_size)) for share in ranks]
        samples = [index for part in by_micro_batches(indices, cell.options.accumulate) for index in part]
        return SyntheticBatches(batch, samples, steps)
    images_to_learn = training_images(workload, built, augment)
    sampler = RankOrderBatchSampler(
        images_to_learn, cell.devices, ranks, cell.batch_size, workload.seed, cell.options.accumulate
    )
    requests = _BatchRequests(sampler)
    workers = loader_workers(workload, cell, rank)
    loader: DataLoader[Any] = DataLoader(
        images_to_learn,
        batch_sampler=cast(Any, requests),  # a loader passes on whatever its batch sampler yields
        collate_fn=_as_it_is,
        num_workers=workers,
        pin_memory=workload.pin_memory,
        persistent_workers=workers > 0,
        worker_init_fn=_bind_to_parent if workers else None,
        generator=torch.Generator().manual_seed(workload.seed + rank),
    )
    return LoadedBatches(loader, sampler, requests, workers)


def loader_workers(workload: Workload, cell: Cell, rank: int) -> int:
    """DataLoader workers of one process: `workers`, or its share of `workers_total`."""
    if workload.workers_total is None:
        return workload.workers
    whole, rest = divmod(workload.workers_total, cell.processes)
    return whole + (1 if rank < rest else 0)


def _as_it_is(batch: Any) -> Any:
    """Image sets make whole batches."""
    return batch


def _bind_to_parent(worker_index: int) -> None:
    """A worker ends with its parent, or when the parent ends it: signals to the parent's process group do not reach it."""
    os.setpgid(0, 0)
    die_with_job()


def random_batch(built: BuiltModel, seed: int, batch_size: int) -> Batch:
    """Random images and labels of a model's shape, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch_size, *built.input_shape, generator=generator)
    labels = torch.randint(built.classes, (batch_size,), generator=generator)
    return images, labels
