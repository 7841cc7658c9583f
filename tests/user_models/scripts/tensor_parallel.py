"""A perceptron cut over the processes by torch's tensor parallelism: all of them train on the same inputs."""

import argparse
import os

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Perceptron(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, width), nn.Linear(width, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(inputs)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    torch.manual_seed(0)
    model = parallelize_module(Perceptron(args.width), mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    for step in range(args.steps):
        torch.manual_seed(step)  # the same inputs everywhere, as tensor parallelism needs them
        optimizer.zero_grad()
        loss = model(torch.rand(args.batch_size, 16)).square().mean()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and int(os.environ["RANK"]) == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
