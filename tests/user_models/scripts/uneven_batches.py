"""Ranks with unequal batches: rank 1 trains on three times as many samples as rank 0."""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
samples = 32 if distributed.get_rank() == 0 else 96
model = DistributedDataParallel(
    nn.Sequential(
        nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(samples, 512)).sum().backward()
    optimizer.step()
distributed.destroy_process_group()
