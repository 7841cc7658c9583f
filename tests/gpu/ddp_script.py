"""A training script with DDP and without dpscope, for `dpscope attach`: `torchrun ...
tests/gpu/ddp_script.py STEPS`.
"""

import os
import sys

import torch
from torch import distributed, nn

from dpscope.launch.workload.models import cifar_resnet18

BATCH = 128


def main() -> None:
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", device_id=device)
    model = nn.parallel.DistributedDataParallel(cifar_resnet18().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(BATCH, 3, 32, 32, device=device)
    labels = torch.randint(10, (BATCH,), device=device)
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.cuda.synchronize(device)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
