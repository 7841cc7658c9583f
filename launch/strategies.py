"""The strategies dpscope compares: one device, DataParallel, DistributedDataParallel. Wrapping, and nothing else."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpscope.launch.host_data_parallel import HostDataParallel
from dpscope.profiling.phases import GATHER, PARALLEL_APPLY, REPLICATE, SCATTER
from dpscope.profiling.run_store import DpscopeError
from dpscope.profiling.run_types import CellStrategy

# `nn.DataParallel` is generic to type checkers and not at run time.
_DataParallel: Any = nn.DataParallel


class NamedDataParallel(_DataParallel):  # type: ignore[misc]
    """`nn.DataParallel`, its four phases named in the trace and nothing else changed."""

    def scatter(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Sequence[int | torch.device]
    ) -> Any:
        with torch.profiler.record_function(SCATTER):
            return super().scatter(inputs, kwargs, device_ids)

    def replicate(self, module: nn.Module, device_ids: Sequence[int | torch.device]) -> Any:
        with torch.profiler.record_function(REPLICATE):
            return super().replicate(module, device_ids)

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any) -> Any:
        with torch.profiler.record_function(PARALLEL_APPLY):
            return super().parallel_apply(replicas, inputs, kwargs)

    def gather(self, outputs: Any, output_device: int | torch.device) -> Any:
        with torch.profiler.record_function(GATHER):
            return super().gather(outputs, output_device)


def wrap(model: nn.Module, strategy: CellStrategy, devices: int, device: torch.device) -> nn.Module:
    """Wrap a model, already on `device`, for a strategy on `devices` devices.

    `device` is this process's first device. DDP needs an initialised process group. Raises DpscopeError for a
    DataParallel that would silently pass through: on one device, or `dp` on the CPU (its stand-in is `dp-host`).
    """
    if strategy == "single":
        return model
    if strategy == "ddp":
        return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
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
