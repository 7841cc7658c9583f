"""The state of a running training at the end of an epoch: saved by rank 0, restored in every
process.

A checkpoint is one file of `torch.save`, which `torch.load(weights_only=True)` reads:

    model, optimizer  with the same keys under every strategy and precision, sharded tensors whole
    scaler
    epochs            list of EpochRecord, as plain values

An epoch is recorded in epochs.json after its checkpoint is whole, so that a training that is ended
at any moment goes on after the last recorded epoch, or after the one whose record it still owes.
"""

import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from dpscope.launch.jobs.process_group import all_ranks_numbers
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.learning.loop import TrainState
from dpscope.profiling.records.training import EpochRecord
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path, write_json
from dpscope.profiling.store.folders import remove_temporaries
from dpscope.profiling.store.training_folders import TrainingFolder

Content = dict[str, Any]

_SAVED = StateDictOptions(full_state_dict=True, cpu_offload=True)
# not strict: parameters that never had a gradient have no state of the optimizer
_LOADED = StateDictOptions(full_state_dict=True, strict=False)


def save(folder: TrainingFolder, state: TrainState, rank: int) -> None:
    """Save the end of an epoch and record it; every process must call this, rank 0 writes."""
    model, optimizer = whole_state(state.model, state.step.optimizer)
    if rank > 0:
        return
    content = {
        "model": model,
        "optimizer": optimizer,
        "scaler": state.step.scaler.state_dict(),
        "epochs": msgspec.to_builtins(state.records),
    }
    with atomic_path(folder.last_path) as temporary, open(temporary, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    accuracies = [record.test_accuracy for record in state.records]
    if accuracies.index(max(accuracies)) == len(accuracies) - 1:
        with atomic_path(folder.best_path) as temporary:
            shutil.copyfile(folder.last_path, temporary)
    write_json(folder.epochs_path, state.records)


def resume(
    folder: TrainingFolder, state: TrainState, place: TorchrunPlace, device: torch.device
) -> None:
    """Restore a training that has not begun from its last checkpoint, if it has one.

    Raises DpscopeError for a checkpoint that is damaged or of another model, and unless every
    process of the job continues after the same epoch.
    """
    if folder.last_path.exists():
        content = read_checkpoint(folder.last_path)
        state.step.learn_graph()
        try:
            load_state(state.model, state.step.optimizer, content["model"], content["optimizer"])
        except (RuntimeError, KeyError) as error:
            raise _unusable(folder.last_path, error) from error
        state.step.scaler.load_state_dict(content["scaler"])
        state.records = msgspec.convert(content["epochs"], list[EpochRecord])
        state.sums.clear()  # `learn_graph` has added its samples
    if len(set(all_ranks_numbers((len(state.records),), device))) != 1:
        raise DpscopeError(
            f"{folder.last_path}: the processes read different checkpoints there; --out must be a folder that all "
            "nodes share"
        )
    if place.rank == 0:
        remove_temporaries(folder.last_path.parent)
        if state.records:
            write_json(folder.epochs_path, state.records)


def whole_state(model: nn.Module, optimizer: Optimizer) -> tuple[Content, Content]:
    """The state of both, on the host. Every process must call this; of a sharded model, rank 0 gets
    all and the others nothing.
    """
    return (
        get_model_state_dict(model, options=_SAVED),
        get_optimizer_state_dict(model, optimizer, options=_SAVED),
    )


def load_state(
    model: nn.Module, optimizer: Optimizer, of_model: Content, of_optimizer: Content
) -> None:
    """Restore both, whose gradients are None, from a state that every process has whole."""
    set_model_state_dict(model, of_model, options=StateDictOptions(full_state_dict=True))
    if of_optimizer["state"]:  # SGD without momentum has none, which torch 2.14 does not load
        set_optimizer_state_dict(model, optimizer, of_optimizer, options=_LOADED)


def read_checkpoint(path: Path) -> Content:
    """The content of a checkpoint; raises DpscopeError for a damaged one and for what torch does
    not load safely.
    """
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not compare checksums
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"{damaged} is damaged")
        content: Content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
        raise _unusable(path, error) from error
    except pickle.UnpicklingError as error:
        raise DpscopeError(
            f"{path}: the state of the model holds other things than tensors and plain values, which are not loaded "
            f"({str(error).splitlines()[0]}); start over with --fresh, and return only weights from get_extra_state"
        ) from error
    return content


def _unusable(path: Path, error: Exception) -> DpscopeError:
    reason = " ".join(str(error).split())
    return DpscopeError(
        f"{path} cannot be resumed from ({reason[:300]}); remove it, or give --fresh, to start over"
    )
