"""A script that starts its second process itself, as frameworks do for two devices without torchrun."""

import os
import subprocess
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": sys.argv[1],
        "WORLD_SIZE": "2",
        "RANK": str(rank),
    }
    os.environ.update(place)
    other = None
    if rank == 0:
        own = {**os.environ, "LOCAL_RANK": "1", "RANK": "1"}
        other = subprocess.Popen(
            [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]], env=own
        )
    distributed.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.rand(4, 8)).sum().backward()
        optimizer.step()
    distributed.destroy_process_group()
    if other is not None:
        other.wait()
        print("trained", flush=True)


if __name__ == "__main__":
    main()
