"""Which modules FSDP gathers together, and what a process holds."""

import torch
from torch import nn

from dpscope.launch.workload.models import AutocastModel, cifar_resnet18
from dpscope.launch.workload.sharding import block_names, held_bytes, is_composed, sharded_units


def test_a_resnets_blocks_are_gathered_one_by_one() -> None:
    blocks = [f"layer{layer}.{block}" for layer in (1, 2, 3, 4) for block in (0, 1)]
    assert block_names(cifar_resnet18()) == blocks
    assert block_names(AutocastModel(cifar_resnet18(), "cpu", torch.bfloat16)) == [f"model.{name}" for name in blocks]


def test_lists_within_lists_and_layers_without_parameters() -> None:
    model = nn.Module()
    model.stages = nn.ModuleList([nn.ModuleList([nn.Linear(2, 2), nn.ReLU()]), nn.Sequential(nn.Linear(2, 2))])
    model.heads = nn.ModuleDict({"one": nn.Linear(2, 1)})
    assert block_names(model) == ["stages.0.0", "stages.1", "heads.one"]


def test_units_hold_every_parameter_once() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model.scale = nn.Parameter(torch.ones(5, dtype=torch.bfloat16), requires_grad=False)
    first, second, root = sharded_units(model, "fsdp")
    assert (first.name, first.shapes, first.element_bytes, first.resharded) == ("0", ((2, 3), (2,)), (4, 4), True)
    assert (second.name, second.shapes) == ("1", ((2,), (2,)))
    assert (root.name, root.shapes, root.trained, root.element_bytes, root.resharded) == (
        "",
        ((5,),),
        (False,),
        (2,),
        False,
    )
    assert not any(unit.resharded for unit in sharded_units(model, "fsdp-no-reshard"))


def test_shared_parameters_count_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    assert [unit.name for unit in sharded_units(model, "fsdp")] == ["0"]


def test_what_a_process_holds_between_steps() -> None:
    """Linear(4, 2): 10 parameters of 4 B; momentum as much again after a step; a buffer of 3 x 8 B."""
    model = nn.Linear(4, 2)
    model.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert held_bytes(model, optimizer) == 40 + 24
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert held_bytes(model, optimizer) == 40 + 40 + 24
    assert not is_composed(model)
