"""`fully_shard` over two ranks as its tutorial has it: gathered again for the backward pass, never, or one unit alone."""

import sys

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    how = sys.argv[1]
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    again = {"again": True, "never": False, "alone": None}[how]
    for layer in () if how == "alone" else (model[0], model[2]):
        fully_shard(layer, reshard_after_forward=again)
    fully_shard(model, reshard_after_forward=again)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
    if distributed.get_rank() == 0:
        print("trained")
    # A gloo thread that frees the last all-gather's tensors needs the GIL: if the interpreter is already shutting down,
    # torch aborts the process. The barrier lets that thread finish first.
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
