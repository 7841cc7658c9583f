"""Trains a few steps in several ways on gloo and traces each; run by `every_strategy`.

Every step also averages its loss over the ranks, as training loops do: an all-reduce that is none
of gradients.
"""

import inspect
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_by_layer
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.profiler import ProfilerActivity, profile, schedule

Step = Callable[[], None]


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


def data_parallel(_: DeviceMesh) -> nn.Module:
    return nn.parallel.DistributedDataParallel(nn.Sequential(block(), block()))


def tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    blocks = [
        parallelize_module(block(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        for _ in range(2)
    ]
    return nn.Sequential(nn.Linear(64, 64), *blocks)


def fully_sharded(mesh: DeviceMesh) -> nn.Sequential:
    model = nn.Sequential(block(), block())
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    return model


def replicated(
    make: Callable[..., object], sizes: tuple[int, ...]
) -> Callable[[DeviceMesh], nn.Module]:
    """Composable replicate() of the whole of it, or of each layer; there is no wrapper whose
    forward has a range.
    """

    def model(mesh: DeviceMesh) -> nn.Module:
        layers = [nn.Linear(size, out) for size, out in pairwise(sizes)]
        whole = nn.Sequential(*layers)
        if make is not replicate_by_layer:
            make(whole, device_mesh=mesh)
            return whole
        options: dict[str, Any] = {}
        if "mesh" in inspect.signature(make).parameters:  # torch 2.9's makes its own
            options["mesh"] = mesh
        for module in (*layers, whole):
            make(module, **options)
        return whole

    return model


class ByHand(nn.Module):
    """Averages its gradients itself, when the backward pass has ended: `train` calls `average`."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(block(), block())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.blocks(inputs)
        return found

    def average(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            distributed.all_reduce(parameter.grad)


def hybrid(mesh: DeviceMesh) -> nn.Module:
    return fully_sharded(
        init_device_mesh("cpu", (2, mesh.size() // 2), mesh_dim_names=("replicate", "shard"))
    )


EQUAL, UNEQUAL = (64, 64, 64, 64), (64, 128, 32, 64)
# also traced without sizes
ALSO_PLAIN = ("layers_equal", "data_parallel", "tensor_parallel", "fully_sharded")
WAYS: dict[str, Callable[[DeviceMesh], nn.Module]] = {
    "replicated_unequal": replicated(replicate, UNEQUAL),
    "layers_equal": replicated(replicate_by_layer, EQUAL),
    "averaged_by_hand": lambda _: ByHand(),
    "hybrid": hybrid,
    "data_parallel": data_parallel,
    "tensor_parallel": tensor_parallel,
    "fully_sharded": fully_sharded,
}


def training(model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        loss = model(torch.ones(32, 64)).square().mean()
        loss.backward()
        if isinstance(model, ByHand):
            model.average()
        optimizer.step()
        optimizer.zero_grad()
        distributed.all_reduce(loss.detach().clone())

    return step


def traced(step: Step, folder: Path, first: int, active: int, record_shapes: bool = False) -> None:
    """Run `first` steps and trace so many more."""
    folder.mkdir(parents=True, exist_ok=True)
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=record_shapes,
        schedule=schedule(wait=first - 1, warmup=1, active=active),
    ) as profiler:
        for _ in range(first + active):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"0_{distributed.get_rank()}.pt.trace.json"))


def trace_ways(folder: Path) -> None:
    """Traces of every way in `<folder>/<way>`, with sizes recorded (`shapes`) and, of some, without
    (`plain`).
    """
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for way, make in WAYS.items():
        for shapes in ("shapes", "plain") if way in ALSO_PLAIN else ("shapes",):
            torch.manual_seed(0)
            traced(training(make(mesh)), folder / way / shapes, 2, 2, shapes == "shapes")
