"""Models compiled and wrapped for each strategy, FSDP and `replicate` among them, in place.

torch.compile is applied to a module's `forward`, not to the module: hooks, on which FSDP and
`replicate` depend, stay outside the graph; the module stays the same object with the same parameter
names; and a `Sequential`, whose call torch.compile skips inside DDP (torch 2.15), is compiled too.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dpscope.launch.jobs.process_group import limit_all_groups
from dpscope.launch.workload.host_data_parallel import HostDataParallel
from dpscope.profiling.instruments.trace_recorder import named_range
from dpscope.profiling.records.matrix import CommHook
from dpscope.profiling.records.range_names import GATHER, PARALLEL_APPLY, REPLICATE, SCATTER
from dpscope.profiling.records.run import Cell, CellOptions, Compilation, ShardedUnit
from dpscope.profiling.records.strategies import (
    POWERSGD_LEAST_COMPRESSION,
    POWERSGD_RANK,
    ddp_arguments,
    shard_groups,
    traits_of,
)
from dpscope.profiling.records.typed_text import MIB
from dpscope.profiling.store.errors import DpscopeError

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_REDUCED_IN: dict[CommHook, torch.dtype | None] = {
    "none": None,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def block_names(model: nn.Module, name: str = "") -> list[str]:
    """The modules that are wrapped separately: those with parameters in the model's outermost
    containers of modules.

    These are a ResNet's blocks, a transformer's layers, the layers of a Sequential.
    """
    names: list[str] = []
    for child_name, child in model.named_children():
        inner = f"{name}.{child_name}" if name else child_name
        if isinstance(model, _CONTAINERS) and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            names += [inner] if any(True for _ in child.parameters()) else []
        else:
            names += block_names(child, inner)
    return names


def sharded_units(model: nn.Module, strategy: str) -> tuple[ShardedUnit, ...]:
    """The units that FSDP gathers in a model that is not wrapped yet: its blocks, then the
    parameters that remain.

    The latter stay gathered between forward and backward, `fully_shard`'s default, because they are
    needed first again.
    """
    seen: set[int] = set()
    units = []
    for name in (*block_names(model), ""):
        weights = [
            parameter
            for parameter in model.get_submodule(name).parameters()
            if id(parameter) not in seen
        ]
        seen.update(id(weight) for weight in weights)
        if weights:
            shapes = (tuple(weight.shape) for weight in weights)
            trained = (weight.requires_grad for weight in weights)
            element_bytes = (weight.element_size() for weight in weights)
            resharded = bool(name) and traits_of(strategy).reshards
            units.append(
                ShardedUnit(name, tuple(shapes), tuple(trained), tuple(element_bytes), resharded)
            )
    return tuple(units)


def shard_model(model: nn.Module, cell: Cell, device: torch.device) -> None:
    """Shard a model, already on `device`, over the devices of a cell; needs an initialised process
    group.
    """
    # no other strategy waits for these imports
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    groups, shards = shard_groups(cell.strategy, cell.devices, cell.nodes)
    sizes, names = (
        ((groups, shards), ("replicate", "shard")) if groups > 1 else ((shards,), ("shard",))
    )
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    limit_all_groups()
    policy = MixedPrecisionPolicy(reduce_dtype=_REDUCED_IN[cell.options.comm_hook])
    reshard = None if cell.traits.reshards else False
    for name in (*block_names(model), ""):
        fully_shard(
            model.get_submodule(name), mesh=mesh, reshard_after_forward=reshard, mp_policy=policy
        )


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
    """Bytes of parameters, buffers and optimizer state that this process holds between steps; its
    shards of sharded ones.
    """
    states = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    tensors: dict[int, Any] = {
        id(parameter): parameter for parameter in (*model.parameters(), *model.buffers(), *states)
    }
    local = (
        tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors.values()
    )
    return sum(weight.numel() * weight.element_size() for weight in local)


def compile_model(model: nn.Module, cell: Cell) -> None:
    """Compile a model at its first run, if the cell's options say so; called before the model is
    wrapped.

    Under DDP and `replicate` torch splits the graph at their buckets (DDPOptimizer,
    torch/_dynamo/backends/distributed.py), so that a bucket is reduced during the backward pass of
    the next part; not under torch 2.8's `replicate`. Under FSDP each block and the rest of the
    model are compiled separately: hooks gather each unit between the graphs.
    """
    mode = cell.options.compile
    if mode == "off":
        return
    how: dict[str, Any] = {"backend": mode} if mode == "aot_eager" else {"mode": mode}
    for name in (*(block_names(model) if cell.traits.sharded else ()), ""):
        module = model.get_submodule(name)
        module.forward = torch.compile(_with_unique_code(module.forward), **how)


def _with_unique_code(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A function with a unique code object that calls a module's `forward`.

    torch.compile caches by code object. Modules of one class share theirs: those after the eighth,
    and those after one that could not be captured, would run without being compiled.
    """

    def call(*inputs: Any, **named: Any) -> Any:
        return forward(*inputs, **named)

    return FunctionType(
        call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__
    )


def compiled_so_far() -> Compilation:
    """What torch has compiled in this process: seconds, captured graphs, compiled parts, graph
    breaks.
    """
    from torch._dynamo.utils import calculate_time_spent, counters

    return Compilation(
        seconds=float(calculate_time_spent().get("total_wall_time", 0.0)),
        graphs=int(counters["stats"]["unique_graphs"]),
        parts=int(counters["aot_autograd"]["total"]),
        breaks=sum(counters["graph_break"].values()),
    )


# `nn.DataParallel` is generic to type checkers and not at run time.
_DataParallel: Any = nn.DataParallel


def _named(phase: Callable[..., Any], name: str) -> Callable[..., Any]:
    def run(self: Any, *arguments: Any) -> Any:
        with named_range(name):
            return phase(self, *arguments)

    return run


class NamedDataParallel(_DataParallel):  # type: ignore[misc]
    """`nn.DataParallel` with its four phases named in the trace."""

    scatter = _named(_DataParallel.scatter, SCATTER)
    replicate = _named(_DataParallel.replicate, REPLICATE)
    parallel_apply = _named(_DataParallel.parallel_apply, PARALLEL_APPLY)
    gather = _named(_DataParallel.gather, GATHER)


def reduce_in_bf16(state: Any, bucket: distributed.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """torch's hook under another name: under its own, DDP refuses it without NCCL, although gloo
    reduces bf16 too.
    """
    reduced: Future[Tensor] = bf16_compress_hook(state, bucket)
    return reduced


_HOOKS: dict[CommHook, Callable[[Any, Any], Future[Tensor]]] = {
    "fp16": fp16_compress_hook,
    "bf16": reduce_in_bf16,
    "powersgd": powerSGD_hook,
}
_PLAIN_POWERSGD_STEPS = 3  # DDP rebuilds its buckets in the first; all are over before warm-up is


def wrap_for(model: nn.Module, cell: Cell, device: torch.device) -> nn.Module:
    """Compile and wrap a model, already on `device`, this process's first one, for a cell; FSDP and
    `replicate` work in place.

    Strategies with a process for each device need an initialised process group. Raises DpscopeError
    for DataParallel on one device, or `dp` on the CPU, where it would be a silent pass-through.
    """
    compile_model(model, cell)
    # gradients are reduced in buckets, as by DDP; buffers are not synchronised
    if cell.strategy == "replicate":
        from torch.distributed._composable.replicate import replicate

        replicate(model, device_id=device)
        return model
    if cell.traits.sharded:
        shard_model(model, cell, device)
        return model
    if cell.strategy == "single":
        return model
    if cell.strategy == "ddp":
        return _distributed(model, device, cell.options)
    if cell.devices < 2:
        raise DpscopeError(
            f"strategy {cell.strategy} with {cell.devices} device: nn.DataParallel does not replicate on one device, "
            "so this would be a single-device run; use 2 devices or more"
        )
    if cell.strategy == "dp-host":
        return HostDataParallel(model, cell.devices)
    if device.type != "cuda":
        raise DpscopeError(
            "strategy dp on the CPU: nn.DataParallel is a silent pass-through without an accelerator; "
            "use its stand-in dp-host, or --device cuda"
        )
    assert cell.strategy == "dp"
    wrapped: nn.Module = NamedDataParallel(model, device_ids=list(range(cell.devices)))
    return wrapped


def _distributed(
    model: nn.Module, device: torch.device, options: CellOptions
) -> DistributedDataParallel:
    bucket_mb = options.bucket_mb
    if options.overlap == "off":
        # DDP closes a bucket when it reaches its capacity: one above the size of all gradients.
        trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
        bucket_mb = (
            math.ceil(sum(weight.numel() * weight.element_size() for weight in trained) / MIB) + 1
        )
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=bucket_mb,
        **_buffer_arguments(options),
        **_further_arguments(options, device),
    )
    state = None
    if options.comm_hook == "powersgd":
        # torch's defaults: rank 1, error feedback, no compression of what shrinks by less than
        # half.
        state = PowerSGDState(
            None,
            matrix_approximation_rank=POWERSGD_RANK,
            start_powerSGD_iter=_PLAIN_POWERSGD_STEPS,
            min_compression_rate=POWERSGD_LEAST_COMPRESSION,
        )
    if options.comm_hook != "none":
        wrapped.register_comm_hook(state, _HOOKS[options.comm_hook])
    return wrapped


def _buffer_arguments(options: CellOptions) -> dict[str, Any]:
    """broadcast_buffers only where it is off: torch 2.15 warns about it, and 2.8 has no other name
    for it.
    """
    return {} if options.broadcast_buffers == "on" else {"broadcast_buffers": False}


def _further_arguments(options: CellOptions, device: torch.device) -> dict[str, Any]:
    """DDP's arguments that dpscope passes on; `mixed_precision` sets one type for parameters,
    gradients and buffers.

    Raises DpscopeError for an argument that the installed torch or the device does not support.
    """
    arguments: dict[str, Any] = ddp_arguments(options.ddp_args)
    parameters = inspect.signature(DistributedDataParallel.__init__).parameters
    if unknown := [name for name in arguments if name not in parameters]:
        raise DpscopeError(
            f"--ddp-args {unknown[0]}: DistributedDataParallel of torch {torch.__version__} has no such argument; "
            "omit it, or use a torch that has it"
        )
    if "mixed_precision" in arguments:
        if device.type != "cuda":
            raise DpscopeError(
                "--ddp-args mixed_precision: DDP supports it on GPUs only; use --amp bf16 on the CPU"
            )
        from torch.nn.parallel.distributed import _MixedPrecision

        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[arguments["mixed_precision"]]
        arguments["mixed_precision"] = _MixedPrecision(
            param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype
        )
    return arguments
