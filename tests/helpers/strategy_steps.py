"""Steps of a small model under a strategy, as the scripts of tests/user_models run them: traced,
their weights compared.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpscope.launch.jobs.process_group import synchronise
from dpscope.profiling.instruments.step_timer import BatchArrived, nothing
from dpscope.profiling.instruments.trace_recorder import StepTrace, named_range
from dpscope.profiling.records.range_names import BACKWARD, FORWARD, OPTIMIZER

HOST = torch.device("cpu")


class Steps:
    """A step each time it is called, always on the same inputs; `after` is called behind its
    backward pass.
    """

    def __init__(
        self, wrapped: nn.Module, inputs: Tensor, after: Callable[[nn.Module], None] | None = None
    ) -> None:
        self.wrapped, self.inputs, self.after = wrapped, inputs, after
        self.optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)

    def __call__(self, batch_arrived: BatchArrived = nothing) -> int:
        batch_arrived()
        with named_range(FORWARD):
            loss = self.wrapped(self.inputs).square().mean()
        with named_range(BACKWARD):
            loss.backward()
            if self.after is not None:
                self.after(self.wrapped)
        with named_range(OPTIMIZER):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return len(self.inputs)


def weights(module: nn.Module) -> list[Tensor]:
    """Copies of a model's tensors, sharded ones gathered."""
    values: list[Any] = list(module.state_dict().values())
    return [
        (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        for value in values
    ]


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest difference between two models' tensors."""
    return max(
        float((first - second).abs().max()) for first, second in zip(one, other, strict=True)
    )


def trace_steps(steps: Steps, count: int, folder: Path, rank: int) -> None:
    """A rank's trace of so many more steps, in a folder that is made."""
    folder.mkdir(exist_ok=True)
    trace = folder / f"0_{rank}.pt.trace.json.gz"
    StepTrace(
        count, trace, HOST, all_threads=False, synchronise=lambda: synchronise((HOST,))
    ).record(steps)
