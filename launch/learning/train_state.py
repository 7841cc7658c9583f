"""The state of a running training at the end of an epoch: saved by rank 0, restored in every
process.

Everything is a tensor or a plain Python value, so that `torch.load(weights_only=True)` reads it:

    description  CheckpointDescription, as plain values
    model        state of the unwrapped model, with the same keys under every strategy and precision
    optimizer, scaler
    epochs       list of EpochRecord, as plain values

Tensors that FSDP shards are saved whole, so that a checkpoint is one file.
`torch.distributed.checkpoint` gathers and distributes the model's. It cannot load every optimizer
(torch 2.14: `set_optimizer_state_dict` raises for SGD without momentum and for parameters without
gradient), so the optimizer's tensors are gathered and distributed here.
"""

import importlib.metadata
import math
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from dpscope.launch.jobs.process_group import all_ranks_numbers
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.learning.loop import TrainState
from dpscope.launch.learning.train_plan import TrainJob
from dpscope.launch.workload.strategies import is_sharded
from dpscope.profiling.records.training import CheckpointDescription, EpochRecord
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import remove_temporaries

Content = dict[str, Any]


def save(job: TrainJob, state: TrainState, place: TorchrunPlace) -> None:
    """Save the end of an epoch; every process must call this, rank 0 writes."""
    model = whole_model_state(state.model, is_sharded(state.step.model))
    optimizer = whole_optimizer_state(state.step.optimizer)
    if place.rank > 0:
        return
    *earlier, last = (record.test_accuracy for record in state.records)
    description = CheckpointDescription(
        dpscope_version=importlib.metadata.version("dpscope"),
        torch_version=str(torch.__version__),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config=job.config,
        cell=job.cell,
        seed=job.seed,
        epochs=state.epochs,
        test_accuracy=last,
    )
    content = {
        "description": msgspec.to_builtins(description),
        "model": model,
        "optimizer": optimizer,
        "scaler": state.step.scaler.state_dict(),
        "epochs": msgspec.to_builtins(state.records),
    }
    best = last > max(earlier, default=-math.inf)
    job.checkpoints.write(description, lambda path: torch.save(content, path), best)


def resume(job: TrainJob, state: TrainState, place: TorchrunPlace, device: torch.device) -> None:
    """Restore a training that has not begun from its checkpoint, if it has one; raises as
    `find_resumption` does.

    Raises DpscopeError unless every process of the job continues after the same epoch.
    """
    if (had := job.find_resumption()) is not None:
        content = read_checkpoint(job.checkpoints.last, had)
        state.step.learn_graph()
        _restore(job, state, content)
    if len(set(all_ranks_numbers((state.epochs,), device))) != 1:
        raise DpscopeError(
            f"{job.checkpoints.path}: the processes read different checkpoints there; --out must be a folder that all "
            "nodes share"
        )
    if place.rank == 0:
        remove_temporaries(job.checkpoints.path)


def _restore(job: TrainJob, state: TrainState, content: Content) -> None:
    try:
        load_model_state(state.model, content["model"], is_sharded(state.step.model))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise DpscopeError(
            f"{job.checkpoints.last} does not fit the model: {reason[:300]}; start over with --fresh"
        ) from error
    load_optimizer_state(state.step.optimizer, content["optimizer"])
    state.step.scaler.load_state_dict(content["scaler"])
    state.records = msgspec.convert(content["epochs"], list[EpochRecord])
    state.epochs = len(state.records)
    state.sums.clear()  # `learn_graph` has added its samples


def whole_model_state(model: nn.Module, sharded: bool) -> Content:
    """State of a model. Every process must call this; of a sharded model, rank 0 gets all and the
    others nothing.
    """
    if not sharded:
        return model.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )


def load_model_state(model: nn.Module, state: Content, sharded: bool) -> None:
    """Restore the state of a model, which every process has whole; raises RuntimeError if it is
    another model's.
    """
    if not sharded:
        model.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, dict(state), options=StateDictOptions(full_state_dict=True))


def whole_optimizer_state(optimizer: Optimizer) -> Content:
    """State of an optimizer. Every process must call this; only rank 0 gets the sharded tensors,
    gathered on the host.
    """
    keep = not distributed.is_initialized() or distributed.get_rank() == 0

    def gathered(value: Any) -> Any:
        if not hasattr(value, "full_tensor"):
            return value
        full = value.full_tensor()
        return full.cpu() if keep else None

    state = optimizer.state_dict()
    values = {
        place: {name: gathered(one) for name, one in held.items()}
        for place, held in state["state"].items()
    }
    return {**state, "state": values}


def load_optimizer_state(optimizer: Optimizer, state: Content) -> None:
    """Restore the state of an optimizer, which every process has whole: tensors are sharded as
    their parameters are.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def distributed_like(value: Any, parameter: Any) -> Any:
        if not (
            hasattr(parameter, "full_tensor")
            and isinstance(value, Tensor)
            and value.shape == parameter.shape
        ):
            return value
        from torch.distributed.tensor import distribute_tensor

        own = value.to(parameter.device)
        return distribute_tensor(
            own, parameter.device_mesh, parameter.placements, src_data_rank=None
        )

    values = {
        place: {name: distributed_like(one, parameters[place]) for name, one in held.items()}
        for place, held in state["state"].items()
        if place < len(parameters)
    }
    optimizer.load_state_dict({**state, "state": {**state["state"], **values}})


def read_checkpoint(path: Path, had: CheckpointDescription) -> Content:
    """The content of a checkpoint, whose verified description is `had`; raises DpscopeError when it
    holds what torch does not load safely.
    """
    try:
        content: Content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DpscopeError(
            f"{path}: the state of the model holds other things than tensors and plain values, which are not loaded "
            f"({str(error).splitlines()[0]}); start over with --fresh, and return only weights from get_extra_state"
        ) from error
    # the archive's checksums do not cover its comment
    if msgspec.convert(content["description"], CheckpointDescription) != had:
        raise DpscopeError(f"{path} is damaged; remove it, or give --fresh, to start over")
    return content
