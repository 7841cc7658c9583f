"""A training script that captures a whole step, its optimizer's too, into a CUDA graph and replays
it.

python captured_step.py STEPS [watched]
"""

import sys
from collections.abc import Iterable

import torch
from torch import nn

from dpscope.profiling.attached.watch import watch_steps

BATCH, WIDTH, CLASSES = 4, 64, 10


def main() -> None:
    steps, watched = int(sys.argv[1]), sys.argv[2:] == ["watched"]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(BATCH, WIDTH).cuda(), torch.zeros(BATCH, dtype=torch.long).cuda()

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    batches: Iterable[torch.Tensor] = [torch.randn(BATCH, WIDTH).pin_memory() for _ in range(steps)]
    for batch in watch_steps(batches) if watched else batches:
        inputs.copy_(batch, non_blocking=True)
        graph.replay()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
