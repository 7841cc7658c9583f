"""Two steps of a small convolutional network under torch.profiler, on one device.

    python -m tests.virtual_gpu.programs.profiled_steps VARIANT TRACE

Variants: plain; amp, in half precision with a GradScaler; graph, replayed as a captured CUDA graph;
compiled by torch.compile, without the benchmarks by which it decides on padding: they fill 40 MiB
some hundred times, on this host.
"""

import sys
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

WARM_UP_STEPS, STEPS = 3, 2


class Training:
    def __init__(self, variant: str) -> None:
        self.model: Any = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 32 * 32, 10),
        ).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if variant == "compiled":
            options: Any = {"shape_padding": False, "compile_threads": 1}
            self.model = torch.compile(self.model, options=options)
        self.half = variant == "amp"
        self.scaler = torch.amp.GradScaler(enabled=self.half)
        self.inputs, self.targets = (
            torch.randn(4, 3, 32, 32).pin_memory(),
            torch.zeros(4, dtype=torch.long),
        )
        self.on_device = self.inputs.cuda(), self.targets.cuda()

    def step(self) -> None:
        self.on_device = self.inputs.cuda(non_blocking=True), self.targets.cuda()
        self.compute()

    def compute(self) -> None:
        inputs, targets = self.on_device
        self.optimizer.zero_grad()
        with torch.autocast("cuda", enabled=self.half):
            loss = nn.functional.cross_entropy(self.model(inputs), targets)
        torch.autograd.backward(self.scaler.scale(loss))
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def captured(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                self.compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.compute()
        return graph


def main() -> None:
    variant, trace = sys.argv[1:]
    training = Training(variant)
    step = training.captured().replay if variant == "graph" else training.step
    for _ in range(WARM_UP_STEPS):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(trace)


if __name__ == "__main__":
    main()
