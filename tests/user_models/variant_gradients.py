"""Run under torchrun: a few training steps of each of several DDP cells, rank 0 saving the gradients.

    torchrun ... variant_gradients.py MODELS CELLS SAVED        (JSON lists of equal length, a path)

Saves a list per cell: the gradients at every optimizer step, flattened into one tensor a step.
"""

import os
import sys
from typing import Any

import msgspec
import torch
from torch import Tensor, distributed
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpscope.launch.workload.input_pipeline import MicroBatching, open_stream
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.strategies import wrap
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.run import Cell

STEPS = 3  # DDP reduces one bucket in the first, rebuilt ones from the second


def gradients_of(model: str, cell: Cell, rank: int) -> list[Tensor]:
    """The gradients of STEPS training steps of one process of a cell."""
    host = torch.device("cpu")
    torch.manual_seed(0)
    built = build_model(model)
    wrapped = wrap(built.model, cell.strategy, cell.devices, host, cell.options)
    shares = 1 if cell.strategy == "ddp" else cell.devices
    workload = Workload(model=model)
    micro_batching = MicroBatching(count=cell.options.accumulate, shares=shares)
    step = TrainStep(wrapped, open_stream(workload, cell, built, rank, host), Optimizer(), "off", host, micro_batching)
    found: list[Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        found.append(torch.cat([gradient.flatten() for gradient in gradients if gradient is not None]))

    handle = register_optimizer_step_pre_hook(keep)
    for _ in range(STEPS):
        step()
    handle.remove()
    return found


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    cells = msgspec.json.decode(sys.argv[2], type=list[Cell])
    models = msgspec.json.decode(sys.argv[1], type=list[str])
    found = [gradients_of(model, cell, rank) for model, cell in zip(models, cells, strict=True)]
    if rank == 0:
        torch.save(found, sys.argv[3])
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
