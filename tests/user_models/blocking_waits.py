"""Trains a few steps whose main thread blocks until collectives are done, and traces each: torchrun
blocking_waits.py FOLDER.

Rank 1 sleeps before each of its collectives that rank 0 waits for, so that most of rank 0's
communication is waiting. Nothing computes during these waits: all of them are exposed.
"""

import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.user_models.parallel_training import Step, block, data_parallel, fully_sharded, traced

LATE_S = 0.1
waits = count()


def late() -> None:
    """Rank 1 begins the next collective `LATE_S` after rank 0 is about to, however slowly rank 0
    came there.
    """
    store, name = distributed.distributed_c10d._get_default_store(), f"wait {next(waits)}"
    if distributed.get_rank() == 0:
        store.set(name, "")
    else:
        store.wait([name])
        time.sleep(LATE_S)


class Late(nn.Module):
    """Passes its input on, late on rank 1."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        late()
        return inputs


def training(model: nn.Module, clip: bool) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)

    def step() -> None:
        model(torch.ones(32, 64)).sum().backward()
        if clip:
            late()
            float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()

    return step


def tensor_parallel(mesh: DeviceMesh) -> Step:
    """As PyTorch's example of tensor parallelism: the sum of the last layer's partial outputs is
    waited for in `aten::sum`.
    """
    layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), Late(), nn.Linear(256, 64))
    return training(
        parallelize_module(layers, mesh, {"0": ColwiseParallel(), "3": RowwiseParallel()}),
        clip=False,
    )


def tensor_parallel_clipped(mesh: DeviceMesh) -> Step:
    layers = parallelize_module(block(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return training(layers, clip=True)


def fully_sharded_clipped(mesh: DeviceMesh) -> Step:
    """The norm of sharded gradients is a DTensor: making a number of it all-reduces and waits."""
    return training(fully_sharded(mesh), clip=True)


def data_parallel_metric(_: DeviceMesh) -> Step:
    """DDP whose loss is averaged by a blocking all-reduce of torch.distributed, by a work's wait()
    and by a functional one.
    """
    step = training(data_parallel(_), clip=False)

    def with_metric() -> None:
        step()
        loss = torch.ones(1)
        late()
        distributed.all_reduce(loss)
        late()
        work = distributed.all_reduce(loss, async_op=True)
        assert work is not None
        work.wait()
        late()
        float(functional.all_reduce(loss, "sum", list(range(distributed.get_world_size()))))
        late()
        distributed.barrier()

    return with_metric


class Averaged(torch.autograd.Function):
    """Passes its input on and averages the gradient over the ranks, as layers of tensor-parallel
    libraries do.
    """

    @staticmethod
    def forward(ctx: object, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        late()
        distributed.all_reduce(gradients[0])
        return gradients[0]


class AveragedInputs(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Averaged.apply(inputs)
        return found


def reduced_in_hooks(_: DeviceMesh) -> Step:
    """Gradients averaged by all-reduces that block in an autograd function and in a parameter's
    hook.
    """
    first = nn.Linear(64, 256)
    model = nn.Sequential(first, AveragedInputs(), nn.Linear(256, 64))

    def average(gradient: torch.Tensor) -> torch.Tensor:
        late()
        distributed.all_reduce(gradient)
        return gradient

    first.weight.register_hook(average)  # type: ignore[no-untyped-call]
    return training(model, clip=False)


WAYS: dict[str, Callable[[DeviceMesh], Step]] = {
    "tensor_parallel": tensor_parallel,
    "tensor_parallel_clipped": tensor_parallel_clipped,
    "fully_sharded_clipped": fully_sharded_clipped,
    "data_parallel_metric": data_parallel_metric,
    "reduced_in_hooks": reduced_in_hooks,
}


def main() -> None:
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for way, make in WAYS.items():
        torch.manual_seed(0)
        traced(make(mesh), Path(sys.argv[1]) / way, first=2, active=4)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
