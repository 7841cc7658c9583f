"""One rank of a job: gradients of DDP cells, of one step on shares of a batch, and a test in uneven
shards.

    python gradients.py REQUEST SAVED       (JSON of a Request, a path); rank 0 saves a dictionary
    of what it found

`cells` holds, for each cell, the gradients of every optimizer step, flattened into one tensor a
step. `shares` holds the gradients of one DDP step by model. `tested`, on two ranks alone, holds
what `evaluate` returned, the loss and the number of right answers of rank 0's model over all
samples at once, and whether each rank kept its own buffers and its training mode.
"""

import os
import sys
from typing import Any

import msgspec
import torch
from torch import Tensor, distributed, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.learning.loop import evaluate
from dpscope.launch.workload.image_sets import EpochSamples, FakeImages
from dpscope.launch.workload.input_pipeline import MicroBatching, open_stream
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.strategies import wrap_for
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.run import Cell

HOST = torch.device("cpu")
STEPS = 3  # DDP reduces one bucket in the first, rebuilt ones from the second
BATCH = 2  # of a share, per device
SAMPLES = 11  # tested: two processes have 5 and 6 of them, in batches of 4


class Request(msgspec.Struct):
    """Models with their cells, and models whose shares are compared."""

    cells: list[tuple[str, Cell]]
    shares: list[str]


def gradients_of(model: str, cell: Cell, rank: int) -> list[Tensor]:
    """The gradients of STEPS training steps of one process of a cell."""
    torch.manual_seed(0)
    built = build_model(model)
    wrapped = wrap_for(built.model, cell, HOST)
    shares = 1 if cell.strategy == "ddp" else cell.devices
    micro_batching = MicroBatching(count=cell.options.accumulate, shares=shares)
    stream = open_stream(Workload(model=model), cell, built, rank, HOST)
    step = TrainStep(wrapped, stream, Optimizer(), "off", HOST, micro_batching)
    found: list[Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
        gradients = [
            parameter.grad for group in optimizer.param_groups for parameter in group["params"]
        ]
        found.append(
            torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])
        )

    handle = register_optimizer_step_pre_hook(keep)
    for _ in range(STEPS):
        step()
    handle.remove()
    return found


def whole_batch(devices: int, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(devices * BATCH, *shape, generator=generator)
    return images, torch.randint(classes, (devices * BATCH,), generator=generator)


def gradients_of_a_share(model: str, rank: int, size: int) -> list[Tensor | None]:
    """Of one DDP step on this rank's share of the whole batch."""
    torch.manual_seed(0)
    built = build_model(model)
    wrapped = wrap_for(built.model, Cell("ddp", size, BATCH), HOST)
    images, labels = whole_batch(size, built.input_shape, built.classes)
    share = slice(rank * BATCH, (rank + 1) * BATCH)
    nn.functional.cross_entropy(wrapped(images[share]), labels[share]).backward()  # type: ignore[no-untyped-call]
    return [parameter.grad for parameter in built.model.parameters()]


def tested(rank: int, size: int) -> tuple[object, ...]:
    """Uneven shards tested by models whose buffers differ from rank to rank."""
    torch.manual_seed(0)
    built = build_model("tiny_models:tiny")
    model = built.model
    images = FakeImages(built, first=0, count=SAMPLES)
    with torch.no_grad():
        for buffer in model.buffers():
            buffer += rank  # running mean, variance and count
    own = [buffer.clone() for buffer in model.buffers()]
    place = TorchrunPlace(rank, rank, size, size, node=0)
    found = evaluate(model, images, place, 4, HOST)
    everywhere = torch.tensor(int(model.training and all(map(torch.equal, own, model.buffers()))))
    distributed.all_reduce(everywhere, distributed.ReduceOp.MIN)
    batch, labels = images.__getitems__(EpochSamples(0, range(SAMPLES)))
    with torch.no_grad():
        logits = model.eval()(batch)
    loss = nn.functional.cross_entropy(logits.double(), labels).item()
    right = int((logits.argmax(1) == labels).sum())
    return found.loss, found.accuracy, found.samples, loss, right, bool(everywhere)


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    request = msgspec.json.decode(sys.argv[1], type=Request)
    found = {
        "cells": [gradients_of(model, cell, rank) for model, cell in request.cells],
        "shares": {model: gradients_of_a_share(model, rank, size) for model in request.shares},
        "tested": tested(rank, size) if size == 2 else None,
    }
    if rank == 0:
        torch.save(found, sys.argv[2])
    distributed.barrier()
    # Everything is saved. Ending gloo's threads one by one aborted a rank once ("terminate called
    # without an active exception", torch 2.15, four ranks on two busy cores).
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
