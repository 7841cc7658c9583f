"""A model for `dpscope run --model`."""

import torch
from torch import Tensor, nn

from tests.user_models.tiny_models import Workload, layered


class Graphed(nn.Module):
    """Replays its forward and backward passes as CUDA graphs; under autocast, whose cache forbids
    that, it runs eagerly.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._captured = False

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.is_cuda and not self._captured and not torch.is_autocast_enabled("cuda"):
            self._captured = True
            torch.cuda.make_graphed_callables(self.inner, (inputs,))  # in place
        outputs: Tensor = self.inner(inputs)
        return outputs


def graphed() -> Workload:
    inner, shape, classes = layered()
    return Graphed(inner), shape, classes
