"""Run under torchrun: one DDP step of `sys.argv[1]` on this rank's share; rank 0 saves the gradients to argv[2]."""

import os
import sys

import torch
from torch import distributed, nn

from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.strategies import wrap

BATCH = 2  # per device


def whole_batch(devices: int, shape: tuple[int, ...], classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(devices * BATCH, *shape, generator=generator)
    return images, torch.randint(classes, (devices * BATCH,), generator=generator)


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    built = build_model(sys.argv[1])
    model = wrap(built.model, "ddp", size, torch.device("cpu"))
    images, labels = whole_batch(size, built.input_shape, built.classes)
    share = slice(rank * BATCH, (rank + 1) * BATCH)
    nn.functional.cross_entropy(model(images[share]), labels[share]).backward()  # type: ignore[no-untyped-call]
    if rank == 0:
        torch.save([parameter.grad for parameter in built.model.parameters()], sys.argv[2])
    distributed.barrier()
    # The gradients are all that is asked for. Ending gloo's threads one by one aborted a rank once ("terminate called without an
    # active exception", torch 2.15, four ranks on two busy cores).
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
