"""The strategy of a script, detected from the modules that wrap its models."""

import itertools
import weakref
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from dpscope.profiling.attached.interception import Patch
from dpscope.profiling.records.matrix import Amp, CommHook
from dpscope.profiling.records.run import CellOptions
from dpscope.profiling.records.strategies import CellStrategy, StrategyTraits, traits_of
from dpscope.profiling.records.typed_text import MIB

_HOOKS: dict[str, CommHook] = {
    "fp16_compress_hook": "fp16",
    "bf16_compress_hook": "bf16",
    "powerSGD_hook": "powersgd",
}
# arguments of DDP that are off by default
_DDP_FLAGS = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
# by FullyShardedDataParallel's `sharding_strategy`, where it is not FULL_SHARD
_SHARDING: dict[str, CellStrategy] = {
    "SHARD_GRAD_OP": "fsdp-no-reshard",
    "HYBRID_SHARD": "hsdp",
    "_HYBRID_SHARD_ZERO2": "hsdp",
    "NO_SHARD": "replicate",
}


class WrapperLog:
    """Records every DDP and DataParallel module constructed from now on, and the names of
    communication hooks.
    """

    def __init__(self) -> None:
        self.modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.hooks: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._patches = (
            Patch(DistributedDataParallel, "__init__", after=self._note_module),
            Patch(DataParallel, "__init__", after=self._note_module),
            Patch(DistributedDataParallel, "register_comm_hook", after=self._note_hook),
        )

    def stop(self) -> None:
        """Restore torch's classes."""
        for patch in self._patches:
            patch.stop()

    # `module` may be among kwargs
    def _note_module(self, made: nn.Module, /, *args: Any, **kwargs: Any) -> None:
        self.modules.add(made)

    def _note_hook(self, made: nn.Module, /, state: object, hook: object) -> None:
        self.hooks[made] = str(getattr(hook, "__name__", type(hook).__name__))


@dataclass(frozen=True)
class DetectedStrategy:
    """What wraps a script's models."""

    strategy: CellStrategy
    devices: int
    ddp: tuple[DistributedDataParallel, ...]
    unknown_hook: str | None  # name of a communication hook whose bytes are not known

    @property
    def traits(self) -> StrategyTraits:
        return traits_of(self.strategy)


def detect_strategy(
    modules: Iterable[nn.Module],
    trained: Collection[Tensor],
    log: WrapperLog,
    world_size: int,
    stays_gathered: bool = False,
) -> DetectedStrategy:
    """The strategy of the models that hold `trained`, the optimizers' parameters; `modules` are
    outermost modules among them.

    `stays_gathered`: all parameters were whole after a forward pass, the only visible effect of
    `reshard_after_forward=False`.
    """
    parts = [part for module in modules for part in module.modules()]
    sharded = _fsdp_strategy(parts, trained, world_size, stays_gathered)
    if sharded is not None:
        return DetectedStrategy(sharded, world_size, (), None)
    # also a DDP module whose inner module alone is called
    trained_ids = {id(parameter) for parameter in trained}
    wrapping = [
        module
        for module in log.modules
        if any(id(parameter) in trained_ids for parameter in module.parameters())
    ]
    ddp = [part for part in (*parts, *wrapping) if isinstance(part, DistributedDataParallel)]
    if ddp:
        hook = next((name for name in log.hooks.values() if name not in _HOOKS), None)
        return DetectedStrategy("ddp", world_size, tuple(dict.fromkeys(ddp)), hook)
    for part in parts:
        if isinstance(part, DataParallel) and len(part.device_ids) > 1:
            return DetectedStrategy("dp", len(part.device_ids), (), None)
    return DetectedStrategy("custom" if world_size > 1 else "single", world_size, (), None)


def is_model_parallel(detected: DetectedStrategy, trained: Iterable[Any]) -> bool:
    """Whether parameters are sharded without FSDP, as by tensor parallelism."""
    by_tensor = [getattr(tensor, "placements", ()) for tensor in trained]
    placements = itertools.chain.from_iterable(by_tensor)
    shards = any(not placement.is_replicate() for placement in placements)
    return shards and detected.traits.transport == "unknown"


def is_fully_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` was called on it. Checked by class names, so that a script without FSDP
    does not import it.
    """
    kinds = {kind.__name__ for kind in type(module).__mro__}
    return "FSDPModule" in kinds and "ReplicateModule" not in kinds


def _fsdp_strategy(
    parts: Iterable[nn.Module], trained: Iterable[Tensor], world_size: int, stays_gathered: bool
) -> CellStrategy | None:
    """The strategy of the outermost FSDP module of either version, None without one."""
    for part in parts:
        kinds = {kind.__name__ for kind in type(part).__mro__}
        if "ReplicateModule" in kinds:  # torch's composable replicate is an FSDPModule, too
            return "replicate"
        if "FullyShardedDataParallel" in kinds:
            sharding = str(getattr(part.sharding_strategy, "name", ""))
            # torch uses NO_SHARD on one rank
            return _SHARDING.get(sharding, "fsdp") if world_size > 1 else "fsdp"
        if is_fully_sharded(part):
            # tensor parallelism replicates some along the dimension along which it shards others
            distributed = [tensor for tensor in trained if getattr(tensor, "placements", ())]
            if distributed and all(map(_is_in_replicas, distributed)):
                return "hsdp"
            return "fsdp-no-reshard" if stays_gathered and world_size > 1 else "fsdp"
    return None


def _is_in_replicas(tensor: Any) -> bool:
    """Whether a distributed tensor is replicated along one dimension of its mesh and sharded along
    another.
    """
    sizes = tensor.device_mesh.shape
    spread = [place for place, size in zip(tensor.placements, sizes, strict=True) if size > 1]
    replicated = [place.is_replicate() for place in spread]
    return any(replicated) and not all(replicated)


def options_of(
    detected: DetectedStrategy, log: WrapperLog, micro_batches: int, amp: Amp | None
) -> CellOptions:
    """The options in which the script differs from its strategy's defaults, as far as they are
    visible.
    """
    if not detected.ddp:
        return CellOptions(accumulate=micro_batches, amp=amp)
    model = detected.ddp[0]
    flags = [f"{name}=true" for name in _DDP_FLAGS if getattr(model, name, False)]
    cap = None if getattr(model, "bucket_bytes_cap_default", True) else model.bucket_bytes_cap / MIB
    return CellOptions(
        bucket_mb=cap,
        comm_hook=_HOOKS.get(log.hooks.get(model, ""), "none"),
        accumulate=micro_batches,
        amp=amp,
        broadcast_buffers="on" if getattr(model, "broadcast_buffers", True) else "off",
        ddp_args=" ".join(flags) or "default",
    )
