"""A perceptron cut over the processes by torch's tensor parallelism: all of them train on the same inputs."""

import os

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main() -> None:
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    torch.manual_seed(0)
    perceptron = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    model = parallelize_module(perceptron, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    for step in range(40):
        torch.manual_seed(step)  # the same inputs everywhere, as tensor parallelism needs them
        optimizer.zero_grad()
        loss = model(torch.rand(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and int(os.environ["RANK"]) == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
