"""Transfer learning: the last layer alone is trained first, then all of the model, in a new DDP with a new optimizer."""

from collections.abc import Iterable

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
model = nn.Sequential(body, nn.Linear(128, 10))


def train(parameters: Iterable[nn.Parameter], steps: int) -> None:
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parameters, 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        wrapped(torch.randn(32, 64)).sum().backward()
        optimizer.step()


body.requires_grad_(False)
train(model[1].parameters(), 17)
body.requires_grad_(True)
train(model.parameters(), 30)
distributed.destroy_process_group()
