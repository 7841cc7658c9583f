"""A classifier that joins a process group and is wrapped in DDP on GPUs alone, as PyTorch's ImageNet example does it."""

import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEPS, BATCH = 40, 8


def main() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    if torch.cuda.is_available():
        model = DistributedDataParallel(model.cuda())
    data = TensorDataset(torch.rand(STEPS * BATCH * 2, 32), torch.randint(10, (STEPS * BATCH * 2,)))
    sampler = DistributedSampler(data) if distributed.is_initialized() else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (images, labels) in enumerate(DataLoader(data, BATCH, sampler=sampler)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and int(os.environ.get("RANK", "0")) == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
