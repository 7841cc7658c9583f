"""The content of a training's checkpoint: collected from all processes, restored in each of them.

Everything is a tensor or a plain Python value, so that `torch.load(weights_only=True)` reads it:

    description    CheckpointDescription, as plain values
    model          state of the unwrapped model, with the same keys under every strategy and precision
    optimizer, schedule, scaler
    ranks          per rank: random generators, sums of the current epoch, buffers that DDP does not synchronise
    epochs         list of EpochRecord, as plain values
    unfinished     train_s and learning_rate of the current epoch

Tensors that FSDP shards are saved whole, so a training can resume under any strategy. `torch.distributed.checkpoint` gathers
and distributes the model's. It cannot load every optimizer (torch 2.14: `set_optimizer_state_dict` raises for SGD without
momentum and for parameters without gradient), so the optimizer's tensors are gathered and distributed here.
"""

import pickle
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.training.checkpoint_folder import CheckpointFolder
from dpscope.launch.training.loop import TrainState
from dpscope.launch.training.resume import Resumption
from dpscope.launch.workload.strategies import is_sharded
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.training import CheckpointDescription, EpochRecord
from dpscope.profiling.store.errors import DpscopeError

Content = dict[str, Any]


def save_checkpoint(
    folder: CheckpointFolder,
    state: TrainState,
    devices: Sequence[torch.device],
    description: CheckpointDescription,
    group: distributed.ProcessGroup | None,
    best: bool,
) -> None:
    """Save a training as its last checkpoint. Every process of the job must call this; rank 0 writes.

    `group` is a host group of the processes, None for a single process; `devices` are this process's.
    """
    rank = 0 if group is None else distributed.get_rank(group)
    model = whole_model_state(state.model, is_sharded(state.step.model))
    optimizer = whole_optimizer_state(state.step.optimizer)
    own = _rank_state(state, devices)
    ranks: list[Any] = [own]
    if group is not None:
        ranks = [None] * distributed.get_world_size(group)
        distributed.gather_object(own, ranks if rank == 0 else None, dst=0, group=group)
    if rank == 0:
        content = {
            "description": msgspec.to_builtins(description),
            "model": model,
            "optimizer": optimizer,
            "schedule": state.schedule.state_dict(),
            "scaler": state.step.scaler.state_dict(),
            "ranks": ranks,
            "epochs": msgspec.to_builtins(state.records),
            "unfinished": {"train_s": state.train_s, "learning_rate": state.learning_rate},
        }
        folder.write(description, lambda file: torch.save(content, file), best)


def whole_model_state(model: nn.Module, sharded: bool) -> Content:
    """State of a model. Every process must call this; of a sharded model, rank 0 gets all and the others nothing."""
    if not sharded:
        return model.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def load_model_state(model: nn.Module, state: Content, sharded: bool) -> None:
    """Restore the state of a model, which every process has whole; raises RuntimeError if it is another model's."""
    if not sharded:
        model.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, dict(state), options=StateDictOptions(full_state_dict=True))


def whole_optimizer_state(optimizer: Optimizer) -> Content:
    """State of an optimizer. Every process must call this; only rank 0 gets the sharded tensors, gathered on the host."""
    keep = not distributed.is_initialized() or distributed.get_rank() == 0

    def gathered(value: Any) -> Any:
        if not hasattr(value, "full_tensor"):
            return value
        full = value.full_tensor()
        return full.cpu() if keep else None

    state = optimizer.state_dict()
    values = {place: {name: gathered(one) for name, one in held.items()} for place, held in state["state"].items()}
    return {**state, "state": values}


def load_optimizer_state(optimizer: Optimizer, state: Content) -> None:
    """Restore the state of an optimizer, which every process has whole: tensors are sharded as their parameters are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def distributed_like(value: Any, parameter: Any) -> Any:
        if not (hasattr(parameter, "full_tensor") and isinstance(value, Tensor) and value.shape == parameter.shape):
            return value
        from torch.distributed.tensor import distribute_tensor

        own = value.to(parameter.device)
        return distribute_tensor(own, parameter.device_mesh, parameter.placements, src_data_rank=None)

    values = {
        place: {name: distributed_like(one, parameters[place]) for name, one in held.items()}
        for place, held in state["state"].items()
        if place < len(parameters)
    }
    optimizer.load_state_dict({**state, "state": {**state["state"], **values}})


def read_checkpoint(path: Path) -> Content:
    """The content of a checkpoint that was verified; raises DpscopeError when it holds what torch does not load safely."""
    try:
        content: Content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DpscopeError(
            f"{path}: the state of the model holds other things than tensors and plain values, which are not loaded "
            f"({str(error).splitlines()[0]}); start over with --fresh, and return only weights from get_extra_state"
        ) from error
    return content


def restore(
    state: TrainState,
    devices: Sequence[torch.device],
    place: TorchrunPlace,
    found: Resumption,
    content: Content,
    cell: Cell,
) -> None:
    """Restore a checkpoint's state in a process of a cell that has not begun.

    A rank that the checkpoint does not have keeps its generators. With another global batch than the checkpoint's, the schedule
    of learning rates stays the process's own. Only the records of epochs that this cell trained are kept. Raises DpscopeError
    if the model is another one.
    """
    stored_ranks = content["ranks"][place.rank : place.rank + 1]
    _restore_model(state, found.path, content["model"], stored_ranks)
    state.epochs, state.steps = found.had.epochs, found.had.step
    records = msgspec.convert(content["epochs"], list[EpochRecord])
    state.records = [record for record in records if record.cell == cell.name]
    state.train_s, state.learning_rate = content["unfinished"]["train_s"], content["unfinished"]["learning_rate"]
    state.step.scaler.load_state_dict(content["scaler"])
    _restore_rates(state, content, found.had.cell.global_batch_size == cell.global_batch_size)
    state.sums.values.copy_(_sums(content["ranks"], place))
    for own in stored_ranks:
        set_rng_states(own["generators"], devices)


def _rank_state(state: TrainState, devices: Sequence[torch.device]) -> dict[str, Any]:
    wrapped = state.step.model
    apart = isinstance(wrapped, DistributedDataParallel) and not wrapped.broadcast_buffers
    return {
        "generators": rng_states(devices),
        "sums": state.sums.values.cpu(),
        "buffers": {name: buffer.cpu() for name, buffer in state.model.named_buffers()} if apart else None,
    }


def _restore_model(state: TrainState, path: Path, weights: Content, stored_ranks: Sequence[dict[str, Any]]) -> None:
    try:
        load_model_state(state.model, weights, is_sharded(state.step.model))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise DpscopeError(f"{path} does not fit the model: {reason[:300]}; start over with --fresh") from error
    for own in stored_ranks:
        if own["buffers"] is not None:
            state.model.load_state_dict(own["buffers"], strict=False)


def _restore_rates(state: TrainState, content: Content, same_batch: bool) -> None:
    """Restore optimizer and schedule; with another global batch, advance the process's own schedule to the epoch."""
    optimizer = state.step.optimizer
    current_rates = [{name: group[name] for name in ("lr", "initial_lr")} for group in optimizer.param_groups]
    load_optimizer_state(optimizer, content["optimizer"])
    if same_batch:
        state.schedule.load_state_dict(content["schedule"])
        return
    for group, rates in zip(optimizer.param_groups, current_rates, strict=True):
        group.update(rates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses the optimizer steps, which another process took
        for _ in range(state.epochs):
            for _ in range(state.step.batches.steps_per_epoch):
                state.schedule.after_step()
            state.schedule.after_epoch()


def _sums(ranks: Sequence[dict[str, Any]], place: TorchrunPlace) -> Tensor:
    """A rank's sums; if the checkpoint has another number of ranks, rank 0 takes the total."""
    if len(ranks) == place.world_size:
        own: Tensor = ranks[place.rank]["sums"]
        return own
    total = torch.stack([one["sums"] for one in ranks]).sum(dim=0)
    return total if place.rank == 0 else torch.zeros_like(total)


def rng_states(devices: Sequence[torch.device]) -> dict[str, Any]:
    """States of Python's, NumPy's and torch's generators, and of each CUDA device among `devices`, in their order."""
    numpy_state: Any = np.random.get_state(legacy=False)
    inner = numpy_state["state"]
    return {
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": {**inner, "key": inner["key"].tolist()}},
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"],
    }


def set_rng_states(states: dict[str, Any], devices: Sequence[torch.device]) -> None:
    """Restore what `rng_states` returned; further CUDA devices keep their states."""
    random.setstate(states["python"])
    inner = states["numpy"]["state"]
    key = np.array(inner["key"], dtype=np.uint32)
    np.random.set_state({**states["numpy"], "state": {**inner, "key": key}})
    torch.set_rng_state(states["torch"])
    cuda = [device for device in devices if device.type == "cuda"]
    for device, state in zip(cuda, states["cuda"], strict=False):
        torch.cuda.set_rng_state(state, device)
