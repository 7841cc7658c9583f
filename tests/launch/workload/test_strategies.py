"""Wrapped models and their steps: FSDP's units, memory, gradient accumulators; dp-host's
replicas.
"""

from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch._utils import _take_tensors
from torch.autograd.graph import get_gradient_edge

from dpscope.analysis.traces.steps.data_parallel import DP_CHUNK_BYTES, reduce_chunks
from dpscope.launch.workload.host_data_parallel import HostDataParallel
from dpscope.launch.workload.input_pipeline import SyntheticBatches
from dpscope.launch.workload.models import AutocastModel, cifar_resnet18
from dpscope.launch.workload.strategies import (
    block_names,
    held_bytes,
    is_composed,
    sharded_units,
    wrap_for,
)
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.instruments.ddp_counters import parameter_sizes
from dpscope.profiling.records.config import Optimizer
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError


def test_blocks_are_what_the_outermost_containers_hold() -> None:
    blocks = [f"layer{layer}.{block}" for layer in (1, 2, 3, 4) for block in (0, 1)]
    assert block_names(cifar_resnet18()) == blocks
    assert block_names(AutocastModel(cifar_resnet18(), "cpu", torch.bfloat16)) == [
        f"model.{name}" for name in blocks
    ]
    model = nn.Module()
    model.stages = nn.ModuleList(
        [nn.ModuleList([nn.Linear(2, 2), nn.ReLU()]), nn.Sequential(nn.Linear(2, 2))]
    )
    model.heads = nn.ModuleDict({"one": nn.Linear(2, 1)})
    assert block_names(model) == ["stages.0.0", "stages.1", "heads.one"]


def test_units_hold_every_parameter_once() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model.scale = nn.Parameter(torch.ones(5, dtype=torch.bfloat16), requires_grad=False)
    first, second, root = sharded_units(model, "fsdp")
    assert (first.name, first.shapes, first.element_bytes, first.resharded) == (
        "0",
        ((2, 3), (2,)),
        (4, 4),
        True,
    )
    assert (second.name, second.shapes) == ("1", ((2,), (2,)))
    assert (root.name, root.shapes, root.trained, root.element_bytes) == (
        "",
        ((5,),),
        (False,),
        (2,),
    )
    assert not root.resharded
    assert not any(unit.resharded for unit in sharded_units(model, "fsdp-no-reshard"))
    shared = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    shared[1].weight = shared[0].weight
    assert [unit.name for unit in sharded_units(shared, "fsdp")] == ["0"]


def test_bytes_that_a_process_holds_between_steps() -> None:
    """Linear(4, 2): 10 parameters of 4 B, the same for momentum after a step, and a buffer of 3 x 8
    B.
    """
    model = nn.Linear(4, 2)
    model.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert held_bytes(model, optimizer) == 40 + 24
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert held_bytes(model, optimizer) == 40 + 40 + 24
    assert not is_composed(model)


def test_data_parallel_reduces_gradients_in_the_chunks_that_torch_makes() -> None:
    """Two layers of 1,500 x 1,500 x 4 B are 9 MB each, of which a chunk of 10 MiB holds one."""
    layers = (nn.Linear(8, 1500), nn.Linear(1500, 1500), nn.Linear(1500, 1500), nn.Linear(1500, 2))
    model = nn.Sequential(*layers)
    # of comm.reduce_add_coalesced
    parts = _take_tensors([*model.parameters()], DP_CHUNK_BYTES)  # type: ignore[no-untyped-call]
    sizes = [sum(tensor.nbytes for tensor in part) for part in parts]
    assert reduce_chunks(parameter_sizes(model).parameter_tensors) == sizes
    assert len(sizes) == 2


CPU = torch.device("cpu")


def accumulator_metadata(parameter: Tensor) -> dict[str, str]:
    """Metadata of a parameter's gradient accumulator, which autograd drops when no graph holds
    it.
    """
    # its stub calls the property a method
    return cast(dict[str, str], get_gradient_edge(parameter).node.metadata)


def test_gradient_accumulators_outlive_a_step_and_the_last_loss_holds_no_graph() -> None:
    model = nn.Linear(2, 2)
    batches = SyntheticBatches((torch.eye(2), torch.tensor([0, 1])), [0, 1], 1)
    step = TrainStep(model, batches, Optimizer(), "off", CPU)
    step()
    accumulator_metadata(model.weight)["made"] = "in the first step"
    step()
    assert accumulator_metadata(model.weight) == {"made": "in the first step"}
    assert step.last_loss is not None
    assert not step.last_loss.requires_grad


def test_running_statistics_are_those_of_replica_zero() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3)
    wrapped = HostDataParallel(norm, 2)
    images = torch.randn(4, 3, 5, 5)
    wrapped(images)
    assert norm.running_mean is not None
    assert torch.allclose(norm.running_mean, 0.1 * images[:2].mean(dim=(0, 2, 3)))
    assert int(norm.num_batches_tracked or 0) == 1
    wrapped.eval()
    before = norm.running_mean.clone()
    wrapped(images)
    assert torch.equal(norm.running_mean, before)


def test_a_batch_is_split_as_by_dataparallel_and_in_the_callers_precision() -> None:
    wrapped = HostDataParallel(nn.Linear(3, 2), 4)
    assert [wrapped(torch.ones(samples, 3)).shape for samples in (1, 5)] == [(1, 2), (5, 2)]
    assert len(list(wrapped.parameters())) == 2  # those of replicas do not count
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert wrapped(torch.ones(2, 3)).dtype == torch.bfloat16


def test_an_error_in_a_replica_reaches_the_caller() -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            raise ArithmeticError("broken on purpose")

    with pytest.raises(ArithmeticError, match="broken on purpose"):
        HostDataParallel(Broken(), 2)(torch.ones(2, 3))


@pytest.mark.parametrize(("devices", "expected"), [(1, "one device"), (2, "silent pass-through")])
def test_a_pass_through_is_refused(devices: int, expected: str) -> None:
    with pytest.raises(DpscopeError, match=expected):
        wrap_for(nn.Linear(1, 1), Cell("dp", devices, 1), CPU)
