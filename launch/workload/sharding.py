"""FSDP (`fully_shard`) and composable `replicate`: which modules are gathered together, how many groups, when gradients wait.

What is wrapped stays the same object: torch changes its class.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dpscope.profiling.records.matrix import CommHook
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import shard_groups, traits_of
from dpscope.profiling.records.wrapped import ShardedUnit

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_REDUCED_IN: dict[CommHook, torch.dtype | None] = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}


def block_names(model: nn.Module, name: str = "") -> list[str]:
    """The modules that are wrapped beside the whole model: whatever has parameters in its outermost lists of modules.

    These are a ResNet's blocks, a transformer's layers, the layers of a Sequential.
    """
    found = []
    for child_name, child in model.named_children():
        inner = f"{name}.{child_name}" if name else child_name
        if isinstance(model, _CONTAINERS) and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            found += [inner] if any(True for _ in child.parameters()) else []
        else:
            found += block_names(child, inner)
    return found


def sharded_units(model: nn.Module, strategy: str) -> tuple[ShardedUnit, ...]:
    """What FSDP gathers together in a model that is not wrapped yet: its blocks, then what is left to the whole model.

    The whole model's own parameters stay gathered between forward and backward: they are needed first again (as
    `fully_shard` has it by default).
    """
    seen: set[int] = set()
    units = []
    for name in (*block_names(model), ""):
        own = [one for one in model.get_submodule(name).parameters() if id(one) not in seen]
        seen.update(id(one) for one in own)
        if own:
            units.append(
                ShardedUnit(
                    name=name,
                    shapes=tuple(tuple(one.shape) for one in own),
                    trained=tuple(one.requires_grad for one in own),
                    element_bytes=tuple(one.element_size() for one in own),
                    resharded=bool(name) and traits_of(strategy).reshards,
                )
            )
    return tuple(units)


def shard_model(model: nn.Module, cell: Cell, device: torch.device) -> None:
    """Shard a model, already on `device`, over the devices of a cell; needs an initialised process group."""
    from torch.distributed.device_mesh import init_device_mesh  # no other strategy waits for these imports
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    groups, shards = shard_groups(cell.strategy, cell.devices, cell.nodes)
    sizes, names = ((groups, shards), ("replicate", "shard")) if groups > 1 else ((shards,), ("shard",))
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    policy = MixedPrecisionPolicy(reduce_dtype=_REDUCED_IN[cell.options.comm_hook])
    reshard = None if cell.traits.reshards else False
    for name in block_names(model):
        fully_shard(model.get_submodule(name), mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)


def replicated(model: nn.Module, device: torch.device) -> None:
    """Have a model's gradients all-reduced in buckets as DDP's are, without a module around it; buffers stay each rank's."""
    from torch.distributed._composable.replicate import replicate

    replicate(model, device_id=device)


def is_composed(model: nn.Module) -> bool:
    """Whether a model is wrapped by either of them."""
    return hasattr(model, "set_requires_gradient_sync")


def is_sharded(model: nn.Module) -> bool:
    """Whether a model is wrapped by FSDP."""
    return hasattr(model, "set_reshard_after_backward")


@contextmanager
def unreduced(model: Any) -> Iterator[None]:
    """While it lasts, backward passes add gradients up and reduce nothing."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def reshard_all(model: nn.Module) -> None:
    """Free what forward passes without a backward one left gathered."""
    for module in model.modules():
        if is_sharded(module):
            module.reshard()  # type: ignore[operator]


def held_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of parameters, buffers and optimizer state that this process holds between steps, of sharded ones its part."""
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    tensors = {id(one): one for one in (*model.parameters(), *model.buffers(), *states)}
    return sum(_local(one).numel() * one.element_size() for one in tensors.values())


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
