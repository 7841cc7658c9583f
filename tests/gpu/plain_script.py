"""A training script without dpscope: `python -m tests.gpu.plain_script DEVICE BATCH STEPS` prints
its step time and peak memory.

Only the model is dpscope's, so that both train the same one.
"""

import json
import sys
import time

import torch
from torch import nn

from dpscope.launch.workload.models import cifar_resnet18

WARM_UP_S = 2.0


def main() -> None:
    """Train, then print a JSON object."""
    device, batch_size, steps = torch.device(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    model = cifar_resnet18().to(device).train()
    images = torch.randn(batch_size, 3, 32, 32, device=device)
    labels = torch.randint(10, (batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

    def train(count: int) -> None:
        for _ in range(count):
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    train(2)
    warm_s = time.perf_counter() + (WARM_UP_S if device.type == "cuda" else 0.0)
    while time.perf_counter() < warm_s:
        train(5)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began_s = time.perf_counter()
    train(steps)
    step_us = (time.perf_counter() - began_s) / steps * 1e6
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    sys.stdout.write(json.dumps({"step_us": step_us, "peak_bytes": peak}) + "\n")


if __name__ == "__main__":
    main()
