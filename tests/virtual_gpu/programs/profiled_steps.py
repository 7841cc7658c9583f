"""Two steps of a small convolutional network under torch.profiler, on one device.

python -m tests.virtual_gpu.programs.profiled_steps TRACE
"""

import sys

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

WARM_UP_STEPS, STEPS = 2, 2


def main() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 32 * 32, 10)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(4, 3, 32, 32).pin_memory(), torch.zeros(4, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.cuda(non_blocking=True)), targets.cuda())
        torch.autograd.backward(loss)
        optimizer.step()

    for _ in range(WARM_UP_STEPS):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(sys.argv[1])


if __name__ == "__main__":
    main()
