"""A step does what a plain loop does, and leaves what a plain loop leaves."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from dpscope.launch.workload.input_pipeline import SyntheticBatches
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.config import Optimizer

CPU = torch.device("cpu")


def notes_on_accumulator(parameter: Tensor) -> dict[str, str]:
    """Notes on what adds up a parameter's gradient: gone with it, where no graph holds it."""
    return cast(dict[str, str], get_gradient_edge(parameter).node.metadata)  # its stub calls the property a method


def step_of(model: nn.Module) -> TrainStep:
    batch = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    batches = SyntheticBatches(batch, [0, 1], 1)
    return TrainStep(model, batches, Optimizer(), "off", CPU)


def test_gradient_accumulators_outlive_a_step() -> None:
    model = nn.Linear(2, 2)
    step = step_of(model)
    step()
    notes_on_accumulator(model.weight)["made"] = "in the first step"
    step()
    assert notes_on_accumulator(model.weight) == {"made": "in the first step"}


def test_the_loss_that_is_handed_out_holds_no_graph() -> None:
    step = step_of(nn.Linear(2, 2))
    step()
    assert step.last_loss is not None
    assert not step.last_loss.requires_grad
