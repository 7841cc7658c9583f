"""Run under torchrun on two processes: one model whose communication is hidden or not, each time
for one planted cause.

Its layers sleep instead of computing (see `paced_models`). Each rank saves a trace for each cause
in <folder>/<cause>.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.helpers.strategy_steps import Steps, trace_steps
from tests.user_models.paced_models import PacedLayer
from tests.user_models.tiny_models import LateOnLastRank

LAYERS, ELEMENTS, LAYER_BYTES = 6, 312_500, 1_250_000
LARGE_ELEMENTS = 10 * ELEMENTS  # the first layer's, whose gradient comes last
BUFFER_ELEMENTS = 12_000_000
SMALL = 20_000  # elements, of weights whose all-reduces take longer than their gradients
WARM, TRACED = 2, 4

Reduce = Callable[[Tensor], None]


class Buffered(nn.Module):
    """Holds a buffer, which DDP broadcasts before each forward pass."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(elements))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Instant(torch.autograd.Function):
    """Gives all weights gradients of zeros at once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.shapes = [one.shape for one in weights]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], *(torch.zeros(()).expand(shape) for shape in ctx.shapes)


class Transferring(nn.Module):
    """Weights whose gradients take longer to reduce than to compute."""

    def __init__(self, weights: int, elements: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(elements) for _ in range(weights))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = Instant.apply(x, *self.weights)
        return found


def paced(
    elements: int = ELEMENTS, first: int = ELEMENTS, backward_s: float = 0.012
) -> list[nn.Module]:
    return [
        PacedLayer(first if layer == 0 else elements, backward_s / 4, backward_s)
        for layer in range(LAYERS)
    ]


def in_buckets(layers: list[nn.Module], cap_mb: float = 1) -> nn.Module:
    return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=cap_mb)


def sharded() -> nn.Module:
    layers = paced()
    for layer in layers:
        fully_shard(layer)
    whole = nn.Sequential(*layers)
    fully_shard(whole)
    return whole


def by_hand(model: nn.Module) -> None:
    """As before DDP was written, and still is: every gradient once all of them are there."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        distributed.all_reduce(parameter.grad)


def mean_loss(model: nn.Module) -> None:
    """A metric that the script shows."""
    distributed.all_reduce(torch.ones(1))


Made = Callable[[], nn.Module]
CASES: dict[str, tuple[Made, Callable[[nn.Module], None] | None]] = {
    "even": (lambda: in_buckets(paced()), None),
    # Half as long: its transfers are more than a twentieth of a step where memory is fast, too.
    "one_bucket": (lambda: in_buckets(paced(backward_s=0.006), 1000), None),
    "one_bucket_and_a_metric": (lambda: in_buckets(paced(backward_s=0.006), 1000), mean_loss),
    "last_bucket": (lambda: in_buckets(paced(first=LARGE_ELEMENTS)), None),
    "late_rank": (lambda: in_buckets([*paced(), LateOnLastRank()]), None),
    "buffers": (lambda: in_buckets([Buffered(BUFFER_ELEMENTS), *paced()]), None),
    "little_computing": (
        lambda: in_buckets([Transferring(2 * LAYERS, SMALL)], 4 * SMALL / 2**20),
        None,
    ),
    "by_hand": (lambda: nn.Sequential(*paced()), by_hand),
    "sharded": (sharded, None),
}


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
    for name, (made, after) in CASES.items():
        steps = Steps(made(), torch.ones(2, 4, requires_grad=True), after)
        for _ in range(WARM):
            steps()
        trace_steps(steps, TRACED, folder / name, rank)
    if rank == 0:
        (folder / "found.json").write_text("{}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
