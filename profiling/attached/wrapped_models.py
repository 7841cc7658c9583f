"""The strategy of a script, told from the modules that wrap its models."""

import json
import weakref
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from dpscope.profiling.attached.own_frames import leave_out_frame
from dpscope.profiling.records.matrix import Amp, CommHook
from dpscope.profiling.records.run import CellOptions
from dpscope.profiling.records.strategies import CellStrategy, StrategyTraits, traits_of

_HOOKS: dict[str, CommHook] = {
    "fp16_compress_hook": "fp16",
    "bf16_compress_hook": "bf16",
    "powerSGD_hook": "powersgd",
}
_MIB = 1 << 20
_SHARDING: dict[str, CellStrategy] = {  # by FullyShardedDataParallel's `sharding_strategy`, where it is not FULL_SHARD
    "SHARD_GRAD_OP": "fsdp-no-reshard",
    "HYBRID_SHARD": "hsdp",
    "_HYBRID_SHARD_ZERO2": "hsdp",
    "NO_SHARD": "replicate",
}


class Constructed:
    """Notes every DDP and DataParallel module when it is constructed, and each communication hook by its name."""

    def __init__(self) -> None:
        self.modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.hooks: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._originals: list[tuple[type, str, Any]] = []

    def listen(self) -> None:
        """Note what is constructed from now on."""
        for kind in (DistributedDataParallel, DataParallel):
            self._replace(kind, "__init__", self._note_module)
        self._replace(DistributedDataParallel, "register_comm_hook", self._note_hook)

    def stop(self) -> None:
        """Leave torch's classes as they were."""
        for kind, name, original in self._originals:
            setattr(kind, name, original)
        self._originals.clear()

    def _replace(self, kind: type, name: str, note: Any) -> None:
        original = kind.__dict__[name]
        self._originals.append((kind, name, original))

        @wraps(original)
        def noting(made: nn.Module, /, *args: Any, **kwargs: Any) -> Any:  # callers may name any argument, `module` too
            try:
                result = original(made, *args, **kwargs)
            except BaseException as error:
                leave_out_frame(error)
                raise
            note(made, *args, **kwargs)
            return result

        setattr(kind, name, noting)

    def _note_module(self, made: nn.Module, /, *args: Any, **kwargs: Any) -> None:
        self.modules.add(made)

    def _note_hook(self, made: nn.Module, /, state: object, hook: object) -> None:
        self.hooks[made] = str(getattr(hook, "__name__", type(hook).__name__))


@dataclass(frozen=True)
class ToldStrategy:
    """What wraps a script's models."""

    strategy: CellStrategy
    devices: int
    ddp: tuple[DistributedDataParallel, ...]
    group_size: int | None  # of the group in which gradients are reduced; None without one
    unknown_hook: str | None  # a communication hook whose bytes dpscope cannot tell

    @property
    def traits(self) -> StrategyTraits:
        """What the strategy does."""
        return traits_of(self.strategy)


def tell_strategy(
    modules: Iterable[nn.Module],
    trained: Collection[Tensor],
    constructed: Constructed,
    world_size: int,
    stays_gathered: bool = False,
) -> ToldStrategy:
    """The strategy of the models that hold `trained`, the optimizers' parameters: `modules` are the outermost of some.

    `stays_gathered`: whether all parameters were seen to be whole after a forward pass. Nothing else tells it of `fully_shard`.
    """
    parts = [part for module in modules for part in module.modules()]
    own = {id(parameter) for parameter in trained}
    wrapping = [one for one in constructed.modules if any(id(parameter) in own for parameter in one.parameters())]
    ddp = tuple(dict.fromkeys(part for part in (*parts, *wrapping) if isinstance(part, DistributedDataParallel)))
    groups = {one.process_group.size() for one in ddp}
    hook = next((name for one, name in constructed.hooks.items() if name not in _HOOKS), None)
    replicated = [part for part in parts if isinstance(part, DataParallel) and len(part.device_ids) > 1]
    if (sharded := _told_by_fsdp(parts, trained, world_size, stays_gathered)) is not None:
        return ToldStrategy(sharded, world_size, (), None, None)
    if ddp:
        return ToldStrategy("ddp", world_size, ddp, min(groups), hook)
    if replicated:
        return ToldStrategy("dp", len(replicated[0].device_ids), (), None, None)
    return ToldStrategy("custom" if world_size > 1 else "single", world_size, (), None, None)


def is_model_parallel(told: ToldStrategy, trained: Iterable[Any]) -> bool:
    """Whether parameters are sharded by something else than FSDP, as tensor parallelism does it."""
    placements = [one for tensor in trained for one in getattr(tensor, "placements", ())]
    return told.traits.transport == "unknown" and any(not one.is_replicate() for one in placements)


def is_fully_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` was called on it. Told by names: a script without FSDP must not wait for its import."""
    kinds = {kind.__name__ for kind in type(module).__mro__}
    return "FSDPModule" in kinds and "ReplicateModule" not in kinds


def _told_by_fsdp(
    parts: Iterable[nn.Module], trained: Iterable[Tensor], world_size: int, stays_gathered: bool
) -> CellStrategy | None:
    """What the outermost module of either kind of FSDP is, None without one."""
    for part in parts:
        kinds = {kind.__name__ for kind in type(part).__mro__}
        if "ReplicateModule" in kinds:  # torch's newer composable replicate, which is an FSDPModule, too
            return "replicate"
        if "FullyShardedDataParallel" in kinds:
            sharding = str(getattr(part.sharding_strategy, "name", ""))
            return _SHARDING.get(sharding, "fsdp") if world_size > 1 else "fsdp"  # torch makes it NO_SHARD on one rank
        if is_fully_sharded(part):
            if _in_replicas(trained):
                return "hsdp"
            return "fsdp-no-reshard" if stays_gathered and world_size > 1 else "fsdp"
    return None


def _in_replicas(trained: Iterable[Any]) -> bool:
    """Whether all distributed tensors are copied along one dimension of their mesh, and cut along another."""
    copied: set[int] | None = None
    cut = False
    for tensor in trained:
        placements = getattr(tensor, "placements", ())
        if not placements:
            continue
        sizes = tensor.device_mesh.shape
        own = {at for at, one in enumerate(placements) if one.is_replicate() and sizes[at] > 1}
        copied = own if copied is None else copied & own
        cut = cut or any(not one.is_replicate() and sizes[at] > 1 for at, one in enumerate(placements))
    return bool(copied) and cut


def options_of(told: ToldStrategy, constructed: Constructed, micro_batches: int, amp: Amp | None) -> CellOptions:
    """How the script departs from its strategy's defaults, as far as that can be seen."""
    if not told.ddp:
        return CellOptions(accumulate=micro_batches, amp=amp)
    model = told.ddp[0]
    cap = None if getattr(model, "bucket_bytes_cap_default", True) else model.bucket_bytes_cap / _MIB
    further = {"find_unused_parameters": True} if model.find_unused_parameters else {}
    return CellOptions(
        bucket_mb=cap,
        comm_hook=_HOOKS.get(constructed.hooks.get(model, ""), "none"),
        gradient_as_bucket_view="on" if model.gradient_as_bucket_view else "off",
        static_graph="on" if getattr(model, "static_graph", False) else "off",
        broadcast_buffers="on" if model.broadcast_buffers else "off",
        accumulate=micro_batches,
        amp=amp,
        ddp_args=" ".join(f"{name}={json.dumps(value)}" for name, value in further.items()) or "default",
    )
