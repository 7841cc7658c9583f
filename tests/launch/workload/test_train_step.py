"""A step does what a plain loop does, and leaves what a plain loop leaves."""

import torch
from torch import nn
from torch.autograd.graph import Node, get_gradient_edge

from dpscope.launch.workload.input_pipeline import SyntheticBatches
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.records.config import Optimizer

CPU = torch.device("cpu")


def accumulator(parameter: nn.Parameter) -> Node:
    """What adds up a parameter's gradient: made anew where no graph holds it."""
    return get_gradient_edge(parameter).node


def step_of(model: nn.Module) -> TrainStep:
    batch = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    batches = SyntheticBatches(batch, [0, 1], 1)
    return TrainStep(model, batches, Optimizer(), "off", CPU)


def test_gradient_accumulators_outlive_a_step() -> None:
    model = nn.Linear(2, 2)
    step = step_of(model)
    step()
    accumulator(model.weight).metadata["made"] = "in the first step"
    step()
    assert accumulator(model.weight).metadata == {"made": "in the first step"}


def test_the_loss_that_is_handed_out_holds_no_graph() -> None:
    step = step_of(nn.Linear(2, 2))
    step()
    assert step.last_loss is not None
    assert not step.last_loss.requires_grad
