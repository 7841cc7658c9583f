"""A model whose layers sleep instead of computing, as a step on a GPU looks to its host.

Gradients come at set times, DDP builds real buckets of real bytes, and nothing competes for the
cores: on a few of them a data-parallel step is quiet, and the effect of a link can be measured.
"""

import time
from typing import Any

import torch
from torch import nn


class Pace(torch.autograd.Function):
    """Takes so long forward and so long backward, and gives its weight a gradient of zeros."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, forward_s: float, backward_s: float
    ) -> torch.Tensor:
        ctx.backward_s, ctx.shape = backward_s, weight.shape
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(ctx.backward_s)
        return gradients[0], torch.zeros(()).expand(ctx.shape), None, None


class PacedLayer(nn.Module):
    """1.25 MB of weight, by default."""

    def __init__(self, elements: int, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self.pace = (forward_s, backward_s)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As it came, later."""
        found: torch.Tensor = Pace.apply(x, self.weight, *self.pace)
        return found


def paced() -> nn.Module:
    """25 MB of gradients in 20 layers, 100 ms forward and 200 ms backward."""
    layers = [PacedLayer(312_500, 0.1 / 20, 0.2 / 20) for _ in range(20)]
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *layers, nn.Linear(3, 10))
