"""Ranks with unequal batches: rank 1 trains on three times as many samples as rank 0."""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
samples = 32 if distributed.get_rank() == 0 else 96
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(samples, 64)).sum().backward()
    optimizer.step()
distributed.destroy_process_group()
