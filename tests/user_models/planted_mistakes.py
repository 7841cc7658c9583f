"""One tiny model, whose making plants a mistake in this process's strategy: given as
``planted_mistakes:function``.

Checking the name imports this and calls nothing. torchrun's variables show what a process is.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from dpscope.launch.workload import host_data_parallel, strategies
from dpscope.profiling.records.run import CellOptions

SHAPE = (3, 8, 8)
CLASSES = 4
UNAVERAGED_STEP = 3

Workload = tuple[nn.Module, tuple[int, ...], int]


def none() -> Workload:
    convolved = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    return (
        nn.Sequential(*convolved, nn.Flatten(), nn.Dropout(), nn.Linear(512, CLASSES)),
        SHAPE,
        CLASSES,
    )


def _is_a_worker() -> bool:
    """The process that plans builds the model as well, and stays as it is."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _is_ddp() -> bool:
    return int(os.environ["WORLD_SIZE"]) > 1


def skipped_average() -> Workload:
    """Rank 1 takes part in the all-reduce of step UNAVERAGED_STEP, and keeps its own gradients all
    the same.
    """
    plain = strategies._distributed
    steps = 0

    def hook(state: None, bucket: distributed.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        nonlocal steps
        skipped = steps == UNAVERAGED_STEP and int(os.environ["RANK"]) == 1
        steps += 1  # one bucket holds this model
        own = bucket.buffer().clone()
        averaged: Future[Tensor] = allreduce_hook(None, bucket)  # type: ignore[arg-type]
        return averaged.then(lambda reduced: own if skipped else reduced.value())

    def planted(
        model: nn.Module, device: torch.device, options: CellOptions
    ) -> DistributedDataParallel:
        wrapped = plain(model, device, options)
        wrapped.register_comm_hook(None, hook)
        return wrapped

    if _is_a_worker():
        strategies._distributed = planted
    return none()


def no_set_epoch() -> Workload:
    """set_epoch of DDP's sampler does nothing."""

    def nothing(self: DistributedSampler[Any], epoch: int) -> None:
        return

    if _is_ddp():
        DistributedSampler.set_epoch = nothing  # type: ignore[method-assign]
    return none()


def dropped_by_the_sampler() -> Workload:
    """DDP's sampler leaves out what does not fill all shares, instead of padding them."""

    plain = DistributedSampler.__init__

    def dropping(self: DistributedSampler[Any], *arguments: Any, **keywords: Any) -> None:
        plain(self, *arguments, **{**keywords, "drop_last": True})

    if _is_ddp():
        DistributedSampler.__init__ = dropping  # type: ignore[method-assign]
    return none()


def dropped_by_the_scatter() -> Workload:
    """dp-host's scatter gives each device pairs of samples and drops the remainder; the loss takes
    the labels left.
    """
    scatter = host_data_parallel.HostDataParallel.scatter
    loss = nn.functional.cross_entropy

    def planted(
        self: Any, inputs: Sequence[Tensor], keywords: Any, device_ids: Sequence[int]
    ) -> Any:
        kept = len(inputs[0]) // (2 * len(device_ids)) * 2 * len(device_ids)
        return scatter(self, tuple(one[:kept] for one in inputs), keywords, device_ids)

    def of_the_labels_left(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        return loss(logits, labels[: len(logits)], **options)

    if _is_a_worker():
        host_data_parallel.HostDataParallel.scatter = planted  # type: ignore[method-assign, assignment]
        nn.functional.cross_entropy = of_the_labels_left  # type: ignore[assignment]
    return none()
