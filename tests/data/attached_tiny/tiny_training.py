"""A linear model trained with SGD: alone, or under DistributedDataParallel where torchrun started
it.
"""

import os

import torch
import torch.distributed as dist
from torch import nn

torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_function = nn.CrossEntropyLoss()
for _ in range(80):
    inputs, targets = torch.randn(8, 16), torch.randint(4, (8,))
    optimizer.zero_grad()
    loss_function(model(inputs), targets).backward()
    optimizer.step()
if dist.is_initialized():
    dist.destroy_process_group()
