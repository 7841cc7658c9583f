"""FSDP (`fully_shard`) and composable `replicate`: units, groups of devices, reduction. torch wraps the model in place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dpscope.profiling.records.matrix import CommHook
from dpscope.profiling.records.run import Cell, ShardedUnit
from dpscope.profiling.records.strategies import shard_groups, traits_of

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_REDUCED_IN: dict[CommHook, torch.dtype | None] = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}


def block_names(model: nn.Module, name: str = "") -> list[str]:
    """The modules that are wrapped separately: those with parameters in the model's outermost containers of modules.

    These are a ResNet's blocks, a transformer's layers, the layers of a Sequential.
    """
    found: list[str] = []
    for child_name, child in model.named_children():
        inner = f"{name}.{child_name}" if name else child_name
        if isinstance(model, _CONTAINERS) and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            found += [inner] if any(True for _ in child.parameters()) else []
        else:
            found += block_names(child, inner)
    return found


def sharded_units(model: nn.Module, strategy: str) -> tuple[ShardedUnit, ...]:
    """The units that FSDP gathers in a model that is not wrapped yet: its blocks, then the parameters that remain.

    The latter stay gathered between forward and backward, `fully_shard`'s default, because they are needed first again.
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
    """All-reduce a model's gradients in buckets, as DDP does, without a wrapping module; buffers are not synchronised."""
    from torch.distributed._composable.replicate import replicate

    replicate(model, device_id=device)


def is_composed(model: nn.Module) -> bool:
    """Whether a model is wrapped by FSDP or `replicate`."""
    return hasattr(model, "set_requires_gradient_sync")


def is_sharded(model: nn.Module) -> bool:
    """Whether a model is wrapped by FSDP."""
    return hasattr(model, "set_reshard_after_backward")


@contextmanager
def unreduced(model: Any) -> Iterator[None]:
    """Accumulate gradients without reducing them."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def reshard_all(model: nn.Module) -> None:
    """Free the parameters that forward passes without a backward pass left gathered."""
    for module in model.modules():
        if is_sharded(module):
            module.reshard()  # type: ignore[operator]


def held_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of parameters, buffers and optimizer state that this process holds between steps; its shards of sharded ones."""
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    tensors: dict[int, Any] = {id(one): one for one in (*model.parameters(), *model.buffers(), *states)}
    local = (one.to_local() if hasattr(one, "to_local") else one for one in tensors.values())
    return sum(one.numel() * one.element_size() for one in local)
