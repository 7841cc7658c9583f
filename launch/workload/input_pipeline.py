"""Endless batches in an order that is the same for all strategies, and their division into
micro-batches.

Step k of DDP on N ranks and step k of DataParallel on N devices train on the same samples: rank r's
batch is the r-th share of DataParallel's batch, with the same augmentation. Dropout differs: it
draws from generators that are seeded per process.

A process's batch consists of shares, one per device: one under DDP, N under DataParallel.
Micro-batch j holds the j-th part of every share, in rank order, so DataParallel's j-th micro-batch
has the samples of all DDP ranks' j-th micro-batches.
"""

import functools
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from dpscope.launch.jobs.parent_death import die_with_job
from dpscope.launch.workload.image_sets import Batch, EpochSamples, image_set
from dpscope.launch.workload.nested import batch_size, joined_batches, mapped
from dpscope.launch.workload.tasks import BuiltModel
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.run import Cell

_Share = TypeVar("_Share", list[int], Tensor)


def part_sizes(share: int, count: int) -> list[int]:
    """Sizes of the parts of a share of `share` samples: `count` parts, or fewer if it has fewer
    samples.

    >>> part_sizes(8, 2), part_sizes(5, 2), part_sizes(1, 2)
    ([4, 4], [3, 2], [1])
    """
    parts = max(1, min(count, share))
    return [share // parts + (index < share % parts) for index in range(parts)]


def by_micro_batches(shares: Sequence[_Share], count: int) -> list[_Share]:
    """The parts of equally long shares in the order of the batch: part 0 of each share, then part
    1, ...
    """
    ordered = []
    start = 0
    for size in part_sizes(len(shares[0]), count):
        ordered += [share[start : start + size] for share in shares]
        start += size
    return ordered


@dataclass(frozen=True)
class MicroBatching:
    """Division of a process's batch into `count` micro-batches, each with a part of each of
    `shares` shares.
    """

    count: int = 1
    shares: int = 1

    def cut(self, inputs: Any, targets: Any) -> list[tuple[Any, Any]]:
        """The micro-batches, as views, of a batch in the order of `by_micro_batches`."""
        if self.count == 1:
            return [(inputs, targets)]
        parts = []
        start = 0
        for size in part_sizes(batch_size(inputs) // self.shares, self.count):
            length = size * self.shares
            parts.append(
                mapped(
                    functools.partial(torch.narrow, dim=0, start=start, length=length),
                    (inputs, targets),
                )
            )
            start += length
        return parts


def micro_batching(cell: Cell) -> MicroBatching:
    """How the processes of a cell divide their batches."""
    return MicroBatching(
        count=cell.options.accumulate, shares=1 if cell.per_device else cell.devices
    )


@dataclass
class SyntheticBatches:
    """A BatchStream that repeats one random batch, already on the device: nothing is loaded or
    transferred.
    """

    batch: Batch
    samples: Sequence[int]
    steps_per_epoch: int  # including a short last batch
    loader_workers: int = 0
    epoch: int = 0
    _returned: int = 0

    def next_batch(self) -> Batch:
        self.epoch = self._returned // self.steps_per_epoch
        self._returned += 1
        return self.batch

    def start_epoch(self, epoch: int) -> None:
        self._returned = epoch * self.steps_per_epoch

    def leave_out_short_batches(self) -> None: ...

    def close(self) -> None: ...


class RankOrderBatchSampler(Sampler[EpochSamples]):
    """Batches that consist of the shares of `ranks` in rank order; each share is what DDP would
    give that rank.

    A DDP process passes its own rank, DataParallel and a single device pass all. Micro-batches are
    consecutive in a batch, each with its shares in rank order. `whole_only` omits a short last
    batch, if it is not the only one. `ahead` holds the batches that are being loaded, in order.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        shares: int,
        ranks: range,
        batch_size: int,
        seed: int,
        micro_batches: int = 1,
    ) -> None:
        self._samplers: list[DistributedSampler[Any]] = [
            DistributedSampler(dataset, num_replicas=shares, rank=rank, shuffle=True, seed=seed)
            for rank in ranks
        ]
        self._batch_size = batch_size
        self._micro_batches = micro_batches
        self.whole_only, self.epoch = False, 0
        self.ahead: deque[EpochSamples] = deque()

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for `epoch`, the same way on every rank."""
        self.epoch = epoch
        for sampler in self._samplers:
            sampler.set_epoch(epoch)

    def __len__(self) -> int:
        whole, rest = divmod(len(self._samplers[0]), self._batch_size)
        return whole if self.whole_only and whole else whole + (rest > 0)

    def __iter__(self) -> Iterator[EpochSamples]:
        self.ahead.clear()
        shares = [list(sampler) for sampler in self._samplers]
        for start in range(0, len(self) * self._batch_size, self._batch_size):
            batch = [share[start : start + self._batch_size] for share in shares]
            samples = [
                index for part in by_micro_batches(batch, self._micro_batches) for index in part
            ]
            # loader workers do not know the epoch
            self.ahead.append(EpochSamples(self.epoch, samples))
            yield self.ahead[-1]


class LoadedBatches:
    """A BatchStream from a DataLoader, epoch after epoch."""

    def __init__(self, loader: DataLoader[Any], sampler: RankOrderBatchSampler) -> None:
        self._loader = loader
        self._sampler = sampler
        self._iterator: Iterator[Batch] = iter(())
        self.steps_per_epoch = len(sampler)
        self.loader_workers = loader.num_workers
        self.epoch = -1
        self.samples: Sequence[int] = ()

    def next_batch(self) -> Batch:
        batch = next(self._iterator, None)
        if batch is None:
            self.start_epoch(self.epoch + 1)
            batch = next(self._iterator)
        self.samples = self._sampler.ahead.popleft().samples
        inputs, targets = batch
        return inputs, targets

    def start_epoch(self, epoch: int) -> None:
        """Continue with the first batch of `epoch`, counted from 0."""
        self.epoch = epoch
        self._sampler.set_epoch(epoch)
        self._iterator = iter(self._loader)

    def leave_out_short_batches(self) -> None:
        """From the next epoch on, omit a last batch that is shorter than the others."""
        self._sampler.whole_only = True

    def close(self) -> None:
        """End the loader workers, even if something else still refers to their iterator."""
        iterator = self._iterator
        self._iterator = iter(())
        if hasattr(iterator, "_shutdown_workers"):
            # called by the iterator's __del__; there is no public method
            iterator._shutdown_workers()


BatchStream = SyntheticBatches | LoadedBatches
"""Endless batches. `epoch` and `samples`, indices into the data set, describe the last batch
returned.
"""


def open_stream(
    workload: Workload,
    cell: Cell,
    built: BuiltModel,
    rank: int,
    device: torch.device,
    augment: bool = True,
) -> BatchStream:
    """The batches of one process of a cell; `rank` is 0 where one process feeds all devices."""
    ranks = range(rank, rank + 1) if cell.per_device else range(cell.devices)
    parts = cell.options.accumulate
    if workload.data == "synthetic":
        make_batch = built.make_batch or functools.partial(random_batch, built)
        shares = [make_batch(workload.seed + share, cell.batch_size) for share in ranks]
        batch = joined_batches(
            shares, lambda tensors: torch.cat(by_micro_batches(tensors, parts)).to(device)
        )
        indices = [
            list(range(share * cell.batch_size, (share + 1) * cell.batch_size)) for share in ranks
        ]
        samples = [index for part in by_micro_batches(indices, parts) for index in part]
        return SyntheticBatches(
            batch, samples, math.ceil(workload.samples / cell.global_batch_size)
        )
    images = image_set(workload, built, augment=augment)
    sampler = RankOrderBatchSampler(
        images, cell.devices, ranks, cell.batch_size, workload.seed, parts
    )
    workers = loader_workers(workload, cell, rank)
    loader: DataLoader[Any] = DataLoader(
        images,
        batch_sampler=cast(Any, sampler),  # a loader passes on whatever its batch sampler yields
        collate_fn=_whole_batch,
        num_workers=workers,
        pin_memory=workload.pin_memory,
        persistent_workers=workers > 0,
        worker_init_fn=_bind_to_parent if workers else None,
        generator=torch.Generator().manual_seed(workload.seed + rank),
    )
    return LoadedBatches(loader, sampler)


def loader_workers(workload: Workload, cell: Cell, rank: int) -> int:
    """Number of DataLoader workers of one process: `workers`, or its share of `workers_total`."""
    if workload.workers_total is None:
        return workload.workers
    whole, rest = divmod(workload.workers_total, cell.processes)
    return whole + (rank < rest)


def _whole_batch(batch: Any) -> Any:
    return batch  # image sets make whole batches


def _bind_to_parent(worker_index: int) -> None:
    """End a loader worker with its parent only: signals to the parent's process group do not reach
    it.
    """
    os.setpgid(0, 0)
    die_with_job()


def random_batch(built: BuiltModel, seed: int, batch_size: int) -> Batch:
    """Random images and labels in a model's shape, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch_size, *built.input_shape, generator=generator)
    labels = torch.randint(built.classes, (batch_size,), generator=generator)
    return images, labels
