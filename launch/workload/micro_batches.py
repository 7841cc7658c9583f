"""Cutting a step's batch into micro-batches, so that every strategy cuts it into the same samples.

A process's batch is made of shares, one per device it feeds: one under DDP, N under DataParallel. Micro-batch j holds
the j-th part of every share, in rank order, so that DataParallel's j-th micro-batch is what DDP's ranks have in theirs.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpscope.launch.workload.nested import batch_size, mapped
from dpscope.profiling.records.run import Cell

_Share = TypeVar("_Share", list[int], Tensor)


def part_sizes(share: int, count: int) -> list[int]:
    """Sizes of the parts of a share of `share` samples: `count` of them, fewer if it has fewer samples.

    >>> part_sizes(8, 2), part_sizes(5, 2), part_sizes(1, 2)
    ([4, 4], [3, 2], [1])
    """
    parts = max(1, min(count, share))
    return [share // parts + (index < share % parts) for index in range(parts)]


def by_micro_batches(shares: Sequence[_Share], count: int) -> list[_Share]:
    """The parts of equally long shares in the order in which they make up a batch: part 0 of each share, part 1, ..."""
    ordered = []
    start = 0
    for size in part_sizes(len(shares[0]), count):
        ordered += [share[start : start + size] for share in shares]
        start += size
    return ordered


@dataclass(frozen=True)
class MicroBatching:
    """How a process's batch is cut: into `count` micro-batches, each with a part of each of `shares` shares."""

    count: int = 1
    shares: int = 1

    def cut(self, inputs: Any, targets: Any) -> list[tuple[Any, Any]]:
        """The micro-batches of a batch that `by_micro_batches` ordered; views, nothing is copied."""
        if self.count == 1:
            return [(inputs, targets)]
        sizes = [size * self.shares for size in part_sizes(batch_size(inputs) // self.shares, self.count)]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        return [
            mapped(functools.partial(torch.narrow, dim=0, start=start, length=size), (inputs, targets))
            for start, size in zip(starts, sizes, strict=True)
        ]


def micro_batching(cell: Cell) -> MicroBatching:
    """How the processes of a cell cut their batches."""
    return MicroBatching(count=cell.options.accumulate, shares=1 if cell.per_device else cell.devices)
