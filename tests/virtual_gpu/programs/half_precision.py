"""A training script as people write them, under DDP: half precision with a GradScaler, accumulation
with no_sync, pinned batches.

torchrun --nproc-per-node=N half_precision.py STEPS
"""

import os
import sys
from contextlib import nullcontext

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

MICRO_BATCHES, BATCH = 2, 4
WIDTH, CLASSES = 256, 10


def main() -> None:
    steps = int(sys.argv[1])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", device_id=device)
    layers = nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, CLASSES, bias=False)
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler()
    samples = steps * MICRO_BATCHES * BATCH
    data = TensorDataset(torch.randn(samples, WIDTH), torch.zeros(samples, dtype=torch.long))
    loader = DataLoader(data, batch_size=BATCH, pin_memory=True)
    for index, (inputs, targets) in enumerate(loader):
        inputs, targets = (
            inputs.to(device, non_blocking=True),
            targets.to(device, non_blocking=True),
        )
        last = index % MICRO_BATCHES == MICRO_BATCHES - 1
        with nullcontext() if last else model.no_sync():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(inputs), targets)
            scaler.scale(loss / MICRO_BATCHES).backward()  # type: ignore[no-untyped-call]
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
