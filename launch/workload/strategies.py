"""The strategies dpscope compares: one device, DataParallel, DistributedDataParallel. Wrapping, and nothing else."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dpscope.launch.workload.compiling import compile_model
from dpscope.launch.workload.host_data_parallel import HostDataParallel
from dpscope.launch.workload.sharding import replicated, shard_model
from dpscope.profiling.instruments.named_ranges import named_range
from dpscope.profiling.records.ddp_arguments import POWERSGD_LEAST_COMPRESSION, POWERSGD_RANK, ddp_arguments
from dpscope.profiling.records.matrix import CommHook
from dpscope.profiling.records.range_names import GATHER, PARALLEL_APPLY, REPLICATE, SCATTER
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.strategies import CellStrategy
from dpscope.profiling.store.errors import DpscopeError

MIB = 1 << 20

# `nn.DataParallel` is generic to type checkers and not at run time.
_DataParallel: Any = nn.DataParallel


class NamedDataParallel(_DataParallel):  # type: ignore[misc]
    """`nn.DataParallel`, its four phases named in the trace and nothing else changed."""

    def scatter(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Sequence[int | torch.device]
    ) -> Any:
        with named_range(SCATTER):
            return super().scatter(inputs, kwargs, device_ids)

    def replicate(self, module: nn.Module, device_ids: Sequence[int | torch.device]) -> Any:
        with named_range(REPLICATE):
            return super().replicate(module, device_ids)

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any) -> Any:
        with named_range(PARALLEL_APPLY):
            return super().parallel_apply(replicas, inputs, kwargs)

    def gather(self, outputs: Any, output_device: int | torch.device) -> Any:
        with named_range(GATHER):
            return super().gather(outputs, output_device)


def reduce_in_bf16(state: Any, bucket: distributed.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """torch's hook under another name: by its own, DDP refuses it without NCCL, although gloo reduces bf16 as well."""
    reduced: Future[Tensor] = bf16_compress_hook(state, bucket)
    return reduced


_HOOKS: dict[CommHook, Callable[[Any, Any], Future[Tensor]]] = {
    "fp16": fp16_compress_hook,
    "bf16": reduce_in_bf16,
    "powersgd": powerSGD_hook,
}
_PLAIN_POWERSGD_STEPS = 3  # DDP rebuilds its buckets in the first; all are over before warm-up is


def wrap_for(model: nn.Module, cell: Cell, device: torch.device) -> nn.Module:
    """Wrap a model, already on `device`, this process's first one, for a cell; as `wrap`, and for FSDP and `replicate` as well.

    Those wrap the model in place. It is compiled before, where the cell's options say so.
    """
    compile_model(model, cell)
    if cell.strategy == "replicate":
        replicated(model, device)
    elif cell.traits.sharded:
        shard_model(model, cell, device)
    else:
        return wrap(model, cell.strategy, cell.devices, device, cell.options)
    return model


def wrap(
    model: nn.Module,
    strategy: CellStrategy,
    devices: int,
    device: torch.device,
    options: CellOptions = CellOptions(),  # noqa: B008 (frozen)
) -> nn.Module:
    """Wrap a model, already on `device`, for single, DataParallel or DDP on `devices` devices.

    `device` is this process's first device. DDP needs an initialised process group, and alone heeds `options`.
    Raises DpscopeError for a DataParallel that would silently pass through: on one device, or `dp` on the CPU (its
    stand-in is `dp-host`).
    """
    if strategy == "single":
        return model
    if strategy == "ddp":
        return _distributed(model, device, options)
    if devices < 2:
        raise DpscopeError(
            f"strategy {strategy} with {devices} device: nn.DataParallel does not replicate on one device, "
            "so this would be a single-device run; ask for 2 devices or more"
        )
    if strategy == "dp-host":
        return HostDataParallel(model, devices)
    if device.type != "cuda":
        raise DpscopeError(
            "strategy dp on the CPU: nn.DataParallel passes through silently without an accelerator; "
            "use its stand-in dp-host, or --device cuda"
        )
    wrapped: nn.Module = NamedDataParallel(model, device_ids=list(range(devices)))
    return wrapped


def _distributed(model: nn.Module, device: torch.device, options: CellOptions) -> DistributedDataParallel:
    # Given only where it is asked for: torch 2.15 warns of the argument, for which torch 2.8 has no other name.
    buffers: dict[str, Any] = {} if options.broadcast_buffers == "on" else {"broadcast_buffers": False}
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=_all_in_one_mb(model) if options.overlap == "off" else options.bucket_mb,
        gradient_as_bucket_view=options.gradient_as_bucket_view == "on",
        static_graph=options.static_graph == "on",
        **buffers,
        **_further_arguments(options, device),
    )
    if options.comm_hook != "none":
        wrapped.register_comm_hook(_hook_state(options), _HOOKS[options.comm_hook])
    return wrapped


def _hook_state(options: CellOptions) -> PowerSGDState | None:
    """PowerSGD at torch's own defaults: rank 1, error feedback, what does not shrink at least by half sent as it is."""
    if options.comm_hook != "powersgd":
        return None
    return PowerSGDState(
        process_group=None,
        matrix_approximation_rank=POWERSGD_RANK,
        start_powerSGD_iter=_PLAIN_POWERSGD_STEPS,
        min_compression_rate=POWERSGD_LEAST_COMPRESSION,
    )


def _further_arguments(options: CellOptions, device: torch.device) -> dict[str, Any]:
    """DDP's arguments that dpscope only passes on; `mixed_precision` names one type for all that it says.

    Raises DpscopeError for one that the installed torch does not have, or the device.
    """
    given: dict[str, Any] = ddp_arguments(options.ddp_args)
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    for name in given:
        if name not in known:
            raise DpscopeError(
                f"--ddp-args {name}: DistributedDataParallel of torch {torch.__version__} has no such argument; "
                "omit it, or use a torch that has it"
            )
    if "mixed_precision" in given:
        if device.type != "cuda":
            raise DpscopeError("--ddp-args mixed_precision: DDP has it on GPUs only; use --amp bf16 on the CPU")
        from torch.nn.parallel.distributed import _MixedPrecision

        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[given["mixed_precision"]]
        given["mixed_precision"] = _MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype)
    return given


def _all_in_one_mb(model: nn.Module) -> int:
    """A bucket's capacity that the model's gradients never reach: DDP closes a bucket once it holds its capacity."""
    gradients = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return math.ceil(sum(gradient.numel() * gradient.element_size() for gradient in gradients) / MIB) + 1
